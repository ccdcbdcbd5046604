#include "prepare/quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "base/error.h"
#include "base/gemm.h"

namespace quantspec {

namespace {

constexpr int kColumns = 128;  // whose rounding reaches the rest at once
constexpr int kRowsPerTask = 64;
constexpr int kErrorRows = 64;  // that output_error looks at
// Shares of a group's range that are tried, and how often the line through them is fitted again.
constexpr float kLeastShare = 0.7f;
constexpr int kShares = 5;
constexpr int kRefits = 2;
constexpr float kMiddle = 127.5f;  // of a grid, in codes

std::vector<float> load_rows(const Matrix& weights, int first, int count, int step = 1) {
  std::vector<float> rows(static_cast<std::size_t>(count) * weights.cols);
  for (int r = 0; r < count; ++r) {
    const std::size_t from = static_cast<std::size_t>(first + r * step) * weights.cols;
    for (int c = 0; c < weights.cols; ++c) {
      rows[static_cast<std::size_t>(r) * weights.cols + c] =
          load_f32(weights.data, weights.format.dtype, from + c);
    }
  }
  return rows;
}

// What scales and offsets of a block's groups are multiples of, in two levels.
struct Steps {
  float scale;
  float offset;  // of offsets with their signs turned

  explicit Steps(const GroupScale& block)
      : scale(f16_to_f32(block.scale)), offset(f16_to_f32(block.offset)) {}
};

float rounded(float x) { return f16_to_f32(f32_to_f16(std::clamp(x, -kF16Max, kF16Max))); }

// The nearest multiple of `step`, of at most so many.
float nearest_multiple(float x, float step, int most) {
  if (!(step > 0.0f)) return 0.0f;
  return step * std::nearbyint(std::clamp(x / step, 0.0f, static_cast<float>(most)));
}

// The sixteen values of a group.
struct Grid {
  float scale;
  float offset;

  // With this middle, as nearly as can be kept: in fp16, or in steps of the block.
  Grid(float wanted_scale, float middle, const Steps* steps) {
    if (steps == nullptr) {
      scale = rounded(wanted_scale);
      offset = rounded(middle - kMiddle * scale);
    } else {
      // One step at least, or a group of few values beside a wide one would have none.
      scale = nearest_multiple(wanted_scale, steps->scale, kMostSubScale);
      if (wanted_scale > 0.0f) scale = std::max(scale, steps->scale);
      offset = -nearest_multiple(kMiddle * scale - middle, steps->offset, kMostSubOffset);
    }
  }
  int nibble(float w) const {
    if (!(scale > 0.0f)) return 0;
    const float u = ((w - offset) / scale - 7.5f) * (1.0f / 16.0f);
    return static_cast<int>(std::clamp(u, 0.0f, 15.0f) + 0.5f);
  }
  float value(int nibble) const {
    return draft_value(static_cast<std::uint8_t>(16 * nibble), scale, offset);
  }
};

// What a group's values span where nothing is cut off. In two levels offsets are kept as negative
// ones, so that values reach 0.
struct Extremes {
  float low;
  float high;

  Extremes(const float* w, int count, bool two_levels) {
    const auto [least, most] = std::minmax_element(w, w + count);
    low = two_levels ? std::min(*least, 0.0f) : *least;
    high = two_levels ? std::max(*most, 0.0f) : *most;
  }
  float scale() const { return (high - low) / (15.0f * 16.0f); }
  float offset() const { return 0.5f * (low + high) - kMiddle * scale(); }
};

// Weights of a row, each of whose errors counts by its input's mean square: diagonal[i * stride].
struct Weighed {
  const float* w;
  int count;
  const float* diagonal;
  std::ptrdiff_t stride;

  float error(const Grid& grid) const {
    float sum = 0.0f;
    for (int c = 0; c < count; ++c) {
      const float e = w[c] - grid.value(grid.nibble(w[c]));
      sum += diagonal[c * stride] * e * e;
    }
    return sum;
  }
  // The least-squares line through the weights where `grid` has them.
  Grid refit(const Grid& grid, const Steps* steps) const {
    float all = 0.0f, codes = 0.0f, squares = 0.0f, values = 0.0f, products = 0.0f;
    for (int c = 0; c < count; ++c) {
      const float d = diagonal[c * stride];
      const float code = 16.0f * (static_cast<float>(grid.nibble(w[c])) - 7.5f);
      all += d;
      codes += d * code;
      squares += d * code * code;
      values += d * w[c];
      products += d * code * w[c];
    }
    const float variance = squares - codes * codes / all;
    const float covariance = products - codes * values / all;
    if (!(variance > 0.0f) || !(covariance > 0.0f)) return grid;
    const float scale = covariance / variance;
    return {scale, (values - scale * codes) / all, steps};
  }
};

// The grid that errs least for some weights of a row.
Grid choose_grid(const Weighed& weights, const Steps* steps) {
  const Extremes extremes(weights.w, weights.count, steps != nullptr);
  const float middle = 0.5f * (extremes.low + extremes.high);
  Grid best(extremes.scale(), middle, steps);
  float least = std::numeric_limits<float>::max();
  const auto consider = [&](const Grid& grid) {
    const float error = weights.error(grid);
    if (!(error < least)) return;
    least = error;
    best = grid;
  };
  for (int i = 0; i < kShares; ++i) {
    const float share = 1.0f - (1.0f - kLeastShare) * static_cast<float>(i) / (kShares - 1);
    // Of two levels a range holds 0, and shrinks towards it, as offsets are of one sign there.
    Grid grid(share * extremes.scale(), steps != nullptr ? share * middle : middle, steps);
    consider(grid);
    for (int r = 0; r < kRefits; ++r) {
      grid = weights.refit(grid, steps);
      consider(grid);
    }
  }
  return best;
}

// The parameters of a block of `count` weights, so that each group can span its extremes. A grid
// rarely wants as much, which leaves room for what its columns have to make up for.
GroupScale choose_block(const WeightFormat& format, const float* w, int count) {
  float scale = 0.0f, offset = 0.0f;
  for (int first = 0; first < count; first += format.group) {
    const Extremes extremes(w + first, std::min(format.group, count - first), true);
    scale = std::max(scale, extremes.scale());
    offset = std::max(offset, -extremes.offset());
  }
  return {block_parameter(scale, kMostSubScale), block_parameter(offset, kMostSubOffset)};
}

// The grid of a group's columns, from c on, of which w has what is left to round. NOTE: what a
// block's groups have in common is chosen at its first column, and the rest of a group's parameters
// at its own, so that they fit what earlier columns have left to it.
Grid begin_group(const Gram& inputs, int c, const float* w, const WeightFormat& format,
                 const RowCodes& out) {
  const int cols = inputs.size(), group = c / format.group;
  GroupScale& stored = out.scales[c / format.block];
  const bool two_levels = format.two_levels();
  if (two_levels && c % format.block == 0) {
    stored = choose_block(format, w + c, std::min(format.block, cols - c));
  }
  const Steps steps(stored);
  const Weighed weights{w + c, std::min(format.group, cols - c),
                        inputs.data() + static_cast<std::size_t>(c) * (cols + 1), cols + 1};
  const Grid grid = choose_grid(weights, two_levels ? &steps : nullptr);
  if (!two_levels) {
    stored = {f32_to_f16(grid.scale), f32_to_f16(grid.offset)};
  } else {
    const auto multiple = [](float x, float step) { return step > 0.0f ? x / step + 0.5f : 0.0f; };
    out.sub_scales[group] = static_cast<std::int8_t>(multiple(grid.scale, steps.scale));
    out.sub_offsets[group] = static_cast<std::uint8_t>(multiple(-grid.offset, steps.offset));
  }
  return grid;
}

// GPTQ of one row within some columns; w: the row, which it changes up to the last of them;
// errors: [kColumns], what the columns behind make up for.
void round_columns(const Gram& inputs, const std::vector<float>& factor, int first, int last,
                   float* w, const WeightFormat& format, const RowCodes& out, float* errors) {
  const int cols = inputs.size();
  Grid grid(0.0f, 0.0f, nullptr);
  for (int c = first; c < last; ++c) {
    if (c % format.group == 0) grid = begin_group(inputs, c, w, format, out);
    const int nibble = grid.nibble(w[c]);
    out.codes[c] = static_cast<std::uint8_t>(16 * nibble + 8);
    const float* u = &factor[static_cast<std::size_t>(c) * cols];
    const float error = (w[c] - grid.value(nibble)) / u[c];
    errors[c - first] = error;
    for (int j = c + 1; j < last; ++j) w[j] -= error * u[j];
  }
}

}  // namespace

Codes::Codes(int rows, int cols, const WeightFormat& format)
    : rows(rows),
      cols(cols),
      format(format),
      codes(static_cast<std::size_t>(rows) * cols),
      scales(static_cast<std::size_t>(rows) * format.blocks(cols)),
      sub_scales(format.two_levels() ? static_cast<std::size_t>(rows) * format.groups(cols) : 0),
      sub_offsets(sub_scales.size()) {}

RowCodes Codes::row(int row) {
  const auto first = static_cast<std::size_t>(row);
  const std::size_t subs = format.two_levels() ? first * format.groups(cols) : 0;
  return {codes.data() + first * cols, scales.data() + first * format.blocks(cols),
          sub_scales.data() + subs, sub_offsets.data() + subs};
}

CodedMatrix Codes::view() const {
  return {format, rows, cols, [this](int row, const RowCodes& out) {
            const auto copy = [row](const auto& from, int count, auto* to) {
              std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(row) * count, count, to);
            };
            copy(codes, cols, out.codes);
            copy(scales, format.blocks(cols), out.scales);
            if (!format.two_levels()) return;
            copy(sub_scales, format.groups(cols), out.sub_scales);
            copy(sub_offsets, format.groups(cols), out.sub_offsets);
          }};
}

Codes round_to_nearest(ThreadPool& pool, const Matrix& weights, const RowEncoder& encoder) {
  Codes out(weights.rows, weights.cols, encoder.format);
  pool.parallel_for(weights.rows, [&](std::int64_t row, int) {
    const std::vector<float> w = load_rows(weights, static_cast<int>(row), 1);
    encoder.encode(weights.cols, w.data(), out.row(static_cast<int>(row)));
  });
  return out;
}

Codes gptq(ThreadPool& pool, const Matrix& weights, const WeightFormat& format, const Gram& inputs,
           const std::vector<float>& factor) {
  check(kColumns % format.group == 0 && inputs.size() == weights.cols,
        "GPTQ gets groups that fill its columns");
  const int cols = weights.cols;
  Codes out(weights.rows, cols, format);
  pool.parallel_for((weights.rows + kRowsPerTask - 1) / kRowsPerTask, [&](std::int64_t task, int) {
    const int first_row = static_cast<int>(task) * kRowsPerTask;
    const int rows = std::min(kRowsPerTask, weights.rows - first_row);
    std::vector<float> w = load_rows(weights, first_row, rows);
    std::vector<float> errors(static_cast<std::size_t>(rows) * kColumns);
    for (int first = 0; first < cols; first += kColumns) {
      const int last = std::min(cols, first + kColumns);
      for (int r = 0; r < rows; ++r) {
        round_columns(inputs, factor, first, last, &w[static_cast<std::size_t>(r) * cols], format,
                      out.row(first_row + r), &errors[static_cast<std::size_t>(r) * kColumns]);
      }
      if (last == cols) break;
      gemm({.m = rows,
            .n = cols - last,
            .k = last - first,
            .alpha = -1.0f,
            .a = errors.data(),
            .lda = kColumns,
            .b = &factor[static_cast<std::size_t>(first) * cols + last],
            .ldb = cols,
            .c = &w[last],
            .ldc = cols});
    }
  });
  return out;
}

double output_error(ThreadPool& pool, const Matrix& weights, const CodedMatrix& coded,
                    const Gram& inputs) {
  const int cols = weights.cols;
  const int rows = std::min(kErrorRows, weights.rows);
  const int step = weights.rows / rows;
  std::vector<double> errors(rows), powers(rows);
  pool.parallel_for(rows, [&](std::int64_t r, int) {
    const int row = static_cast<int>(r) * step;
    const std::vector<float> w = load_rows(weights, row, 1);
    std::vector<float> e(w), drafted(cols);
    RowBuffer codes(coded.format, cols);
    coded.read(row, codes.view());
    decode_row(coded.format, cols, codes.view(), true, drafted.data());
    for (int c = 0; c < cols; ++c) e[c] -= drafted[c];
    // x^T H x
    const auto power = [&](const std::vector<float>& x) {
      double sum = 0.0;
      for (int i = 0; i < cols; ++i) {
        const float* h = inputs.data() + static_cast<std::size_t>(i) * cols;
        float dot = 0.0f;
        for (int j = 0; j < cols; ++j) dot += h[j] * x[j];
        sum += double{x[i]} * dot;
      }
      return sum;
    };
    errors[r] = power(e);
    powers[r] = power(w);
  });
  double error = 0.0, all = 0.0;
  for (int r = 0; r < rows; ++r) {
    error += errors[r];
    all += powers[r];
  }
  return all > 0.0 ? error / all : 0.0;
}

}  // namespace quantspec
