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

// One block of 16 outputs. Codes come from codes_of(row, codes, scales), which pads the codes of
// the row's last group with code 0.
template <typename F>
void fill_block(const WeightFormat& format, int rows, int cols, int block, std::byte* upper,
                std::byte* lower, const F& codes_of) {
  const int first_row = kTileOutputs * block;
  const int num_rows = std::min(kTileOutputs, rows - first_row);
  std::memset(upper, 0, upper_block_bytes(cols, format.group));
  if (lower != nullptr) std::memset(lower, 0, lower_block_bytes(cols));
  for (int lane = 0; lane < num_rows; ++lane) {
    std::byte* to = upper;
    std::byte* lower_to = lower;
    codes_of(first_row + lane, [&](int first, const std::int8_t* codes, GroupScale scale) {
      const int tiles = weight_tiles(std::min(format.group, cols - first));
      auto* scales = reinterpret_cast<std::uint16_t*>(to);
      scales[lane] = scale.scale;
      scales[kTileOutputs + lane] = scale.offset;
      store_lane(codes, tiles, lane, to + kTileBytes, lower_to);
      to += kTileBytes * (tiles + 1);
      if (lower_to != nullptr) lower_to += kTileBytes * tiles;
    });
  }
}

// fill_block for every block of 16 outputs: by the memory nodes that will read them, as long as
// nobody has touched the memory. A node's share is large, so huge pages do not spoil it.
template <typename F>
void fill_planes(ThreadPool& pool, const WeightFormat& format, int rows, int cols, std::byte* upper,
                 std::byte* lower, const F& codes_of) {
  const PlaneBytes bytes = weight_plane_bytes(rows, cols, format);
  advise_huge_pages(upper, bytes.upper);
  if (lower != nullptr) advise_huge_pages(lower, bytes.lower);
  pool.parallel_for((rows + kTileOutputs - 1) / kTileOutputs, [&](std::int64_t block, int) {
    fill_block(format, rows, cols, static_cast<int>(block),
               upper + block * upper_block_bytes(cols, format.group),
               lower == nullptr ? nullptr : lower + block * lower_block_bytes(cols), codes_of);
  });
}

}  // namespace

PlaneBytes weight_plane_bytes(int rows, int cols, const WeightFormat& format) {
  const std::size_t blocks = (static_cast<std::size_t>(rows) + kTileOutputs - 1) / kTileOutputs;
  return {blocks * upper_block_bytes(cols, format.group), blocks * lower_block_bytes(cols)};
}

void make_weight_planes(const Context& context, const Matrix& elements, std::byte* upper,
                        std::byte* lower) {
  const LinearKernels& kernels = context.kernels.linear;
  const DType dtype = elements.format.dtype;
  const auto codes_of = [&](int row, const auto& store) {
    const std::size_t element = static_cast<std::size_t>(row) * elements.cols;
    const auto* data = static_cast<const std::byte*>(elements.data) + element * size_of(dtype);
    alignas(64) float x[kWeightGroup];
    alignas(64) std::int8_t codes[kWeightGroup];
    for (int first = 0; first < elements.cols; first += kWeightGroup) {
      const int count = std::min(kWeightGroup, elements.cols - first);
      kernels.to_f32[static_cast<int>(dtype)](data + first * size_of(dtype), count, x);
      store(first, codes, encode_group(kernels, x, count, codes));
    }
  };
  fill_planes(context.pool, sliced_format(), elements.rows, elements.cols, upper, lower, codes_of);
}

void import_weight_planes(const Context& context, const CodedMatrix& coded, std::byte* upper,
                          std::byte* lower) {
  const WeightFormat& format = coded.format;
  check(format == sliced_format(64) || format == sliced_format(128),
        "weights come in groups of 64 or 128");
  const auto codes_of = [&](int row, const auto& store) {
    RowBuffer buffer(format, coded.cols);
    coded.read(row, buffer.view());
    alignas(64) std::int8_t codes[kWeightGroup];
    for (int first = 0; first < coded.cols; first += format.group) {
      const int count = std::min(format.group, coded.cols - first);
      for (int i = 0; i < count; ++i) {
        codes[i] = static_cast<std::int8_t>(buffer.codes[first + i] - 128);
      }
      std::memset(codes + count, kZeroCode, kWeightGroup - count);
      store(first, codes, buffer.scales[first / format.group]);
    }
  };
  fill_planes(context.pool, format, coded.rows, coded.cols, upper, lower, codes_of);
}

}  // namespace quantspec::cpu
