// Arguments of the backend's ops: plain data, no behaviour. Pointers are to the backend's memory
// (Backend::allocate), and so are those of spans of pages and of lists. Activations are fp32, rows
// are tokens. Strides are in elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/token.h"
#include "quant/quant.h"
#include "sampler/acceptance.h"
#include "sampler/sampler.h"

namespace quantspec {

// A matrix, row-major: [rows, cols] of dtype. In a checkpoint it may be unaligned; ops read what
// Backend::place_matrix() made of it.
struct TensorView {
  const void* data;
  DType dtype;
  int rows;
  int cols;
};

// y = W x + bias, readable at full precision and, where planes were made, at 4 and 8 bits.
struct Linear {
  TensorView full;                   // [outputs, inputs]
  const float* bias = nullptr;       // [outputs] or null
  const std::byte* upper = nullptr;  // planes in the backend's order; null: not made
  const std::byte* lower = nullptr;
  int group = kWeightGroup;  // inputs of one (scale, offset) of the planes: 64 or 128

  int outputs() const { return full.rows; }
  int inputs() const { return full.cols; }
};

// How an op may compute. In kDecode a row has the same bits whatever the number of rows beside it,
// as exactness needs (section 3 of docs/design.md); in kPrefill, the bits of a row may depend on
// its index in the op, but not on the number of rows or of threads.
enum class Phase : std::uint8_t { kDecode, kPrefill };

// K and V of one layer in full precision, all kv heads. Position p lies in slot p mod capacity. The
// order and the element type are the backend's. The ring of a cache is one of these (capacity 2 G);
// the scratch in which prefill keeps one layer's K and V is another.
struct FullKv {
  std::byte* data = nullptr;
  int capacity = 0;  // a multiple of 16
  bool operator==(const FullKv&) const = default;
};

// One quantized page: [layers, kv heads] units (quant.h) in the backend's order.
struct PagePlanes {
  std::byte* upper;
  std::byte* lower;
};

// A number for each page that a sequence has or may come to have.
struct PageScores {
  float* data = nullptr;  // [num_kv_heads, max_pages]
  int max_pages = 0;
};

// What one sequence's queries read in one layer: pages, then positions that were gathered one by
// one, then everything from `first_full` on. A target pass reads all pages and gathers nothing;
// sparse drafts do otherwise (section 4 of docs/design.md).
struct KvView {
  std::span<const PagePlanes> pages;  // positions [0, pages.size() * page_size), all layers
  FullKv full;                        // this layer's positions [first_full, ...)
  int first_full = 0;                 // a multiple of 16, at least pages.size() * page_size
  int layer = 0;
  KvRead read = KvRead::kBoth;  // of pages; never kFull
  // [num_kv_heads, n]: the pages that each kv head reads, ascending; empty: every page.
  std::span<int> page_lists = {};
  PageScores page_scores = {};  // by which the lists are chosen (select_pages), where they are
  // Slots [0, num_gathered) of each kv head: K (after RoPE) and V of positions below first_full, in
  // any order, which every row sees.
  FullKv gathered = {};
  int num_gathered = 0;
  // Out: the softmax probability that each page got, summed over the sequence's rows and the query
  // heads of a group; of pages that are yet to come, NaN. Null: not wanted. REQUIRES: no page_lists
  PageScores page_mass = {};
  // Whether first_full stays 0 as the sequence grows: the layer keeps everything in full precision.
  bool all_full = false;
};

// Consecutive rows of one sequence: row first_row + i is the token at first_position + i. The
// sequences of an op, any number, are in the order of their rows.
struct SequenceRows {
  int first_row;
  int num_rows;
  int first_position;
  KvView kv;
  // The token at position p is tokens[p - first_token]; for embed.
  const TokenId* tokens = nullptr;
  int first_token = 0;
  // Rows of a round: of this lane of the batch (Backend::begin_batch), whose kv was bound. A draft
  // pass has a row of each lane that drafts more than `drafted` tokens, verification draft_len + 1
  // of each; first_position and num_rows say the same. The sequences of such an op are lanes that
  // follow each other. Negative: not of a round.
  int lane = -1;
  bool verifies = false;
  int drafted = 0;
};

// RMSNorm: x * weight / sqrt(mean(x^2) + epsilon).
struct Norm {
  const float* weight;  // [hidden] (or [head_dim] for query and key norms); null: no norm
  float epsilon;
};

// What a pass begins with: out[row] = table[token[row]], [num_rows, hidden], and the rotation
// angles of every row's position, from tables that begin at position 0: [num_rows, half] of [..,
// half]. cos null: no angles are wanted.
struct EmbedParams {
  std::span<const SequenceRows> sequences;
  TensorView table;
  float* out;
  // Where they are of rounds: their caches' page size, and the rows of the pass's ops. Those beyond
  // the sequences' are nobody's: they get some numbers, and change nothing else.
  int page_size = 0;
  int num_rows = 0;
  const float* cos_table = nullptr;
  const float* sin_table = nullptr;
  int half = 0;
  float* cos = nullptr;
  float* sin = nullptr;
};

// From x: norm, Q/K/V projections, per-head query/key norms, RoPE; K and V are appended to the
// full-precision K and V of each sequence, Q goes to q_out.
struct QkvParams {
  Phase phase;
  WeightRead weights;
  int num_heads;
  KvShape shape;
  const float* x;  // [num_rows, hidden]
  int num_rows;
  Norm norm;
  const Linear* q;
  const Linear* k;
  const Linear* v;
  Norm q_norm;  // per head, before RoPE
  Norm k_norm;
  const float* cos;  // [num_rows, head_dim / 2]; rotates channels (c, c + head_dim / 2)
  const float* sin;
  float* q_out;  // [num_rows, num_heads * head_dim]; null: only K and V are wanted
  std::span<const SequenceRows> sequences;  // empty: only Q is wanted
};

// softmax(scale * q K^T) V over each sequence's pages and full-precision K and V. The row at
// position p sees positions 0..p. Query head h reads kv head h / (num_heads / num_kv_heads).
struct AttentionParams {
  const float* q;  // [num_rows, num_heads * head_dim]
  float* out;      // like q; may not alias it
  int num_heads;
  KvShape shape;
  float scale;
  std::span<const SequenceRows> sequences;
};

// Of every sequence that has page_lists: page_scores.data[kv head][page] = the greatest, over the
// group's query heads and the keys k that the page could hold, of q . k: sum_c max(q[c] min[c],
// q[c] max[c]), where min and max are the channel's extremes, offset + scale * m and offset + scale
// * (255 - m) (arXiv:2406.10774, from metadata that the page has anyway). One row of each sequence
// at most.
struct PageBoundsParams {
  const float* q;  // [num_rows, num_heads * head_dim]
  int num_heads;
  KvShape shape;
  std::span<const SequenceRows> sequences;
};

// The pages that a sparse draft reads, of every sequence that has rows and page_lists, which this
// fills: per kv head, of all pages those of the greatest page_scores, ascending. Page 0 counts as
// the greatest, then NaN, which is what a page has before it is scored; equal scores rank by page,
// lower first. REQUIRES: lists of fewer pages than there are.
struct SelectPagesParams {
  KvShape shape;
  std::span<const SequenceRows> sequences;
};

// Attention for consecutive rows of a prompt. The row at position p sees positions 0..p: those
// below kv.first_full in all of kv.pages, at 8 bits, the others in kv.full. REQUIRES: kv.first_full
// = kv.pages.size() * page_size; first_full <= first_position; no lists, no gathered positions, no
// page_mass; kv.full has a slot for each position from first_full on; where there are pages,
// `unpacked` has Backend::unpacked_bytes() of first_position + num_rows tokens.
struct PrefillAttentionParams {
  const float* q;  // [num_rows, num_heads * head_dim]
  float* out;      // like q; may alias it
  int num_heads;
  KvShape shape;
  float scale;
  int first_position;
  int num_rows;
  KvView kv;
  std::byte* unpacked = nullptr;
};

// x[row] += W in[row] + bias
struct AddLinearParams {
  Phase phase;
  WeightRead weights;
  const float* in;  // [num_rows, inputs]
  int num_rows;
  const Linear* linear;
  float* x;  // [num_rows, outputs]
};

// out = silu(gate(norm(x))) * up(norm(x))
struct GateUpParams {
  Phase phase;
  WeightRead weights;
  const float* x;  // [num_rows, hidden]
  int num_rows;
  Norm norm;
  const Linear* gate;
  const Linear* up;
  float* out;  // [num_rows, intermediate]
};

// logits[row] = head(norm(x[row])), always with Phase::kDecode's guarantee.
struct HeadParams {
  WeightRead weights;
  const float* x;  // [num_rows, hidden]
  int num_rows;
  Norm norm;
  const Linear* head;
  float* logits;  // [num_rows, vocab]
};

// --- rounds (section 4 of docs/design.md) --------------------------------------------------------

inline constexpr int kMaxDraftLen = 16;  // γ

// How the tokens of a sequence are chosen.
struct TokenRule {
  SamplingParams sampling;
  SpecSampling mode = SpecSampling::kRejection;
  // For measurements of speed alone, on weights that mean nothing: drafted tokens are accepted with
  // this probability whatever the target says. Negative: they are judged.
  float simulated_acceptance = -1.0f;

  // Greedy without a penalty needs no distribution, only the largest logit.
  bool by_argmax() const { return sampling.greedy() && !sampling.penalizes(); }
};

// Where a sequence's round stands, in the backend's memory.
struct Round {
  int length;   // tokens that are chosen, the pending one included
  int drafted;  // tokens after them that the draft proposed
  // Of the last round that was judged:
  int accepted;                     // of the drafted tokens, from the first
  TokenId added[kMaxDraftLen + 1];  // those accepted, and the target's own
  int status;                       // what went wrong; the backend's business (end_round)
  // Between the parts of an op; the backend's business.
  int arrived;
  TokenId judged[kMaxDraftLen + 1];
};

// A sequence that chooses tokens. tokens[position], of which round->length + round->drafted are
// known; room for kMaxDraftLen + 1 more.
struct RoundTokens {
  const TokenRule* rule;
  bool by_argmax;  // as the rule says
  TokenId* tokens;
  Round* round;
  int vocab_size;
  bool operator==(const RoundTokens&) const = default;
};

// A sequence of a round; of an empty lane, which has no rows, only first_row counts.
struct RoundLane {
  RoundTokens at;
  int draft_len = -1;  // so many tokens are drafted, draft_len + 1 verified; -1: the lane is empty
  int first_row = 0;   // of verification, among the batch's, in the order of lanes
  // Where its token at depth d is drafted from logits: draft_probs + d * draft_stride. What
  // propose() leaves there is needed to judge, unless the rule goes by argmax.
  const float* draft_probs = nullptr;
  std::ptrdiff_t draft_stride = 0;

  int rows() const { return draft_len + 1; }
  bool operator==(const RoundLane&) const = default;
};

// What a lane reads follows from it: equal ones read the same memory, in as many places.
struct LaneKey {
  std::uint64_t sequence = 0;  // different for sequences that ever lived; 0: the lane is empty
  int plan = -1;               // of the sequence's, by which it drafts; -1: it does not
  int variant = 0;             // whatever else distinguishes them
  bool operator==(const LaneKey&) const = default;
};

// For the lanes [first_lane, first_lane + count) that draft more than `depth` tokens: appends to
// the drafted ones what the lane's row proposes. Unless the rule needs no distribution, the logits
// become that which was drawn from.
struct ProposeParams {
  int first_lane;
  int count;
  int depth;
  float* logits;  // [count, vocab_size]
};

// Judges the drafted tokens of lanes: appends those that are accepted and the target's own; the
// round's length grows, and nothing is drafted. The target's logits may become its distributions.
struct JudgeParams {
  int first_lane;
  int count;
  float* target_logits;  // [rows of these lanes, vocab_size]
};

// What the ops of a round depend on beside the shape of the batch, which the backend knows, and
// what lies in its memory.
struct RoundKey {
  std::uint64_t issuer;  // who issues, different for all that ever lived
  int draft_plan;        // a number for each plan; -1: nothing is drafted
  int target_plan;
  bool keeps_drafts;  // each depth has logits of its own
  bool keeps_logits;  // there is a copy of the target's
  bool operator==(const RoundKey&) const = default;
};

// Points in time of a round.
enum class Mark : std::uint8_t { kBegin, kDrafted, kEnd };
inline constexpr int kNumMarks = 3;

}  // namespace quantspec
