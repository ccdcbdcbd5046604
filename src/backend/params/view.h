// What the rows of an op read of their sequences' K and V. Pointers are to the backend's memory,
// and so are those of spans of pages and of lists. Plain data, no behaviour.
#pragma once

#include <span>

#include "backend/params/kv.h"
#include "base/token.h"
#include "quant/quant.h"

namespace quantspec {

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
  // Rows of a round: of this lane of the batch (RoundOps::begin_batch), whose kv was bound. A draft
  // pass has a row of each lane that drafts more than `drafted` tokens, verification draft_len + 1
  // of each; first_position and num_rows say the same. The sequences of such an op are lanes that
  // follow each other. Negative: not of a round.
  int lane = -1;
  bool verifies = false;
  int drafted = 0;
};

}  // namespace quantspec
