// For tests, of other rooms too: formats of quantized weights, and random matrices in them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "quant/weight_format.h"

namespace quantspec {

// Every kind of format that a backend reads.
struct NamedFormat {
  const char* name;
  WeightFormat format;
  double file_bits;  // of a weight in its file; 0: it has none

  // Whether a file or a draft store can have it by now. A GPU has kernels for those alone.
  constexpr bool is_made() const {
    return is_sliced(format) || format.two_levels() || format.group == 32;
  }
};
inline void PrintTo(const NamedFormat& format, std::ostream* out) { *out << format.name; }

inline const NamedFormat kNamedFormats[] = {
    {"Sliced32", sliced_format(32), 0},
    {"Sliced64", sliced_format(64), 0},
    {"Sliced128", sliced_format(128), 0},
    {"Q4_0", {.bits = 4, .group = 32, .block = 32, .zero = 8}, 4.5},
    {"Q4_1", {.bits = 4, .group = 32, .block = 32, .has_offset = true}, 5.0},
    {"Q5_0", {.bits = 5, .group = 32, .block = 32, .zero = 16}, 5.5},
    {"Q5_1", {.bits = 5, .group = 32, .block = 32, .has_offset = true}, 6.0},
    {"Q8_0", {.bits = 8, .group = 32, .block = 32, .zero = 128}, 8.5},
    {"Q2_K", {.bits = 4, .group = 16, .block = 256, .has_offset = true}, 0},
    {"Q3_K", {.bits = 4, .group = 16, .block = 256, .zero = 4}, 0},
    {"Q4_K", {.bits = 4, .group = 32, .block = 256, .has_offset = true}, 4.5},
    {"Q5_K", {.bits = 5, .group = 32, .block = 256, .has_offset = true}, 5.5},
    {"Q6_K", {.bits = 6, .group = 16, .block = 256, .zero = 32}, 6.5625},
    {"IQ4_NL", {.bits = 4, .group = 32, .block = 32, .table = CodeTable::kIq4}, 4.5},
    {"IQ4_XS", {.bits = 4, .group = 32, .block = 256, .table = CodeTable::kIq4}, 4.25},
    {"MXFP4", {.bits = 4, .group = 32, .block = 32, .table = CodeTable::kFp4, .exponent = -12}, 0},
    {"NVFP4", {.bits = 4, .group = 16, .block = 16, .table = CodeTable::kFp4}, 0},
    {"Mlx4g64", {.bits = 4, .group = 64, .block = 64, .has_offset = true}, 0},
    {"Mlx5g128", {.bits = 5, .group = 128, .block = 128, .has_offset = true}, 0},
    {"Mlx6g64", {.bits = 6, .group = 64, .block = 64, .has_offset = true}, 0},
    {"Int4g128", {.bits = 4, .group = 128, .block = 128, .zero = 8}, 0},
    {"Int8g128", {.bits = 8, .group = 128, .block = 128, .zero = 128}, 0},
};

// Random rows as a file may have them: scales of either sign, zero and subnormal ones among them.
struct RandomCodes {
  RandomCodes(const WeightFormat& weight_format, int num_rows, int num_cols, unsigned seed)
      : format(weight_format), cols(num_cols), rng(seed) {
    for (int row = 0; row < num_rows; ++row) rows.push_back(random_row());
  }

  std::uint16_t half(double sigma) {
    const int kind = std::uniform_int_distribution<int>(0, 19)(rng);
    if (kind == 0) return 0;
    if (kind == 1) return 3;  // subnormal
    return f32_to_f16(static_cast<float>(sigma * std::normal_distribution<double>()(rng)));
  }
  RowBuffer random_row() {
    RowBuffer row(format, cols);
    std::uniform_int_distribution<int> byte(0, 255);
    for (auto& code : row.codes) code = static_cast<std::uint8_t>(byte(rng) >> (8 - format.bits));
    const double sub = format.two_levels() ? 30.0 : 1.0;
    for (auto& scale : row.scales) scale = {half(0.02 / sub), half(0.1 / sub)};
    for (auto& scale : row.sub_scales) scale = static_cast<std::int8_t>(byte(rng));
    for (auto& offset : row.sub_offsets) offset = static_cast<std::uint8_t>(byte(rng));
    return row;
  }
  CodedMatrix matrix() {
    return {format, static_cast<int>(rows.size()), cols, [this](int row, const RowCodes& out) {
              RowBuffer& from = rows[row];
              std::copy(from.codes.begin(), from.codes.end(), out.codes);
              std::copy(from.scales.begin(), from.scales.end(), out.scales);
              std::copy(from.sub_scales.begin(), from.sub_scales.end(), out.sub_scales);
              std::copy(from.sub_offsets.begin(), from.sub_offsets.end(), out.sub_offsets);
            }};
  }
  std::vector<float> weights(int row, bool upper_only = false) {
    std::vector<float> out(cols);
    decode_row(format, cols, rows[row].view(), upper_only, out.data());
    return out;
  }

  WeightFormat format;
  int cols;
  std::mt19937 rng;
  std::vector<RowBuffer> rows;
};

}  // namespace quantspec
