#include <cstring>

#include "backend/reference/ops.h"
#include "base/error.h"
#include "quant/encode_row.h"

namespace quantspec::reference {

namespace {

// Where the parts of a row lie in its share of the upper plane.
struct RowParts {
  std::size_t sub_scales;
  std::size_t sub_offsets;
  std::size_t nibbles;
  std::size_t bytes;

  RowParts(const WeightFormat& format, int cols) {
    const std::size_t subs = format.two_levels() ? format.groups(cols) : 0;
    sub_scales = format.blocks(cols) * sizeof(GroupScale);
    sub_offsets = sub_scales + subs;
    nibbles = sub_offsets + subs;
    bytes = (nibbles + (cols + 1) / 2 + 1) / 2 * 2;
  }
};
std::size_t lower_row_bytes(int cols) { return (static_cast<std::size_t>(cols) + 1) / 2; }

int nibble(const std::byte* row, int col) {
  return std::to_integer<int>(row[col / 2]) >> (col % 2 == 0 ? 0 : 4) & 15;
}

// The byte at which column `col` lies, with the nibble of `col` set. REQUIRES: it was 0.
void set_nibble(std::byte* row, int col, int nibble) {
  row[col / 2] |= std::byte(nibble << (col % 2 == 0 ? 0 : 4));
}

void store_row(const WeightFormat& format, int cols, RowBuffer& row, std::byte* upper,
               std::byte* lower) {
  const RowParts parts(format, cols);
  const int rest = format.lower_bits();
  std::memset(upper, 0, parts.bytes);
  std::memcpy(upper, row.scales.data(), parts.sub_scales);
  if (format.two_levels()) {
    std::memcpy(upper + parts.sub_scales, row.sub_scales.data(), row.sub_scales.size());
    std::memcpy(upper + parts.sub_offsets, row.sub_offsets.data(), row.sub_offsets.size());
  }
  if (lower != nullptr) std::memset(lower, 0, lower_row_bytes(cols));
  for (int i = 0; i < cols; ++i) {
    set_nibble(upper + parts.nibbles, i, row.codes[i] >> rest);
    if (lower != nullptr) set_nibble(lower, i, row.codes[i] & ((1 << rest) - 1));
  }
}

}  // namespace

std::size_t upper_plane_bytes(int rows, int cols, const WeightFormat& format) {
  return rows * RowParts(format, cols).bytes;
}
std::size_t lower_plane_bytes(int rows, int cols, const WeightFormat& format) {
  return format.lower_bits() == 0 ? 0 : rows * lower_row_bytes(cols);
}

void store_planes(ThreadPool& pool, const CodedMatrix& coded, std::byte* upper, std::byte* lower) {
  const std::size_t upper_bytes = RowParts(coded.format, coded.cols).bytes;
  pool.parallel_for(coded.rows, [&](std::int64_t row, int) {
    RowBuffer codes(coded.format, coded.cols);
    coded.read(static_cast<int>(row), codes.view());
    store_row(coded.format, coded.cols, codes, upper + row * upper_bytes,
              lower == nullptr ? nullptr : lower + row * lower_row_bytes(coded.cols));
  });
}

void encode_planes(ThreadPool& pool, const Matrix& elements, const WeightFormat& format,
                   std::byte* upper, std::byte* lower) {
  const int cols = elements.cols;
  const auto encode = [&](int row, const RowCodes& out) {
    std::vector<float> values(cols);
    read_row(elements, WeightRead::kTarget, row, values.data());
    encode_row(format, cols, values.data(), out);
  };
  store_planes(pool, {format, elements.rows, cols, encode}, upper, lower);
}

void read_row(const Matrix& matrix, WeightRead read, int row, float* out) {
  const int cols = matrix.cols;
  const WeightFormat& format = matrix.format;
  if (format.dense()) {
    const auto first = static_cast<std::size_t>(row) * cols;
    for (int i = 0; i < cols; ++i) out[i] = load_f32(matrix.data, format.dtype, first + i);
    return;
  }
  const RowParts parts(format, cols);
  const auto* upper = static_cast<const std::byte*>(matrix.data) + row * parts.bytes;
  RowBuffer codes(format, cols);
  std::memcpy(codes.scales.data(), upper, parts.sub_scales);
  if (format.two_levels()) {
    std::memcpy(codes.sub_scales.data(), upper + parts.sub_scales, codes.sub_scales.size());
    std::memcpy(codes.sub_offsets.data(), upper + parts.sub_offsets, codes.sub_offsets.size());
  }
  const auto* lower = matrix.lower == nullptr ? nullptr
                                              : static_cast<const std::byte*>(matrix.lower) +
                                                    row * lower_row_bytes(cols);
  for (int i = 0; i < cols; ++i) {
    const int low = lower == nullptr ? 0 : nibble(lower, i);
    const int high = nibble(upper + parts.nibbles, i);
    codes.codes[i] = static_cast<std::uint8_t>(high << format.lower_bits() | low);
  }
  decode_row(format, cols, codes.view(), read == WeightRead::kUpper, out);
}

}  // namespace quantspec::reference
