#include <algorithm>

#include "backend/reference/ops.h"
#include "base/error.h"

namespace quantspec::reference {

namespace {

std::size_t head_floats(const KvShape& shape, int capacity) {
  return static_cast<std::size_t>(capacity) * shape.head_dim;
}

std::vector<int> pages_read(const KvShape& shape, const KvView& view, int kv_head) {
  std::vector<int> pages;
  if (view.page_lists.empty()) {
    for (int page = 0; page < std::ssize(view.pages); ++page) pages.push_back(page);
  } else {
    const std::size_t count = view.page_lists.size() / shape.num_kv_heads;
    const auto list = view.page_lists.subspan(kv_head * count, count);
    pages.assign(list.begin(), list.end());
  }
  return pages;
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

ReadKv read_kv(const KvShape& shape, const KvView& view, const LayerPages& of_view, int kv_head,
               int end) {
  check(view.first_full >= std::ssize(view.pages) * shape.page_size && view.first_full <= end,
        "positions come from pages or from full precision");
  const std::ptrdiff_t dim = shape.head_dim;
  const std::vector<int> pages = pages_read(shape, view, kv_head);
  const int paged = static_cast<int>(pages.size()) * shape.page_size;
  const int before = paged + view.num_gathered, count = before + end - view.first_full;
  ReadKv kv{std::vector<float>(count * dim), std::vector<float>(count * dim), count};
  std::ptrdiff_t first = 0;
  for (const int index : pages) {
    const std::byte* lower =
        of_view.pages[index].lower == nullptr ? nullptr : of_view.lower(index, kv_head);
    decode_unit(shape, of_view.upper(index, kv_head), lower, view.read, &kv.keys[first * dim],
                &kv.values[first * dim]);
    first += shape.page_size;
  }
  const auto copy = [&](FullKv source, int position, std::ptrdiff_t to) {
    const float* key = at_position(shape, source, full_keys(shape, source, kv_head), position);
    const float* value = at_position(shape, source, full_values(shape, source, kv_head), position);
    std::copy_n(key, dim, kv.keys.begin() + to * dim);
    std::copy_n(value, dim, kv.values.begin() + to * dim);
  };
  for (int i = 0; i < view.num_gathered; ++i) copy(view.gathered, i, paged + i);
  for (int p = view.first_full; p < end; ++p) copy(view.full, p, before + p - view.first_full);
  return kv;
}

}  // namespace quantspec::reference
