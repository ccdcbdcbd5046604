#include "quant/quant.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/dtype.h"

namespace quantspec {

namespace {

bool has_codes(float scale) { return scale > 0.0f; }

// Two codes to a byte: nibble `index % 2` of byte `index / 2`.
void store_nibble(std::byte* plane, std::size_t index, int nibble) {
  const int shift = index % 2 == 0 ? 0 : 4;
  plane[index / 2] = (plane[index / 2] & std::byte(0xf0 >> shift)) | std::byte(nibble << shift);
}
int load_nibble(const std::byte* plane, std::size_t index) {
  return std::to_integer<int>(plane[index / 2]) >> (index % 2 == 0 ? 0 : 4) & 15;
}

void store_codes(const std::uint8_t* codes, std::size_t count, std::byte* upper, std::byte* lower) {
  for (std::size_t i = 0; i < count; ++i) {
    store_nibble(upper, i, codes[i] >> 4);
    store_nibble(lower, i, codes[i] & 15);
  }
}

float read_value(const std::byte* upper, const std::byte* lower, KvRead read, std::size_t index,
                 std::uint16_t scale, std::uint16_t offset) {
  const int code =
      load_nibble(upper, index) * 16 + (read == KvRead::kBoth ? load_nibble(lower, index) : 0);
  const auto byte = static_cast<std::uint8_t>(code);
  return read == KvRead::kBoth ? target_value(byte, f16_to_f32(scale), f16_to_f32(offset))
                               : draft_value(byte, f16_to_f32(scale), f16_to_f32(offset));
}

}  // namespace

GroupScale group_scale(float min, float max, bool finite) {
  if (!finite) return {kF16Nan, kF16Nan};
  // NOTE: halved before subtracting, so that no finite group overflows fp32.
  const float exact = (max * 0.5f - min * 0.5f) / ((255 - 2 * kCodeMargin) * 0.5f);
  const std::uint16_t scale = f32_to_f16(std::min(exact, kF16Max));
  const float margin = static_cast<float>(kCodeMargin) * f16_to_f32(scale);
  // NOTE: adding 0 makes -0 +0, so that the order in which zeros are compared does not matter.
  return {scale, f32_to_f16(std::clamp(min - margin + 0.0f, -kF16Max, kF16Max))};
}

std::uint8_t encode(float x, float scale, float offset) {
  if (!has_codes(scale)) return 0;
  const float code = std::clamp((x - offset) / scale, 0.0f, 255.0f);
  // NOTE: fp32 has no fractions from 2^23 on, so the sum is rounded to the nearest integer, ties to
  // even. std::nearbyint() is a call where the processor may lack SSE4.1, and takes as long as all
  // else here.
  return static_cast<std::uint8_t>((code + 0x1p23f) - 0x1p23f);
}

GroupScale quantize_group(const float* x, std::ptrdiff_t stride, int count, std::uint8_t* codes,
                          std::ptrdiff_t code_stride) {
  float min = x[0], max = x[0];
  bool finite = true;
  for (int i = 0; i < count; ++i) {
    finite = finite && std::isfinite(x[i * stride]);
    min = std::min(min, x[i * stride]);
    max = std::max(max, x[i * stride]);
  }
  const GroupScale group = group_scale(min, max, finite);
  for (int i = 0; i < count; ++i) {
    codes[i * code_stride] =
        encode(x[i * stride], f16_to_f32(group.scale), f16_to_f32(group.offset));
  }
  return group;
}

UnitPlanes unit_planes(const KvShape& shape, std::byte* unit) {
  return {unit, unit + shape.plane_bytes()};
}

UnitScales unit_scales(const KvShape& shape, std::byte* upper_unit) {
  auto* key_scale = reinterpret_cast<std::uint16_t*>(upper_unit + 2 * shape.plane_bytes());
  std::uint16_t* value_scale = key_scale + 2 * shape.head_dim;
  return {key_scale, key_scale + shape.head_dim, value_scale,
          value_scale + static_cast<std::size_t>(shape.page_size) * shape.value_groups()};
}

void encode_unit(const KvShape& shape, const float* keys, const float* values, std::byte* upper,
                 std::byte* lower) {
  const int dim = shape.head_dim;
  const std::size_t count = static_cast<std::size_t>(shape.page_size) * dim;
  std::vector<std::uint8_t> codes(count);
  const UnitScales scales = unit_scales(shape, upper);
  for (int c = 0; c < dim; ++c) {
    const GroupScale group = quantize_group(keys + c, dim, shape.page_size, &codes[c], dim);
    scales.key_scale[c] = group.scale;
    scales.key_offset[c] = group.offset;
  }
  store_codes(codes.data(), count, unit_planes(shape, upper).keys, unit_planes(shape, lower).keys);
  for (int t = 0; t < shape.page_size; ++t) {
    for (int g = 0; g < shape.value_groups(); ++g) {
      const std::size_t first = static_cast<std::size_t>(t) * dim + g * kValueGroup;
      const int channels = std::min(kValueGroup, dim - g * kValueGroup);
      const GroupScale group = quantize_group(values + first, 1, channels, &codes[first], 1);
      scales.value_scale[t * shape.value_groups() + g] = group.scale;
      scales.value_offset[t * shape.value_groups() + g] = group.offset;
    }
  }
  store_codes(codes.data(), count, unit_planes(shape, upper).values,
              unit_planes(shape, lower).values);
}

void decode_unit(const KvShape& shape, const std::byte* upper, const std::byte* lower, KvRead read,
                 float* keys, float* values) {
  // The layout helpers serve writers too; nothing is written here.
  auto* upper_unit = const_cast<std::byte*>(upper);
  auto* lower_unit = const_cast<std::byte*>(lower);
  const UnitPlanes u = unit_planes(shape, upper_unit);
  const UnitPlanes l = read == KvRead::kBoth ? unit_planes(shape, lower_unit) : u;
  const UnitScales s = unit_scales(shape, upper_unit);
  for (int t = 0; t < shape.page_size; ++t) {
    for (int c = 0; c < shape.head_dim; ++c) {
      const std::size_t i = static_cast<std::size_t>(t) * shape.head_dim + c;
      const int g = t * shape.value_groups() + c / kValueGroup;
      keys[i] = read_value(u.keys, l.keys, read, i, s.key_scale[c], s.key_offset[c]);
      values[i] = read_value(u.values, l.values, read, i, s.value_scale[g], s.value_offset[g]);
    }
  }
}

}  // namespace quantspec
