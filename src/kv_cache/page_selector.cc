#include "kv_cache/page_selector.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace quantspec {

PageSelector::PageSelector(const KvShape& shape)
    : num_kv_heads_(shape.num_kv_heads), layers_(shape.num_layers) {}

void PageSelector::reserve(int max_pages) {
  const std::size_t entries = static_cast<std::size_t>(num_kv_heads_) * max_pages;
  for (Layer& layer : layers_) {
    layer.mass.resize(entries);
    layer.list.resize(entries);
  }
  order_.resize(max_pages);
  scores_.resize(max_pages);
}

void PageSelector::clear() {
  for (Layer& layer : layers_) layer.mass_pages = layer.list_count = 0;
}

float* PageSelector::record_mass(int layer, int num_pages) {
  Layer& at = layers_[layer];
  at.mass_pages = num_pages;
  at.list_count = 0;
  return at.mass.data();
}

std::span<const int> PageSelector::by_mass(int layer, int num_pages, int count) {
  Layer& at = layers_[layer];
  if (count >= num_pages || at.mass_pages == 0) return {};
  if (at.list_count == count && at.list_pages == num_pages) return lists(at);
  return select(at, num_pages, count, [&](int head, int page) {
    return page < at.mass_pages ? at.mass[head * at.mass_pages + page]
                                : std::numeric_limits<float>::infinity();
  });
}

std::span<const int> PageSelector::by_scores(int layer, std::span<const float> scores, int count) {
  const int num_pages = static_cast<int>(scores.size()) / num_kv_heads_;
  if (count >= num_pages) return {};
  Layer& at = layers_[layer];
  const auto list = select(at, num_pages, count,
                           [&](int head, int page) { return scores[head * num_pages + page]; });
  at.list_count = 0;  // not by mass
  return list;
}

std::span<const int> PageSelector::lists(const Layer& layer) const {
  return std::span(layer.list).first(static_cast<std::size_t>(num_kv_heads_) * layer.list_count);
}

template <typename Score>
std::span<const int> PageSelector::select(Layer& layer, int num_pages, int count,
                                          const Score& score) {
  check(num_pages <= std::ssize(order_), "room was reserved for the pages that are chosen from");
  layer.list_count = count;
  layer.list_pages = num_pages;
  const auto order_end = order_.begin() + num_pages;
  for (int head = 0; head < num_kv_heads_; ++head) {
    for (int page = 0; page < num_pages; ++page) {
      const float at = score(head, page);
      scores_[page] =
          std::isnan(at) ? std::numeric_limits<float>::infinity() : at;  // stays visible
    }
    std::iota(order_.begin(), order_end, 0);
    // Page 0 stays; ties go to the earlier page.
    std::nth_element(order_.begin() + 1, order_.begin() + count, order_end, [&](int a, int b) {
      return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b;
    });
    std::sort(order_.begin(), order_.begin() + count);
    std::copy_n(order_.begin(), count,
                layer.list.begin() + static_cast<std::ptrdiff_t>(head) * count);
  }
  return lists(layer);
}

}  // namespace quantspec
