#include "base/hand_out.h"

#include <algorithm>

#include "base/error.h"

namespace quantspec {

HandOut::HandOut(const std::vector<int>& node_of_thread)
    : node_of_thread_(node_of_thread), nodes_(node_of_thread.back() + 1) {
  check(node_of_thread.front() >= 0 && std::ranges::is_sorted(node_of_thread),
        "nodes have blocks of threads");
  for (const int node : node_of_thread) ++nodes_[node].end_thread;
  int end = 0;
  for (Node& node : nodes_) {
    node.first_thread = end;
    end = node.end_thread += end;
  }
}

void HandOut::start(std::span<const IndexRange> ranges) {
  count_ = 0;
  for (const IndexRange& range : ranges) count_ += range.count * range.repeats;
  for (Node& node : nodes_) node.next.store(0, std::memory_order_relaxed);
  if (nodes_.size() == 1) return;
  ranges_.assign(ranges.begin(), ranges.end());
  for (Node& node : nodes_) {
    node.size = 0;
    for (const IndexRange& range : ranges)
      node.size += share_size(node, range.count) * range.repeats;
  }
}

// The part of `count` indices that comes before the share of these threads.
std::int64_t HandOut::share_begin(int first_thread, std::int64_t count) const {
  return count * first_thread / static_cast<std::int64_t>(node_of_thread_.size());
}

std::int64_t HandOut::share_size(const Node& node, std::int64_t count) const {
  return share_begin(node.end_thread, count) - share_begin(node.first_thread, count);
}

std::int64_t HandOut::index_of(const Node& node, std::int64_t place) const {
  std::int64_t first = 0;
  for (const IndexRange& range : ranges_) {
    const std::int64_t size = share_size(node, range.count);
    if (place < size * range.repeats) {
      return first + place / size * range.count + share_begin(node.first_thread, range.count) +
             place % size;
    }
    place -= size * range.repeats;
    first += range.count * range.repeats;
  }
  return count_;
}

std::int64_t HandOut::take_near(int home) {
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[(home + i) % nodes_.size()];
    if (node.next.load(std::memory_order_relaxed) >= node.size) continue;
    const std::int64_t place = node.next.fetch_add(1, std::memory_order_relaxed);
    if (place < node.size) return index_of(node, place);
  }
  return count_;
}

}  // namespace quantspec
