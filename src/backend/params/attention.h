// Arguments of attention, and of the ops that choose which pages it reads. Pointers are to the
// backend's memory. Activations are fp32, rows are tokens. Plain data, no behaviour.
#pragma once

#include <cstddef>
#include <span>

#include "backend/params/order.h"
#include "backend/params/view.h"

namespace quantspec {

// softmax(scale * q K^T) V over each sequence's pages and full-precision K and V. The row at
// position p sees positions 0..p. Query head h reads kv head h / (num_heads / num_kv_heads).
struct AttentionParams {
  const float* q;  // [num_rows, num_heads * head_dim]
  float* out;      // like q; may not alias it
  int num_heads;
  KvShape shape;
  float scale;
  std::span<const SequenceRows> sequences;
  OpOrder order = OpOrder::kAfter;
  int num_rows = 0;  // 0: up to the sequences' last
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
// `unpacked` has PrefillOps::unpacked_bytes() of first_position + num_rows tokens.
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
  // Whether these pages, of this layer, are to be unpacked: false where a call before has done so,
  // and a backend may take what is there.
  bool unpacks = true;
};

}  // namespace quantspec
