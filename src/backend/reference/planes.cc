#include <cstring>

#include "backend/reference/ops.h"
#include "base/error.h"

namespace quantspec::reference {

namespace {

std::size_t row_bytes(int cols) { return (static_cast<std::size_t>(cols) + 1) / 2; }
std::size_t row_scales(int cols, int group) {
  return static_cast<std::size_t>(weight_groups(cols, group));
}

int nibble(const std::byte* row, int col) {
  return std::to_integer<int>(row[col / 2]) >> (col % 2 == 0 ? 0 : 4) & 15;
}

// The byte at which column `col` lies, with the nibble of `col` set. REQUIRES: it was 0.
void set_nibble(std::byte* row, int col, int nibble) {
  row[col / 2] |= std::byte(nibble << (col % 2 == 0 ? 0 : 4));
}

}  // namespace

std::size_t upper_plane_bytes(int rows, int cols, int group) {
  return rows * (row_scales(cols, group) * sizeof(GroupScale) + row_bytes(cols));
}
std::size_t lower_plane_bytes(int rows, int cols) { return rows * row_bytes(cols); }

void encode_planes(ThreadPool& pool, const TensorView& full, std::byte* upper, std::byte* lower) {
  const int cols = full.cols;
  const std::size_t groups = row_scales(cols, kWeightGroup);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(full.rows) * cols);
  std::vector<GroupScale> scales(full.rows * groups);
  pool.parallel_for(full.rows, [&](std::int64_t row, int) {
    std::vector<float> values(cols);
    for (int i = 0; i < cols; ++i) values[i] = load_f32(full.data, full.dtype, row * cols + i);
    encode_weight_row(values.data(), cols, &codes[row * cols], &scales[row * groups]);
  });
  store_planes({full.rows, cols, kWeightGroup, codes.data(), scales.data()}, upper, lower);
}

void store_planes(const CodedMatrix& coded, std::byte* upper, std::byte* lower) {
  const std::size_t scale_bytes =
      coded.rows * row_scales(coded.cols, coded.group) * sizeof(GroupScale);
  const std::size_t bytes = row_bytes(coded.cols);
  std::memcpy(upper, coded.scales, scale_bytes);
  std::byte* nibbles = upper + scale_bytes;
  std::memset(nibbles, 0, coded.rows * bytes);
  if (lower != nullptr) std::memset(lower, 0, coded.rows * bytes);
  for (int row = 0; row < coded.rows; ++row) {
    const std::uint8_t* codes = coded.codes + static_cast<std::size_t>(row) * coded.cols;
    for (int i = 0; i < coded.cols; ++i) {
      set_nibble(nibbles + row * bytes, i, codes[i] >> 4);
      if (lower != nullptr) set_nibble(lower + row * bytes, i, codes[i] & 15);
    }
  }
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
  const std::size_t groups = row_scales(cols, linear.group);
  const auto* scales = reinterpret_cast<const GroupScale*>(linear.upper) + row * groups;
  const std::byte* upper =
      linear.upper + linear.outputs() * groups * sizeof(GroupScale) + row * row_bytes(cols);
  const std::byte* lower = linear.lower == nullptr ? nullptr : linear.lower + row * row_bytes(cols);
  for (int i = 0; i < cols; ++i) {
    const float scale = f16_to_f32(scales[i / linear.group].scale);
    const float offset = f16_to_f32(scales[i / linear.group].offset);
    const int high = nibble(upper, i);
    if (read == WeightRead::kUpper) {
      out[i] = draft_value(static_cast<std::uint8_t>(16 * high), scale, offset);
    } else {
      out[i] = target_value(static_cast<std::uint8_t>(16 * high + nibble(lower, i)), scale, offset);
    }
  }
}

}  // namespace quantspec::reference
