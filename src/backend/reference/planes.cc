#include <cstring>

#include "backend/reference/ops.h"
#include "base/error.h"

namespace quantspec::reference {

namespace {

std::size_t row_bytes(int cols) { return (static_cast<std::size_t>(cols) + 1) / 2; }
std::size_t row_scales(int cols) { return static_cast<std::size_t>(weight_groups(cols)); }

int nibble(const std::byte* row, int col) {
  return std::to_integer<int>(row[col / 2]) >> (col % 2 == 0 ? 0 : 4) & 15;
}

// The byte at which column `col` lies, with the nibble of `col` set. REQUIRES: it was 0.
void set_nibble(std::byte* row, int col, int nibble) {
  row[col / 2] |= std::byte(nibble << (col % 2 == 0 ? 0 : 4));
}

}  // namespace

std::size_t upper_plane_bytes(int rows, int cols) {
  return rows * (row_scales(cols) * sizeof(GroupScale) + row_bytes(cols));
}
std::size_t lower_plane_bytes(int rows, int cols) { return rows * row_bytes(cols); }

void encode_planes(ThreadPool& pool, const TensorView& full, std::byte* upper, std::byte* lower) {
  const int cols = full.cols;
  auto* scales = reinterpret_cast<GroupScale*>(upper);
  auto* upper_nibbles = upper + full.rows * row_scales(cols) * sizeof(GroupScale);
  std::memset(upper_nibbles, 0, full.rows * row_bytes(cols));
  if (lower != nullptr) std::memset(lower, 0, full.rows * row_bytes(cols));
  pool.parallel_for(full.rows, [&](std::int64_t row, int) {
    std::vector<float> values(cols);
    std::vector<std::uint8_t> codes(cols);
    for (int i = 0; i < cols; ++i) values[i] = load_f32(full.data, full.dtype, row * cols + i);
    encode_weight_row(values.data(), cols, codes.data(), scales + row * row_scales(cols));
    for (int i = 0; i < cols; ++i) {
      set_nibble(upper_nibbles + row * row_bytes(cols), i, codes[i] >> 4);
      if (lower != nullptr) set_nibble(lower + row * row_bytes(cols), i, codes[i] & 15);
    }
  });
}

void read_weight_row(const Linear& linear, WeightRead read, int row, float* out) {
  const int cols = linear.inputs();
  if (read == WeightRead::kFull) {
    const auto first = static_cast<std::size_t>(row) * cols;
    for (int i = 0; i < cols; ++i) {
      out[i] = load_f32(linear.full.data, linear.full.dtype, first + i);
    }
    return;
  }
  check(linear.upper != nullptr, "4-bit weights are read but no planes were made");
  check(read == WeightRead::kUpper || linear.lower != nullptr,
        "8-bit weights are read but only the upper plane was made");
  const auto* scales = reinterpret_cast<const GroupScale*>(linear.upper) + row * row_scales(cols);
  const std::byte* upper = linear.upper + linear.outputs() * row_scales(cols) * sizeof(GroupScale) +
                           row * row_bytes(cols);
  const std::byte* lower = linear.lower == nullptr ? nullptr : linear.lower + row * row_bytes(cols);
  for (int i = 0; i < cols; ++i) {
    const float scale = f16_to_f32(scales[i / kWeightGroup].scale);
    const float offset = f16_to_f32(scales[i / kWeightGroup].offset);
    const int high = nibble(upper, i);
    if (read == WeightRead::kUpper) {
      out[i] = draft_value(static_cast<std::uint8_t>(16 * high), scale, offset);
    } else {
      out[i] = target_value(static_cast<std::uint8_t>(16 * high + nibble(lower, i)), scale, offset);
    }
  }
}

}  // namespace quantspec::reference
