#include "prepare/quantize.h"

#include <algorithm>
#include <limits>

#include "base/dtype.h"
#include "base/error.h"
#include "base/gemm.h"

namespace quantspec {

namespace {

constexpr int kBlock = 128;  // columns whose rounding reaches the rest at once
constexpr int kRowsPerTask = 64;
constexpr int kErrorRows = 64;  // that output_error looks at
// Shares of a group's range that are tried.
constexpr float kLeastShare = 0.6f;
constexpr int kShares = 17;

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

// The sixteen values of a group.
struct Grid {
  GroupScale stored;
  float scale;
  float offset;

  // Spans [low, high], but for the rounding to fp16. All of one value: low.
  Grid(float low, float high) {
    stored.scale = f32_to_f16((high - low) / (15.0f * 16.0f));
    scale = f16_to_f32(stored.scale);
    stored.offset = f32_to_f16(std::clamp(low - 7.5f * scale, -65504.0f, 65504.0f));
    offset = f16_to_f32(stored.offset);
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

// The grid for some weights of a row that errs least, each weight's error counted by its input's
// mean square: diagonal[i * stride].
Grid choose_grid(const float* w, int count, const float* diagonal, std::ptrdiff_t stride) {
  const auto [low, high] = std::minmax_element(w, w + count);
  Grid best(*low, *high);
  float least = std::numeric_limits<float>::max();
  for (int i = 0; i < kShares; ++i) {
    const float share = 1.0f - (1.0f - kLeastShare) * static_cast<float>(i) / (kShares - 1);
    const Grid grid(share * *low, share * *high);
    float error = 0.0f;
    for (int c = 0; c < count; ++c) {
      const float e = w[c] - grid.value(grid.nibble(w[c]));
      error += diagonal[c * stride] * e * e;
    }
    if (error < least) {
      least = error;
      best = grid;
    }
  }
  return best;
}

// GPTQ of one row within one block of columns; w: the row, which it changes up to the block's end;
// errors: [kBlock], what the columns behind the block make up for.
void round_block(const Gram& inputs, const std::vector<float>& factor, int first, int last,
                 float* w, Codes& out, int row, float* errors) {
  const int cols = inputs.size();
  const int groups = weight_groups(cols, out.group);
  Grid grid(0.0f, 0.0f);
  for (int c = first; c < last; ++c) {
    if (c % out.group == 0) {
      grid = choose_grid(w + c, std::min(out.group, cols - c),
                         inputs.data() + static_cast<std::size_t>(c) * (cols + 1), cols + 1);
      out.scales[static_cast<std::size_t>(row) * groups + c / out.group] = grid.stored;
    }
    const int nibble = grid.nibble(w[c]);
    out.codes[static_cast<std::size_t>(row) * cols + c] =
        static_cast<std::uint8_t>(16 * nibble + 8);
    const float* u = &factor[static_cast<std::size_t>(c) * cols];
    const float error = (w[c] - grid.value(nibble)) / u[c];
    errors[c - first] = error;
    for (int j = c + 1; j < last; ++j) w[j] -= error * u[j];
  }
}

}  // namespace

Codes::Codes(int rows, int cols, int group)
    : rows(rows),
      cols(cols),
      group(group),
      codes(static_cast<std::size_t>(rows) * cols),
      scales(static_cast<std::size_t>(rows) * weight_groups(cols, group)) {}

CodedMatrix Codes::view() const {
  return {sliced_format(group), rows, cols, [this](int row, const RowCodes& out) {
            const std::size_t groups = weight_groups(cols, group);
            std::copy_n(&codes[static_cast<std::size_t>(row) * cols], cols, out.codes);
            std::copy_n(&scales[row * groups], groups, out.scales);
          }};
}

Codes round_to_nearest(ThreadPool& pool, const Matrix& weights, int group) {
  Codes out(weights.rows, weights.cols, group);
  const std::size_t groups = weight_groups(weights.cols, group);
  pool.parallel_for(weights.rows, [&](std::int64_t row, int) {
    const std::vector<float> w = load_rows(weights, static_cast<int>(row), 1);
    encode_weight_row(w.data(), weights.cols, &out.codes[row * weights.cols],
                      &out.scales[row * groups], group);
  });
  return out;
}

Codes gptq(ThreadPool& pool, const Matrix& weights, int group, const Gram& inputs,
           const std::vector<float>& factor) {
  check(kBlock % group == 0 && inputs.size() == weights.cols, "GPTQ gets groups that fill blocks");
  const int cols = weights.cols;
  Codes out(weights.rows, cols, group);
  pool.parallel_for((weights.rows + kRowsPerTask - 1) / kRowsPerTask, [&](std::int64_t task, int) {
    const int first_row = static_cast<int>(task) * kRowsPerTask;
    const int rows = std::min(kRowsPerTask, weights.rows - first_row);
    std::vector<float> w = load_rows(weights, first_row, rows);
    std::vector<float> errors(static_cast<std::size_t>(rows) * kBlock);
    for (int first = 0; first < cols; first += kBlock) {
      const int last = std::min(cols, first + kBlock);
      for (int r = 0; r < rows; ++r) {
        round_block(inputs, factor, first, last, &w[static_cast<std::size_t>(r) * cols], out,
                    first_row + r, &errors[static_cast<std::size_t>(r) * kBlock]);
      }
      if (last == cols) break;
      gemm({.m = rows,
            .n = cols - last,
            .k = last - first,
            .alpha = -1.0f,
            .a = errors.data(),
            .lda = kBlock,
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
