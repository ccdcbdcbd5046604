#include "quant/encode_row.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/dtype.h"
#include "base/error.h"
#include "quant/fit-inl.h"

namespace quantspec {

namespace {

constexpr int kBlockGroups = 8;

// Groups of a block: what was fitted comes in, what is kept goes out.
struct Block {
  std::span<const float> scales;
  std::span<const float> offsets;
  std::int8_t* sub_scales;
  std::uint8_t* sub_offsets;
};

GroupScale store_parameters(const Block& block) {
  const auto is_finite = [](float x) { return std::isfinite(x); };
  const std::size_t groups = block.scales.size();
  std::fill_n(block.sub_scales, groups, std::int8_t{0});
  std::fill_n(block.sub_offsets, groups, std::uint8_t{0});
  if (!std::ranges::all_of(block.scales, is_finite)) return {kF16Nan, kF16Nan};

  const auto [least, most] = std::ranges::minmax(block.offsets);
  const bool positive = least > 0.0f;
  const std::uint16_t offset =
      block_parameter(positive ? most : std::max(-least, 0.0f), kMostSubOffset);
  const float unit = f16_to_f32(offset);
  float needed[kBlockGroups], greatest = 0.0f;
  for (std::size_t g = 0; g < groups; ++g) {
    const float units = unit > 0.0f ? block.offsets[g] / unit : 0.0f;
    // Down: to what is less, or in size more.
    const float sub = std::clamp(positive ? std::floor(units) : std::ceil(-units), 0.0f,
                                 static_cast<float>(kMostSubOffset));
    block.sub_offsets[g] = static_cast<std::uint8_t>(sub);
    const float kept = positive ? unit * sub : -(unit * sub);
    needed[g] = block.scales[g] + std::max(block.offsets[g] - kept, 0.0f) / 255.0f;
    greatest = std::max(greatest, needed[g]);
  }
  const std::uint16_t scale = block_parameter(greatest, kMostSubScale);
  const float step = f16_to_f32(scale);
  for (std::size_t g = 0; g < groups && step > 0.0f; ++g) {
    block.sub_scales[g] = static_cast<std::int8_t>(
        std::min(std::ceil(needed[g] / step), static_cast<float>(kMostSubScale)));
  }
  // Offsets are kept with their signs turned (weight_format.h).
  return {scale, static_cast<std::uint16_t>(positive ? offset | 0x8000 : offset)};
}

// Parameters of `groups` groups, a block after another, and their codes. The last group may end
// before its time.
void encode_groups(const WeightFormat& format, int cols, const float* row, int first, int groups,
                   const float* scales, const float* offsets, const RowCodes& out,
                   const EncodeKernels& kernels) {
  for (int g = first; g < first + groups; g += kBlockGroups) {
    const auto count = static_cast<std::size_t>(std::min(kBlockGroups, first + groups - g));
    out.scales[g / kBlockGroups] = store_parameters({{scales + (g - first), count},
                                                     {offsets + (g - first), count},
                                                     out.sub_scales + g,
                                                     out.sub_offsets + g});
  }
  for (int g = first; g < first + groups; ++g) {
    const auto [scale, offset] = group_values(format, out, g);
    const int from = g * format.group, count = std::min(format.group, cols - from);
    if (scale > 0.0f) {
      kernels.encode_codes(row + from, count, scale, offset, out.codes + from);
    } else {
      std::fill_n(out.codes + from, count, std::uint8_t{0});
    }
  }
}

void encode_two_levels(const WeightFormat& format, int cols, const float* row, const RowCodes& out,
                       const EncodeKernels& kernels) {
  static_assert(kFitGroups % kBlockGroups == 0);
  for (int first = 0; first < format.groups(cols); first += kFitGroups) {
    const float* from = row + first * kFitInputs;
    const int inputs = std::min(kFitGroups * kFitInputs, cols - first * kFitInputs);
    const int whole = inputs / kFitInputs, rest = inputs % kFitInputs;
    float scales[kFitGroups], offsets[kFitGroups];
    if (whole > 0) kernels.fit_groups(from, whole, kFitInputs, scales, offsets);
    if (rest > 0) {
      kernels.fit_groups(from + whole * kFitInputs, 1, rest, scales + whole, offsets + whole);
    }
    encode_groups(format, cols, row, first, whole + (rest > 0 ? 1 : 0), scales, offsets, out,
                  kernels);
  }
}

}  // namespace

const EncodeKernels kPortableEncode = {fit_groups, encode_codes};

// The least fp16 that is not less.
std::uint16_t block_parameter(float most, int most_sub) {
  const float wanted = std::min(most / static_cast<float>(most_sub), kF16Max);
  const std::uint16_t half = f32_to_f16(wanted);
  return f16_to_f32(half) < wanted ? half + 1 : half;
}

void encode_row(const WeightFormat& format, int cols, const float* row, const RowCodes& out,
                const EncodeKernels& kernels) {
  check(is_sliced(format), "elements become codes of 8 bits");
  if (format.two_levels()) return encode_two_levels(format, cols, row, out, kernels);
  for (int first = 0; first < cols; first += format.group) {
    out.scales[first / format.group] =
        quantize_group(row + first, 1, std::min(format.group, cols - first), out.codes + first, 1);
  }
}

}  // namespace quantspec
