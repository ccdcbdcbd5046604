// A backend without a model: it notes the passes of rounds, proposes and judges by a script, and
// fails where anything else is called that decoding by all pages does not need.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/params/attention.h"
#include "backend/params/pass.h"
#include "backend/params/round.h"
#include "base/error.h"
#include "quant/encode_row.h"

namespace quantspec {

// A sequence is known by its first token.
class FakeBackend final : public Backend {
 public:
  struct Row {
    TokenId sequence;  // -1: of an empty lane
    int rows;
    bool operator==(const Row&) const = default;
  };
  struct Pass {
    bool verifies;
    int depth;
    int num_rows;
    std::vector<Row> lanes;
    float* logits;
  };

  // What was asked for.
  std::vector<Pass> passes;
  std::vector<RoundLane> batch;
  std::vector<LaneKey> lane_keys;
  std::vector<RoundKey> round_keys;
  std::vector<Mark> marks;
  // The script: drafted tokens that are accepted, by sequence; how many lanes a round is taken to;
  // the op that fails the next time.
  std::map<TokenId, int> accepts;
  bool repeats = false;
  std::string broken;

  static TokenId proposed(int position) { return 2 + position % 5; }
  static TokenId chosen(TokenId sequence, int position) { return 7 + (sequence + position) % 5; }

  std::string name() const override { return "fake"; }
  std::string description() const override { return "fake"; }

  Buffer allocate_on_host(std::size_t) override { unexpected(); }
  bool is_apart_from_host() const override { return false; }
  std::size_t available_bytes() const override { return std::size_t{1} << 30; }
  std::size_t taken_bytes() const override { return 0; }
  void upload(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void synchronize() override {}

  std::size_t matrix_bytes(int, int, DType) const override { return 0; }
  Matrix place_matrix(const TensorView& tensor, std::byte*) override { return dense(tensor); }
  PlaneBytes plane_bytes(int, int, const WeightFormat&) const override { return {64, 64}; }
  RowEncoder encoder() const override { return {sliced_format()}; }
  void make_planes(const Matrix&, const WeightFormat&, std::byte*, std::byte*) override {}
  void import_planes(const CodedMatrix&, std::byte*, std::byte*) override { unexpected(); }

  void embed(const EmbedParams& params) override {
    if (params.sequences[0].lane < 0) return;  // of a prompt
    Pass pass{params.sequences[0].verifies, params.sequences[0].drafted, params.num_rows, {}, {}};
    for (const SequenceRows& rows : params.sequences) {
      pass.lanes.push_back({rows.tokens == nullptr ? -1 : rows.tokens[0], rows.num_rows});
    }
    passes.push_back(std::move(pass));
  }
  void qkv(const QkvParams&) override {}
  void attention(const AttentionParams&) override {}
  void page_bounds(const PageBoundsParams&) override { unexpected(); }
  void select_pages(const SelectPagesParams&) override { unexpected(); }
  void add_linear(const AddLinearParams&) override {}
  void gate_up(const GateUpParams&) override {}
  void head(const HeadParams& params) override {
    break_at("head");
    std::fill_n(params.logits, std::ptrdiff_t{params.num_rows} * params.head->outputs(), 0.0f);
    if (!passes.empty()) passes.back().logits = params.logits;
  }

  std::size_t pass_scratch_bytes(const PassSizes&) const override { return 0; }

  void prefill_attention(const PrefillAttentionParams&) override {}
  std::size_t unpacked_bytes(const KvShape&, int) const override { return 0; }
  int prefill_rows() const override { return 64; }
  std::size_t scratch_bytes(const PrefillSizes&) const override { return 0; }
  void reserve_scratch(const PrefillSizes&) override {}

  int padded(int count) const override {
    return repeats && count > 1 ? (count + 3) / 4 * 4 : count;
  }
  bool repeats_rounds() const override { return repeats; }
  void begin_batch(std::span<const RoundLane> lanes) override {
    batch.assign(lanes.begin(), lanes.end());
  }
  void bind_lanes(const KvShape&, std::span<const LaneKey> keys, const LaneViews& views) override {
    lane_keys.assign(keys.begin(), keys.end());
    for (int lane = 0; lane < std::ssize(keys); ++lane) {
      if (keys[lane].sequence == 0) continue;
      check(!views(lane, true).empty(), "verification reads something");
      check(views(lane, false).empty() == (keys[lane].plan < 0), "drafts read by their plan");
    }
  }
  void propose(const ProposeParams& params) override {
    break_at("propose");
    check(params.logits == passes.back().logits, "tokens are proposed from the pass's logits");
    for (int i = 0; i < params.count; ++i) {
      const RoundLane& lane = batch[params.first_lane + i];
      if (lane.draft_len <= params.depth) continue;
      check(lane.at.round->drafted == params.depth, "depth by depth");
      const float* row = params.logits + std::ptrdiff_t{i} * lane.at.vocab_size;
      check(lane.at.by_argmax || row == lane.draft_probs + params.depth * lane.draft_stride,
            "judging finds the distribution that was drawn from");
      const int position = lane.at.round->length + lane.at.round->drafted++;
      lane.at.tokens[position] = proposed(position);
    }
  }
  void judge(const JudgeParams& params) override {
    for (int i = 0; i < params.count; ++i) {
      const RoundLane& lane = batch[params.first_lane + i];
      if (lane.draft_len < 0) continue;
      Round& round = *lane.at.round;
      check(round.drafted == lane.draft_len, "a lane drafts what it was to");
      const TokenId sequence = lane.at.tokens[0];
      round.accepted = std::min(accepts[sequence], round.drafted);
      const int position = round.length + round.accepted;
      std::copy_n(lane.at.tokens + position, round.drafted - round.accepted, round.rejected);
      lane.at.tokens[position] = chosen(sequence, position);
      std::copy_n(lane.at.tokens + round.length, round.accepted + 1, round.added);
      round.length = position + 1;
      round.drafted = 0;
    }
    break_at("judge");
  }
  bool run_round(const RoundKey& key, const std::function<void()>& issue) override {
    round_keys.push_back(key);
    issue();
    return true;
  }
  void end_rounds(std::span<const Round* const> rounds, std::span<Round> results) override {
    break_at("end_rounds");
    std::ranges::transform(rounds, results.begin(), [](const Round* round) { return *round; });
  }
  void mark(Mark mark) override { marks.push_back(mark); }
  double seconds_between(Mark from, Mark) override { return from == Mark::kBegin ? 2.0 : 3.0; }
  Counts counts() const override { return {}; }

  void require_supported(const KvShape&) const override {}
  int prefill_chunk() const override { return 1024; }
  std::size_t full_kv_bytes(const KvShape&, int capacity) const override { return capacity; }
  int full_kv_strips() const override { return 1; }
  int context_turn(const KvShape&, int page) const override { return page; }
  void quantize_pages(const KvShape&, int, std::span<const FullKv>, int,
                      std::span<const PagePlanes>) override {}
  void copy_full_kv(const KvShape&, FullKv, FullKv, int, int) override {}
  void gather_full_kv(const KvShape&, FullKv, FullKv, std::span<const int>, int) override {
    unexpected();
  }
  void read_full_kv(const KvShape&, FullKv, int, int, int, float*, float*) const override {
    unexpected();
  }
  void write_full_kv(const KvShape&, FullKv, int, int, int, const float*, const float*) override {
    unexpected();
  }
  void export_unit(const KvShape&, int, int, PagePlanes, std::byte*, std::byte*) const override {
    unexpected();
  }
  void import_unit(const KvShape&, int, int, const std::byte*, const std::byte*,
                   PagePlanes) override {
    unexpected();
  }

 private:
  Buffer make_buffer(std::size_t bytes) override { return Buffer(bytes); }
  [[noreturn]] static void unexpected() {
    fail(ErrorKind::kInternal, "the decoder called what it has no business with");
  }
  void break_at(const char* op) {
    if (broken != op) return;
    broken.clear();
    fail(ErrorKind::kDevice, "{} broke", op);
  }
};

}  // namespace quantspec
