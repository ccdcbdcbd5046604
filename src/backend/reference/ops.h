// The equations of the oracle, one function each. Shapes are row-major; nothing may alias unless
// said. Functions that take a ThreadPool share out whole results, never a part of a sum.
#pragma once

#include <vector>

#include "backend/host/host.h"
#include "backend/params/attention.h"
#include "backend/params/pass.h"
#include "base/thread_pool.h"

namespace quantspec::reference {

// --- norm.cc -------------------------------------------------------------------------------------

// out[i] = x[i] * weight[i] / sqrt(mean(x^2) + epsilon); no weight: out = x. out may be x.
void rms_norm(const Norm& norm, const float* x, int size, float* out);
// The same for each row of x [num_rows, size].
std::vector<float> rms_norm_rows(ThreadPool& pool, const Norm& norm, const float* x, int num_rows,
                                 int size);

// --- rope.cc -------------------------------------------------------------------------------------

// Rotates channels (c, c + head_dim / 2) of one head by the angle whose cosine is cos[c].
void rotate(float* head, int head_dim, const float* cos, const float* sin);

// --- planes.cc -----------------------------------------------------------------------------------

// Planes of a [rows, cols] matrix, row by row. Codes are two to a byte, low nibble = even input,
// and a row starts on a byte:
//   upper   the row's GroupScales, its sub_scales, its sub_offsets, and upper nibbles [(cols + 1) /
//   2] lower   what is below them, in nibbles [(cols + 1) / 2], however few bits that is
std::size_t upper_plane_bytes(int rows, int cols, const WeightFormat& format);
std::size_t lower_plane_bytes(int rows, int cols, const WeightFormat& format);
// `lower` may be null.
void encode_planes(ThreadPool& pool, const Matrix& elements, const WeightFormat& format,
                   std::byte* upper, std::byte* lower);
void store_planes(ThreadPool& pool, const CodedMatrix& coded, std::byte* upper, std::byte* lower);
// One row of a matrix as a pass reads it: [cols].
void read_row(const Matrix& matrix, WeightRead read, int row, float* out);

// --- linear.cc -----------------------------------------------------------------------------------

// y[row] += bias, then W in[row], summed by segments.   y: [num_rows, outputs]
void add_linear(ThreadPool& pool, const Linear& linear, WeightRead read, const float* in,
                int num_rows, float* y);
// y[row] = W in[row] + bias.   in: [num_rows, inputs], result: [num_rows, outputs]
std::vector<float> apply_linear(ThreadPool& pool, const Linear& linear, WeightRead read,
                                const float* in, int num_rows);

// --- full_kv.cc ----------------------------------------------------------------------------------

// A FullKv is fp32 [kv heads, 2, capacity, head_dim]: keys, then values, of each kv head.
std::size_t full_kv_floats(const KvShape& shape, int capacity);
// The keys (values) of one kv head, [capacity, head_dim].
float* full_keys(const KvShape& shape, FullKv kv, int kv_head);
float* full_values(const KvShape& shape, FullKv kv, int kv_head);
// K or V of one position.
inline float* at_position(const KvShape& shape, FullKv kv, float* keys_or_values, int position) {
  return keys_or_values + static_cast<std::ptrdiff_t>(position % kv.capacity) * shape.head_dim;
}

// K and V of some positions of one kv head, each [positions, head_dim].
struct HeadKv {
  const float* keys;
  const float* values;
};
// What a pass reads of one kv head, in the order of KvView: pages, gathered positions, then
// positions [first_full, end). `count` positions in all.
struct ReadKv {
  std::vector<float> keys;
  std::vector<float> values;
  int count;
};
// pages: those of the view.
ReadKv read_kv(const KvShape& shape, const KvView& view, const LayerPages& pages, int kv_head,
               int end);

// --- attention.cc --------------------------------------------------------------------------------

inline constexpr int kAttentionRows = 32;  // at most this many rows to one call of attend

// Where the probabilities of the first num_pages * page_size positions are added up, by page.
struct PageMass {
  float* mass = nullptr;  // [num_pages]
  int num_pages = 0;
  int page_size = 0;
};

// out[row] = softmax(scale * q[row] K^T) V over the positions kv[0..last + row], one head.
// q, out: [num_rows, head_dim], rows `stride` apart. out may be q. num_rows <= kAttentionRows.
void attend(const HeadKv& kv, int head_dim, float scale, int last, int num_rows, const float* q,
            float* out, std::ptrdiff_t stride, const PageMass& pages = {});

// The greatest q . k of a page's keys by their channels' extremes (PageBoundsParams), for one kv
// head and its `group` query heads, q [group, head_dim]. `unit`: the upper unit.
float page_bound(const KvShape& shape, const std::byte* unit, const float* q, int group);

}  // namespace quantspec::reference
