// What backends whose memory is the host's have in common: copies are plain ones, lists of pages
// and tokens are chosen by plain code (the sampler's), and marks are the clock's.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/params/attention.h"
#include "backend/params/context.h"
#include "backend/params/linear.h"
#include "backend/params/round.h"
#include "base/clock.h"
#include "sampler/sampler.h"

namespace quantspec {

// The ranks that share contexts with this one.
struct ContextGroup {
  Communicator* ranks = nullptr;  // all; null: nobody, and groups say what there is room for
  RankGroups groups = {};

  bool shared() const { return groups.context > 1; }
  int size() const { return groups.context; }
  int rank() const;        // of the group
  int head_ranks() const;  // that have other KV heads: so many groups
  // By the shares of weights: of the group, how many there are.
  int shares() const { return groups.context / groups.alike; }
};

// Those of the query heads of a rank of the group.
KvHeads kv_heads_of(const ContextGroup& group, const KvShape& shape, int rank);

// Where the units of one layer are, of all pages: in the cache, or gathered.
struct LayerPages {
  std::span<const PagePlanes> pages;
  KvShape shape;
  int layer;
  int first_kv_head;

  std::byte* upper(int page, int kv_head) const {
    return pages[page].upper + own_upper_offset(shape, layer, kv_head - first_kv_head);
  }
  std::byte* lower(int page, int kv_head) const {
    return pages[page].lower + own_lower_offset(shape, layer, kv_head - first_kv_head);
  }
};

class HostBackend : public Backend {
 public:
  explicit HostBackend(Communicator* ranks, RankGroups groups = {});  // null: nobody

  std::size_t available_bytes() const override;
  std::size_t taken_bytes() const override { return 0; }
  Buffer allocate_on_host(std::size_t bytes) override { return allocate(bytes); }
  bool is_apart_from_host() const override { return false; }
  void upload(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override;
  void synchronize() override {}

  // A checkpoint is read where it is mapped.
  std::size_t matrix_bytes(int, int, DType) const override { return 0; }
  Matrix place_matrix(const TensorView& tensor, std::byte*) override { return dense(tensor); }

  void require_supported(const KvShape&) const override {}
  int prefill_chunk() const override { return 1024; }
  int prefill_rows() const override { return 512; }
  void reserve_scratch(const PrefillSizes&) override {}
  // Where contexts are shared, what is gathered of the others' pages.
  std::size_t unpacked_bytes(const KvShape& shape, int tokens) const override;

  int context_turn(const KvShape& shape, int page) const override;
  void select_pages(const SelectPagesParams& params) override;
  std::size_t pass_scratch_bytes(const PassSizes& sizes) const override;

  int padded(int count) const override { return count; }
  bool repeats_rounds() const override { return false; }
  void begin_batch(std::span<const RoundLane> lanes) override {
    lanes_.assign(lanes.begin(), lanes.end());
  }
  // Ops have their views.
  void bind_lanes(const KvShape&, std::span<const LaneKey>, const LaneViews&) override {}
  void propose(const ProposeParams& params) override;
  void judge(const JudgeParams& params) override;
  bool run_round(const RoundKey&, const std::function<void()>& issue) override {
    issue();
    return true;
  }
  Counts counts() const override { return {}; }
  void end_rounds(std::span<const Round* const> rounds, std::span<Round> results) override;
  void mark(Mark mark) override;
  double seconds_between(Mark from, Mark to) override;

 protected:
  // Copies the angles of every row's position.
  static void copy_angles(const EmbedParams& params);

  // Whether several ranks share the products, and what they do then. `sums`: [num_rows, outputs],
  // of this rank's inputs, without the bias.
  bool adds_sums() const;
  void add_sums(const AddLinearParams& params, std::span<const float> sums);
  // `own`: [num_rows, outputs], logits of this rank's rows of the head.
  void gather_logits(const HeadParams& params, std::span<const float> own);

  const ContextGroup& context_group() const { return group_; }
  // KV heads that this rank's query heads read.
  KvHeads own_kv_heads(const KvShape& shape) const;
  // Their pages, all of them. Of a shared context they are gathered to `room`, of unpacked_bytes(),
  // unless they are there already.
  LayerPages pages_of_queries(const KvShape& shape, const KvView& kv, std::byte* room,
                              bool gathers) const;
  LayerPages pages_of_queries(const PrefillAttentionParams& params) const {
    return pages_of_queries(params.shape, params.kv, params.unpacked, params.unpacks);
  }
  // Ranks that are alike have some of a prompt's rows each: calls attend() with these, then all
  // tell each other what came out.
  void attend_in_parts(const PrefillAttentionParams& params,
                       const std::function<void(const PrefillAttentionParams&)>& attend);

 private:
  void select_pages(const KvView& kv, int num_kv_heads);
  void propose(const RoundTokens& at, float* logits);
  void judge(const RoundLane& lane, float* target_logits);
  void to_distribution(const RoundTokens& at, int position, float* logits);

  using PageOrder = std::pair<int, float>;
  ContextGroup group_;                 // of one: no ranks
  std::vector<float> gathered_;        // by rank: logits, rows of attention
  std::vector<float> given_;           // such rows
  std::vector<int> order_;             // of select_pages: pages
  std::vector<PageOrder> page_order_;  // and what they are ordered by
  std::vector<RoundLane> lanes_;
  SamplerScratch scratch_;
  Stopwatch clock_;
  std::array<double, kNumMarks> marks_{};  // seconds on it
};

}  // namespace quantspec
