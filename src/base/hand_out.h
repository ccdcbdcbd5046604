// Hands the indices of a parallel region out to threads, one at a time. With one memory node that
// is one atomic counter. With several, every node has its own share of the indices, always the same
// one for the same work, so that its threads find in their own memory what they touched there
// first; a thread whose node has nothing left helps the next node.
//
// Thread-safety: take() from many threads; start() while no thread takes.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

namespace quantspec {

// `repeats` times `count` indices, one after another. A node's share of every repetition is the
// same contiguous part of it.
struct IndexRange {
  std::int64_t count;
  std::int64_t repeats = 1;
};

class HandOut {
 public:
  // The node of every thread: 0, 1, ... in blocks, as of Topology::nodes_of_threads(). A node
  // without a thread has no share.
  explicit HandOut(const std::vector<int>& node_of_thread);

  // Indices of the ranges, which follow each other from 0 on.
  void start(std::span<const IndexRange> ranges);
  std::int64_t count() const { return count_; }

  // The next index for this thread; count() or more when there is none.
  std::int64_t take(int thread) {
    if (nodes_.size() > 1) return take_near(node_of_thread_[thread]);
    return nodes_[0].next.fetch_add(1, std::memory_order_relaxed);
  }

 private:
  struct alignas(64) Node {
    std::atomic<std::int64_t> next{0};  // of its share
    std::int64_t size = 0;              // of its share
    int first_thread = 0;
    int end_thread = 0;
  };
  std::int64_t take_near(int home);
  std::int64_t share_begin(int first_thread, std::int64_t count) const;
  std::int64_t share_size(const Node& node, std::int64_t count) const;
  std::int64_t index_of(const Node& node, std::int64_t place) const;

  std::vector<int> node_of_thread_;
  std::vector<Node> nodes_;
  std::vector<IndexRange> ranges_;
  std::int64_t count_ = 0;
};

}  // namespace quantspec
