#include "quant/weight_format.h"

#include <algorithm>
#include <cmath>

namespace quantspec {

namespace {

// What a code stands for, before scale and offset.
float value_of(const WeightFormat& format, std::uint8_t code, bool upper_only) {
  if (format.table == CodeTable::kIq4) return kIq4Values[code & 15];
  if (format.table == CodeTable::kFp4) return kFp4Values[code & 15];
  if (!upper_only) return static_cast<float>(code - format.zero);
  const int cell = 1 << format.lower_bits();
  const int first = code & -cell;
  return static_cast<float>(first - format.zero) + static_cast<float>(cell - 1) / 2;
}

// Of the upper plane: four bits of a code, and parameters.
double upper_bytes(const WeightFormat& format) {
  const int numbers = format.has_offset ? 2 : 1;  // a scale, and an offset
  const double of_group = format.two_levels() ? numbers : 0;
  return 0.5 + 2.0 * numbers / format.block + of_group / format.group;
}

}  // namespace

double WeightBytes::of(WeightRead read) const {
  return read == WeightRead::kTarget ? target : read == WeightRead::kBoth ? both : upper;
}

WeightBytes weight_bytes(const WeightFormat& target, int draft_group) {
  const WeightFormat codes = target.dense() ? sliced_format(draft_group) : target;
  const double upper = upper_bytes(codes), both = upper + codes.lower_bits() / 8.0;
  if (!target.dense()) return {upper, both, both, 0};
  return {upper, both, static_cast<double>(size_of(target.dtype)), upper};
}

RowBuffer::RowBuffer(const WeightFormat& format, int cols)
    : codes(static_cast<std::size_t>(cols)),
      scales(static_cast<std::size_t>(format.blocks(cols))),
      sub_scales(format.two_levels() ? static_cast<std::size_t>(format.groups(cols)) : 0),
      sub_offsets(sub_scales.size()) {}

GroupValues group_values(const WeightFormat& format, const RowCodes& row, int group) {
  const GroupScale block = row.scales[group * format.group / format.block];
  float scale = f16_to_f32(block.scale);
  float offset = format.has_offset ? f16_to_f32(block.offset) : 0.0f;
  if (format.two_levels()) {
    scale *= static_cast<float>(row.sub_scales[group]);
    if (format.has_offset) offset = -(offset * static_cast<float>(row.sub_offsets[group]));
  }
  return {std::ldexp(scale, format.exponent), offset};
}

void decode_row(const WeightFormat& format, int cols, const RowCodes& row, bool upper_only,
                float* out) {
  for (int group = 0; group < format.groups(cols); ++group) {
    const auto [scale, offset] = group_values(format, row, group);
    const int first = group * format.group;
    for (int i = first; i < std::min(cols, first + format.group); ++i) {
      const float weight = scale * value_of(format, row.codes[i], upper_only);
      out[i] = format.has_offset ? weight + offset : weight;
    }
  }
}

}  // namespace quantspec
