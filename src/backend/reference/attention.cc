#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "backend/reference/ops.h"
#include "backend/reference/tile.h"

namespace quantspec::reference {

namespace {

static_assert(kAttentionRows == kTile);
constexpr int kPanel = 256;  // positions whose values stay in cache while all rows read them

// Rows of scores and probabilities, `stride` apart. NOTE: the stride is no power of two, so that
// writing one column does not fight for one cache set.
struct RowMatrix {
  RowMatrix(int rows, int cols) : stride(cols + 17), data(rows * stride) {}
  float* row(int index) { return data.data() + index * stride; }
  std::ptrdiff_t stride;
  std::vector<float> data;
};

// scores[row][t] = scale * q[row] . keys[t]     q, keys: [.., head_dim]
RowMatrix all_scores(const float* keys, int count, int head_dim, float scale, const float* q,
                     std::ptrdiff_t stride, int num_rows) {
  std::vector<float> tile(static_cast<std::size_t>(head_dim) * kTile);
  transpose_tile(q, stride, num_rows, head_dim, tile.data());
  RowMatrix scores(num_rows, count);
  for (int t = 0; t < count; ++t) {
    float sums[kTile] = {};
    add_products(keys + static_cast<std::ptrdiff_t>(t) * head_dim, tile.data(), head_dim, sums);
    for (int row = 0; row < num_rows; ++row) scores.row(row)[t] = scale * sums[row];
  }
  return scores;
}

// x[i] = exp(x[i]) / sum(exp(x))
void softmax(float* x, int count) {
  const float max = *std::max_element(x, x + count);
  double sum = 0.0;
  for (int i = 0; i < count; ++i) {
    x[i] = std::exp(x[i] - max);
    sum += x[i];
  }
  for (int i = 0; i < count; ++i) x[i] = static_cast<float>(x[i] / sum);
}

// mass[page] += the sum of the page's probabilities
void add_page_mass(const float* probs, const PageMass& pages) {
  for (int page = 0; page < pages.num_pages; ++page, probs += pages.page_size) {
    pages.mass[page] += static_cast<float>(std::accumulate(probs, probs + pages.page_size, 0.0));
  }
}

// Rows [first, first + count) and `width` channels of values, padded: [count, kTile].
void copy_panel(const float* values, int head_dim, int first, int count, int width, float* panel) {
  for (int t = 0; t < count; ++t) {
    const float* source = values + static_cast<std::ptrdiff_t>(first + t) * head_dim;
    for (int c = 0; c < kTile; ++c) panel[t * kTile + c] = c < width ? source[c] : 0.0f;
  }
}

// out[row][c] = sum over t <= last + row of probs[row][t] * values[t][c], `width`
// channels, values not yet seen by a row never touched (they could be NaN).
void weighted_sum(const float* values, int head_dim, int width, int last, int num_rows,
                  RowMatrix& probs, float* out, std::ptrdiff_t stride) {
  const int end = last + num_rows;
  std::vector<float> panel(static_cast<std::size_t>(kPanel) * kTile);
  float sums[kAttentionRows][kTile] = {};
  for (int first = 0; first < end; first += kPanel) {
    copy_panel(values, head_dim, first, std::min(kPanel, end - first), width, panel.data());
    for (int row = 0; row < num_rows; ++row) {
      const int seen = last + row + 1 - first;
      add_products(probs.row(row) + first, panel.data(), std::clamp(seen, 0, kPanel), sums[row]);
    }
  }
  for (int row = 0; row < num_rows; ++row) std::copy_n(sums[row], width, out + row * stride);
}

}  // namespace

void attend(const HeadKv& kv, int head_dim, float scale, int last, int num_rows, const float* q,
            float* out, std::ptrdiff_t stride, const PageMass& pages) {
  RowMatrix probs = all_scores(kv.keys, last + num_rows, head_dim, scale, q, stride, num_rows);
  for (int row = 0; row < num_rows; ++row) {
    softmax(probs.row(row), last + row + 1);
    add_page_mass(probs.row(row), pages);
  }
  for (int c = 0; c < head_dim; c += kTile) {
    weighted_sum(kv.values + c, head_dim, std::min(kTile, head_dim - c), last, num_rows, probs,
                 out + c, stride);
  }
}

float page_bound(const KvShape& shape, const std::byte* unit, const float* q, int group) {
  // unit_scales() serves writers too; nothing is written through these.
  const UnitScales scales = unit_scales(shape, const_cast<std::byte*>(unit));
  float bound = -std::numeric_limits<float>::infinity();
  for (int head = 0; head < group; ++head, q += shape.head_dim) {
    float sum = 0.0f;
    for (int c = 0; c < shape.head_dim; ++c) {
      const float scale = f16_to_f32(scales.key_scale[c]);
      const float offset = f16_to_f32(scales.key_offset[c]);
      const float least = offset + scale * kCodeMargin;
      const float most = offset + scale * (255 - kCodeMargin);
      sum += std::max(q[c] * most, q[c] * least);
    }
    bound = std::max(sum, bound);
  }
  return bound;
}

}  // namespace quantspec::reference
