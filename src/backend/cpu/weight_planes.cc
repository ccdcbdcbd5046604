#include "backend/cpu/weight_planes.h"

#include <cstring>

#include "base/error.h"

namespace quantspec::cpu {

namespace {

constexpr std::uint64_t kSignBits = 0x8080808080808080u;
constexpr std::uint32_t kLowNibbles = 0x0f0f0f0fu;

// Codes are kept less 128, as the kernel makes them, so a code of 0 is the byte 0x80.
constexpr int kZeroCode = 0x80;

GroupScale encode_group(const LinearKernels& kernels, const float* x, int count,
                        std::int8_t* codes) {
  float min, max;
  const bool finite = kernels.extremes(x, count, &min, &max);
  const GroupScale group = group_scale(min, max, finite);
  const float scale = f16_to_f32(group.scale);
  if (scale > 0.0f) {
    kernels.encode(x, count, scale, f16_to_f32(group.offset), codes);
    std::memset(codes + count, kZeroCode, kWeightGroup - count);
    return group;
  }
  std::memset(codes, kZeroCode, kWeightGroup);
  if (!finite) return group;
  // The codec itself says which of +0 and -0 is the least.
  std::uint8_t zeros[kWeightGroup];
  return quantize_group(x, 1, count, zeros, 1);
}

// Distributes one output's codes of one group to its lane of the group's tiles.
void store_lane(const std::int8_t* codes, int tiles, int lane, std::byte* upper, std::byte* lower) {
  for (int t = 0; t < tiles; ++t) {
    std::uint64_t eight;
    std::memcpy(&eight, codes + kTileTerms * t, sizeof(eight));
    eight ^= kSignBits;
    const auto first = static_cast<std::uint32_t>(eight);
    const auto second = static_cast<std::uint32_t>(eight >> 32);
    const std::uint32_t u = ((first >> 4) & kLowNibbles) | (second & ~kLowNibbles);
    std::memcpy(upper + kTileBytes * t + 4 * lane, &u, sizeof(u));
    if (lower == nullptr) continue;
    const std::uint32_t l = (first & kLowNibbles) | ((second << 4) & ~kLowNibbles);
    std::memcpy(lower + kTileBytes * t + 4 * lane, &l, sizeof(l));
  }
}

// One block of 16 outputs. Codes come from codes_of(row, first input, count, codes), which returns
// their scale and pads the codes of a whole group with code 0.
template <typename F>
void fill_block(int rows, int cols, int group_size, int block, std::byte* upper, std::byte* lower,
                const F& codes_of) {
  const int first_row = kTileOutputs * block;
  const int num_rows = std::min(kTileOutputs, rows - first_row);
  std::memset(upper, 0, upper_block_bytes(cols, group_size));
  if (lower != nullptr) std::memset(lower, 0, lower_block_bytes(cols));
  for (int first = 0; first < cols; first += group_size) {
    const int count = std::min(group_size, cols - first);
    const int tiles = weight_tiles(count);
    auto* scales = reinterpret_cast<std::uint16_t*>(upper);
    upper += kTileBytes;
    for (int lane = 0; lane < num_rows; ++lane) {
      alignas(64) std::int8_t codes[kWeightGroup];
      const GroupScale scale = codes_of(first_row + lane, first, count, codes);
      scales[lane] = scale.scale;
      scales[kTileOutputs + lane] = scale.offset;
      store_lane(codes, tiles, lane, upper, lower);
    }
    upper += kTileBytes * tiles;
    if (lower != nullptr) lower += kTileBytes * tiles;
  }
}

// fill_block for every block of 16 outputs: by the memory nodes that will read them, as long as
// nobody has touched the memory. A node's share is large, so huge pages do not spoil it.
template <typename F>
void fill_planes(ThreadPool& pool, int rows, int cols, int group_size, std::byte* upper,
                 std::byte* lower, const F& codes_of) {
  const PlaneBytes bytes = weight_plane_bytes(rows, cols, group_size);
  advise_huge_pages(upper, bytes.upper);
  if (lower != nullptr) advise_huge_pages(lower, bytes.lower);
  pool.parallel_for((rows + kTileOutputs - 1) / kTileOutputs, [&](std::int64_t block, int) {
    fill_block(rows, cols, group_size, static_cast<int>(block),
               upper + block * upper_block_bytes(cols, group_size),
               lower == nullptr ? nullptr : lower + block * lower_block_bytes(cols), codes_of);
  });
}

}  // namespace

PlaneBytes weight_plane_bytes(int rows, int cols, int group) {
  const std::size_t blocks = (static_cast<std::size_t>(rows) + kTileOutputs - 1) / kTileOutputs;
  return {blocks * upper_block_bytes(cols, group), blocks * lower_block_bytes(cols)};
}

void make_weight_planes(const Context& context, const TensorView& full, std::byte* upper,
                        std::byte* lower) {
  const LinearKernels& kernels = context.kernels.linear;
  const auto codes_of = [&](int row, int first, int count, std::int8_t* codes) {
    const std::size_t element = static_cast<std::size_t>(row) * full.cols + first;
    const auto* data = static_cast<const std::byte*>(full.data) + element * size_of(full.dtype);
    alignas(64) float x[kWeightGroup];
    kernels.to_f32[static_cast<int>(full.dtype)](data, count, x);
    return encode_group(kernels, x, count, codes);
  };
  fill_planes(context.pool, full.rows, full.cols, kWeightGroup, upper, lower, codes_of);
}

void import_weight_planes(const Context& context, const CodedMatrix& coded, std::byte* upper,
                          std::byte* lower) {
  check(coded.group == 64 || coded.group == 128, "weights come in groups of 64 or 128");
  const int groups = weight_groups(coded.cols, coded.group);
  const auto codes_of = [&](int row, int first, int count, std::int8_t* codes) {
    const std::uint8_t* in = coded.codes + static_cast<std::size_t>(row) * coded.cols + first;
    for (int i = 0; i < count; ++i) codes[i] = static_cast<std::int8_t>(in[i] - 128);
    std::memset(codes + count, kZeroCode, kWeightGroup - count);
    return coded.scales[static_cast<std::size_t>(row) * groups + first / coded.group];
  };
  fill_planes(context.pool, coded.rows, coded.cols, coded.group, upper, lower, codes_of);
}

}  // namespace quantspec::cpu
