#include <cuda_fp16.h>

#include <algorithm>
#include <vector>

#include "backend/cuda/layout.h"
#include "backend/cuda/ops.h"
#include "base/dtype.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

constexpr int kThreads = 256;

// One (kv head, keys or values) of a FullKv: [capacity, head_dim], in pieces of 16 bytes.
__device__ uint4* rows_of(const KvShape& shape, FullKv kv, int kv_head, int which) {
  auto* data = reinterpret_cast<__half*>(kv.data);
  return reinterpret_cast<uint4*>(data + full_kv_index(shape, kv.capacity, kv_head, which, 0));
}

// Row i of a (kv head, keys or values) of `target`: of position first + i, in that position's slot;
// with `positions` [num_kv_heads, count], of positions[i], in slot first + i.
// Grid: [pieces of count rows / kThreads, 2, num_kv_heads].
__global__ void __launch_bounds__(kThreads) copy_rows(KvShape shape, FullKv source, FullKv target,
                                                      const int* positions, int first, int count) {
  const int pieces = shape.head_dim / 8;
  const int index = blockIdx.x * kThreads + threadIdx.x;
  const int row = index / pieces, piece = index % pieces, kv_head = blockIdx.z;
  if (row >= count) return;
  const int position = positions == nullptr ? first + row : positions[kv_head * count + row];
  const std::size_t from = position % source.capacity;
  const std::size_t to = (first + row) % target.capacity;
  rows_of(shape, target, kv_head, blockIdx.y)[to * pieces + piece] =
      rows_of(shape, source, kv_head, blockIdx.y)[from * pieces + piece];
}

void launch_copy(Device& device, const KvShape& shape, FullKv source, FullKv target,
                 const int* positions, int first, int count) {
  if (count == 0) return;
  const int pieces = count * (shape.head_dim / 8);
  const dim3 grid((pieces + kThreads - 1) / kThreads, 2, shape.num_kv_heads);
  copy_rows<<<grid, kThreads, 0, device.stream()>>>(shape, source, target, positions, first, count);
  require_launch("copy_rows");
}

// Where the keys (which = 0) or values of a position lie.
std::byte* row_at(const KvShape& shape, FullKv kv, int kv_head, int which, int position) {
  return kv.data + sizeof(std::uint16_t) *
                       full_kv_index(shape, kv.capacity, kv_head, which, position % kv.capacity);
}

// Calls f(position, at, size) for the runs of adjacent slots, at most two, of `count` positions:
// `size` elements from `at` on of all.
template <typename F>
void for_each_run(const KvShape& shape, FullKv kv, int first, int count, const F& f) {
  check(count <= kv.capacity, "positions lie in different slots");
  const int before_end = std::min(count, kv.capacity - first % kv.capacity);
  const std::size_t dim = shape.head_dim;
  if (before_end > 0) f(first, 0, before_end * dim);
  if (count > before_end) f(first + before_end, before_end * dim, (count - before_end) * dim);
}

// --- units ---------------------------------------------------------------------------------------

// Calls f(canonical, own) with the indices of every nibble in keys and values of a plane: of two
// planes_bytes, keys then values.
template <typename F>
void for_each_nibble(const KvShape& shape, const F& f) {
  const std::size_t values = 2 * shape.plane_bytes();
  for (int token = 0; token < shape.page_size; ++token) {
    for (int channel = 0; channel < shape.head_dim; ++channel) {
      const std::size_t canonical = static_cast<std::size_t>(token) * shape.head_dim + channel;
      const NibblePlace key = key_place(shape, token, channel);
      const NibblePlace value = value_place(shape, token, channel);
      f(canonical, 8 * key.word + key.nibble);
      f(values + canonical, values + 8 * value.word + value.nibble);
    }
  }
}

// Nibble i of either order: of byte i / 2, the low one where i is even.
int load_nibble(const std::byte* plane, std::size_t i) {
  return std::to_integer<int>(plane[i / 2]) >> (4 * (i % 2)) & 15;
}
void store_nibble(std::byte* plane, std::size_t i, int nibble) {
  const int shift = 4 * static_cast<int>(i % 2);
  plane[i / 2] = (plane[i / 2] & std::byte(0xf0 >> shift)) | std::byte(nibble << shift);
}

}  // namespace

void copy_full_kv(Device& device, const KvShape& shape, FullKv source, FullKv target, int first,
                  int count) {
  check(count <= source.capacity && count <= target.capacity, "positions lie in different slots");
  launch_copy(device, shape, source, target, nullptr, first, count);
}

void gather_full_kv(Device& device, const KvShape& shape, FullKv source, FullKv target,
                    std::span<const int> positions, int first_slot) {
  const int count = static_cast<int>(positions.size()) / shape.num_kv_heads;
  check(first_slot + count <= target.capacity, "the gathered positions fit in their slots");
  if (count == 0) return;
  auto* uploaded =
      reinterpret_cast<int*>(device.scratch(Scratch::kWorkspace, positions.size_bytes()));
  device.upload(uploaded, positions.data(), positions.size_bytes());
  launch_copy(device, shape, source, target, uploaded, first_slot, count);
}

void read_full_kv(Device& device, const KvShape& shape, FullKv source, int kv_head, int first,
                  int count, float* keys, float* values) {
  std::vector<std::uint16_t> rows(static_cast<std::size_t>(count) * shape.head_dim);
  for (int which = 0; which < 2; ++which) {
    float* const out = which == 0 ? keys : values;
    if (out == nullptr) continue;
    for_each_run(shape, source, first, count, [&](int position, std::size_t at, std::size_t size) {
      device.download(&rows[at], row_at(shape, source, kv_head, which, position),
                      size * sizeof(rows[0]));
    });
    std::ranges::transform(rows, out, f16_to_f32);
  }
}

void write_full_kv(Device& device, const KvShape& shape, FullKv target, int kv_head, int first,
                   int count, const float* keys, const float* values) {
  std::vector<std::uint16_t> rows(static_cast<std::size_t>(count) * shape.head_dim);
  for (int which = 0; which < 2; ++which) {
    std::transform(which == 0 ? keys : values, (which == 0 ? keys : values) + rows.size(),
                   rows.begin(), f32_to_f16);
    for_each_run(shape, target, first, count, [&](int position, std::size_t at, std::size_t size) {
      device.upload(row_at(shape, target, kv_head, which, position), &rows[at],
                    size * sizeof(rows[0]));
    });
  }
}

void export_unit(Device& device, const KvShape& shape, int layer, int kv_head, PagePlanes page,
                 std::byte* upper, std::byte* lower) {
  std::vector<std::byte> own_upper(shape.upper_unit_bytes()), own_lower(shape.lower_unit_bytes());
  device.download(own_upper.data(), page.upper + shape.upper_offset(layer, kv_head),
                  own_upper.size());
  device.download(own_lower.data(), page.lower + shape.lower_offset(layer, kv_head),
                  own_lower.size());
  std::copy(own_upper.begin(), own_upper.end(), upper);  // for the scales
  for_each_nibble(shape, [&](std::size_t canonical, std::size_t own) {
    store_nibble(upper, canonical, load_nibble(own_upper.data(), own));
    store_nibble(lower, canonical, load_nibble(own_lower.data(), own));
  });
}

void import_unit(Device& device, const KvShape& shape, int layer, int kv_head,
                 const std::byte* upper, const std::byte* lower, PagePlanes page) {
  std::vector<std::byte> own_upper(upper, upper + shape.upper_unit_bytes());
  std::vector<std::byte> own_lower(shape.lower_unit_bytes());
  for_each_nibble(shape, [&](std::size_t canonical, std::size_t own) {
    store_nibble(own_upper.data(), own, load_nibble(upper, canonical));
    store_nibble(own_lower.data(), own, load_nibble(lower, canonical));
  });
  device.upload(page.upper + shape.upper_offset(layer, kv_head), own_upper.data(),
                own_upper.size());
  device.upload(page.lower + shape.lower_offset(layer, kv_head), own_lower.data(),
                own_lower.size());
}

}  // namespace quantspec::cuda
