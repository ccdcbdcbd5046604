// Element types of checkpoints and caches, and their conversions to fp32 (IEEE, round to nearest
// even). Scalar and exact: the definition that every vector kernel is tested against.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quantspec {

enum class DType : std::uint8_t { kF32, kF16, kBF16 };

constexpr std::size_t size_of(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
constexpr std::string_view name_of(DType dtype) {
  return dtype == DType::kF32 ? "fp32" : dtype == DType::kF16 ? "fp16" : "bf16";
}

inline constexpr float kF16Max = 65504.0f;         // the greatest fp16 that is finite
inline constexpr std::uint16_t kF16Nan = 0x7e00u;  // the NaN that f32_to_f16() makes of one

constexpr float bf16_to_f32(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

constexpr float f16_to_f32(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity or NaN
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  // A half is its bits, read as fp32 fraction and exponent, times 2^112: exact, subnormals too.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}

constexpr std::uint16_t f32_to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | kF16Nan;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // rounds to infinity: >= 65520
  if (magnitude < 0x38800000u) {                        // subnormal half: below 2^-14
    // Adding 0.5 puts the wanted bits at the end of the fraction, rounded to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u);
  }
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  return sign | static_cast<std::uint16_t>((magnitude - 0x38000000u + 0xfffu + odd) >> 13);
}

// Element `index` of an array of `dtype`, as fp32.
inline float load_f32(const void* data, DType dtype, std::size_t index) {
  const auto read16 = [&] {
    const auto* bytes = static_cast<const unsigned char*>(data) + 2 * index;
    return static_cast<std::uint16_t>(bytes[0] | (bytes[1] << 8));
  };
  switch (dtype) {
    case DType::kF16:
      return f16_to_f32(read16());
    case DType::kBF16:
      return bf16_to_f32(read16());
    case DType::kF32:
      break;
  }
  float value;
  __builtin_memcpy(&value, static_cast<const unsigned char*>(data) + 4 * index, 4);
  return value;
}

}  // namespace quantspec
