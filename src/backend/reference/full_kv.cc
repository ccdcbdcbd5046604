#include <algorithm>

#include "backend/reference/ops.h"
#include "base/error.h"

namespace quantspec::reference {

namespace {

std::size_t head_floats(const KvShape& shape, int capacity) {
  return static_cast<std::size_t>(capacity) * shape.head_dim;
}

}  // namespace

std::size_t full_kv_floats(const KvShape& shape, int capacity) {
  return 2 * shape.num_kv_heads * head_floats(shape, capacity);
}

float* full_keys(const KvShape& shape, FullKv kv, int kv_head) {
  return reinterpret_cast<float*>(kv.data) + 2 * kv_head * head_floats(shape, kv.capacity);
}

float* full_values(const KvShape& shape, FullKv kv, int kv_head) {
  return full_keys(shape, kv, kv_head) + head_floats(shape, kv.capacity);
}

GatheredKv gather_kv(const KvShape& shape, const KvView& view, int kv_head, int count) {
  const std::ptrdiff_t dim = shape.head_dim;
  const int paged = static_cast<int>(view.pages.size()) * shape.page_size;
  check(paged <= count, "a query lies inside the pages that it reads");
  GatheredKv kv{std::vector<float>(count * dim), std::vector<float>(count * dim)};
  std::ptrdiff_t first = 0;
  for (const PagePlanes& page : view.pages) {
    const std::byte* lower =
        page.lower == nullptr ? nullptr : page.lower + shape.lower_offset(view.layer, kv_head);
    decode_unit(shape, page.upper + shape.upper_offset(view.layer, kv_head), lower, view.read,
                &kv.keys[first * dim], &kv.values[first * dim]);
    first += shape.page_size;
  }
  for (int p = paged; p < count; ++p) {
    const float* key = at_position(shape, view.full, full_keys(shape, view.full, kv_head), p);
    const float* value = at_position(shape, view.full, full_values(shape, view.full, kv_head), p);
    std::copy_n(key, dim, kv.keys.begin() + p * dim);
    std::copy_n(value, dim, kv.values.begin() + p * dim);
  }
  return kv;
}

}  // namespace quantspec::reference
