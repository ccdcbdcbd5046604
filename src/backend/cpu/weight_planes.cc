#include "backend/cpu/weight_planes.h"

#include <cstring>

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

// One block of 16 outputs.
void encode_block(const LinearKernels& kernels, const TensorView& full, int block, std::byte* upper,
                  std::byte* lower) {
  const int first_row = kTileOutputs * block;
  const int num_rows = std::min(kTileOutputs, full.rows - first_row);
  std::memset(upper, 0, upper_block_bytes(full.cols));
  if (lower != nullptr) std::memset(lower, 0, lower_block_bytes(full.cols));
  for (int group = 0; group < weight_groups(full.cols); ++group) {
    const int first = group * kWeightGroup;
    const int count = std::min(kWeightGroup, full.cols - first);
    const int tiles = weight_tiles(count);
    auto* scales = reinterpret_cast<std::uint16_t*>(upper);
    upper += kTileBytes;
    for (int lane = 0; lane < num_rows; ++lane) {
      const std::size_t element = static_cast<std::size_t>(first_row + lane) * full.cols + first;
      const auto* data = static_cast<const std::byte*>(full.data) + element * size_of(full.dtype);
      alignas(64) float x[kWeightGroup];
      alignas(64) std::int8_t codes[kWeightGroup];
      kernels.to_f32[static_cast<int>(full.dtype)](data, count, x);
      const GroupScale scale = encode_group(kernels, x, count, codes);
      scales[lane] = scale.scale;
      scales[kTileOutputs + lane] = scale.offset;
      store_lane(codes, tiles, lane, upper, lower);
    }
    upper += kTileBytes * tiles;
    if (lower != nullptr) lower += kTileBytes * tiles;
  }
}

}  // namespace

Backend::PlaneBytes weight_plane_bytes(int rows, int cols) {
  const std::size_t blocks = (static_cast<std::size_t>(rows) + kTileOutputs - 1) / kTileOutputs;
  return {blocks * upper_block_bytes(cols), blocks * lower_block_bytes(cols)};
}

void make_weight_planes(const Context& context, const TensorView& full, std::byte* upper,
                        std::byte* lower) {
  const int blocks = (full.rows + kTileOutputs - 1) / kTileOutputs;
  context.pool.parallel_for(blocks, [&](std::int64_t block, int) {
    encode_block(context.kernels.linear, full, static_cast<int>(block),
                 upper + block * upper_block_bytes(full.cols),
                 lower == nullptr ? nullptr : lower + block * lower_block_bytes(full.cols));
  });
}

}  // namespace quantspec::cpu
