// Arguments of the ops of a pass (pass_ops.h), but for attention's. Pointers are to the backend's
// memory. Activations are fp32, rows are tokens. Strides are in elements. Plain data, no behaviour.
#pragma once

#include <cstdint>
#include <span>

#include "backend/params/linear.h"
#include "backend/params/order.h"
#include "backend/params/view.h"

namespace quantspec {

// How an op may compute. In kDecode a row has the same bits whatever the number of rows beside it,
// as exactness needs (section 3 of docs/design.md); in kPrefill, the bits of a row may depend on
// its index in the op, but not on the number of rows or of threads.
enum class Phase : std::uint8_t { kDecode, kPrefill };

// What the ops of passes that decode have to do at most, and what the model's matrices take and
// give. The head's rows are this rank's, of so many.
struct PassSizes {
  int sequences, rows;  // and so many of each
  int hidden, queries, keys, intermediate, head;
  int ranks;
  KvShape shape;
  int mass_pages;  // of a sequence, of which target passes tell the masses; 0: of none
};

// The same of prefill: a matrix's inputs, and floats of all rows of an op between norm and output.
struct PrefillSizes {
  int inputs;
  std::size_t row_floats;
  int ranks;
};

// What a pass begins with: out[row] = table[token[row]], [num_rows, hidden], and the rotation
// angles of every row's position, from tables that begin at position 0: [num_rows, half] of [..,
// half]. cos null: no angles are wanted.
struct EmbedParams {
  std::span<const SequenceRows> sequences;
  Matrix table;
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
  OpOrder order = OpOrder::kAfter;
};

// x[row] += W in[row] + bias
struct AddLinearParams {
  Phase phase;
  WeightRead weights;
  const float* in;  // [num_rows, inputs]
  int num_rows;
  const Linear* linear;
  float* x;  // [num_rows, outputs]
  OpOrder order = OpOrder::kAfter;
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
  OpOrder order = OpOrder::kAfter;
};

// logits[row] = head(norm(x[row])), always with Phase::kDecode's guarantee.
struct HeadParams {
  WeightRead weights;
  const float* x;  // [num_rows, hidden]
  int num_rows;
  Norm norm;
  const Linear* head;
  float* logits;  // [num_rows, vocab]
  OpOrder order = OpOrder::kAfter;
};

}  // namespace quantspec
