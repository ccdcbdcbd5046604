// What gpu_bench attends to: contexts of sequences as fp16 K and V, and as pages, of which drafts
// read the upper plane and verifying passes both; the last page of each and its newest tokens lie
// in a ring. And the queries, as decoding has them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/bench/gpu_lab.h"
#include "backend/params/view.h"

namespace quantspec {

inline constexpr int kRing = 2 * kPageSize;  // slots
inline constexpr int kMaxQueries = 8;        // of a sequence
inline constexpr int kPagesAtOnce = 64;      // that a call of quantize_pages makes

inline const char* name_of(KvRead read) {
  return read == KvRead::kFull ? "fp16" : read == KvRead::kUpper ? "draft" : "verify";
}

// Contexts of so many tokens before the queries, in as many layers as make all of them exceed the
// L2. None shares a page with another, or all have the same: a prompt that begins every request.
class Contexts {
 public:
  enum class Pages { kOwn, kShared };
  Contexts(GpuLab& lab, int kv_heads, std::vector<int> tokens, Pages pages = Pages::kOwn);

  int size() const { return static_cast<int>(tokens_.size()); }
  const KvShape& shape() const { return shape_; }
  int tokens(int sequence = 0) const { return tokens_[sequence]; }
  int num_pages(int sequence = 0) const { return tokens_[sequence] / kPageSize - 1; }
  int first_full(int sequence = 0) const { return num_pages(sequence) * kPageSize; }
  std::span<const PagePlanes> host_pages(int sequence = 0) const {
    return std::span(pages_).subspan(first_page_[sequence], num_pages(sequence));
  }
  FullKv ring(int layer, int sequence = 0);
  FullKv full(int copy, int sequence = 0);
  // Of the i-th call.
  KvView view(KvRead read, int i, int sequence = 0);
  // Layers that are read in turn.
  int copies(KvRead read) const { return read == KvRead::kFull ? full_copies_ : shape_.num_layers; }
  // Bytes that so many queries of each sequence have to read.
  double bytes(KvRead read, int queries) const;

  // Makes up to kPagesAtOnce pages of one layer. Returns how many.
  int quantize(int layer, int first_page, int sequence = 0);

 private:
  int capacity(int sequence) const { return tokens_[sequence] + 16; }
  std::span<const PagePlanes> device_pages(int sequence) const;
  void make_pages();

  GpuLab& lab_;
  std::vector<int> tokens_;
  Pages pages_are_;
  KvShape shape_;
  std::vector<int> first_page_;          // of each sequence, among all
  std::vector<std::size_t> first_full_;  // byte of each sequence, in a copy
  std::size_t full_bytes_ = 0, ring_bytes_;
  int full_copies_;
  Buffer full_, rings_, upper_, lower_, table_;
  std::vector<PagePlanes> pages_;
};

// Queries of contexts that follow each other, by default of all, as rows of a round: where they
// stand and what they read in every layer is on the device before the first call. Only the newest
// round can be attended to.
class QueryRound {
 public:
  // queries: of each sequence; a draft has one.
  QueryRound(GpuLab& lab, Contexts& contexts, KvRead read, int queries)
      : QueryRound(lab, contexts, read, queries, 0, contexts.size()) {}
  QueryRound(GpuLab& lab, Contexts& contexts, KvRead read, int queries, int first, int count);

  // Of the i-th call.
  std::span<const SequenceRows> rows(int i) const { return rows_[i % rows_.size()]; }
  const KvShape& shape() const { return shape_; }

 private:
  void begin_pass(GpuLab& lab);

  KvShape shape_;
  Buffer rounds_, tokens_;
  std::vector<std::vector<SequenceRows>> rows_;  // [layers, sequences]
};

// Rows of queries, and what attention makes of them.
class Queries {
 public:
  explicit Queries(GpuLab& lab, int rows = kMaxQueries);

  // The round's i-th call, whose first row is `first_row` of these.
  void run(const QueryRound& round, int i, OpOrder order, int first_row = 0);
  // Of a draft of the first context, in layer 0, as rows of no round.
  void run(Contexts& contexts, int queries);

  std::span<const float> host() const { return host_q_; }
  void poison() { out_ = lab_.poisoned(host_q_.size()); }
  std::vector<float> out(int rows) { return lab_.download(out_, rows * kRowFloats); }

 private:
  GpuLab& lab_;
  std::vector<float> host_q_;
  Buffer q_, out_;
};

// Times so many queries of each context. It is a check that failed where an output is not finite.
Measurement time_queries(GpuLab& lab, Contexts& contexts, KvRead read, int queries,
                         const std::string& name, Results& results);

}  // namespace quantspec
