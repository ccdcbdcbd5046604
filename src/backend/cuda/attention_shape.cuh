// Decode attention, the words of its files:
//
// A *band* is 64 consecutive tokens of a unit (32 of pages of 32): one lane's codes of all its
// token tiles are one load. A *slab* is 16 or 32 consecutive tokens of a FullKv. What is copied to
// shared memory at a time is a *piece*: the keys, or the values, of a band or of a slab.
// A *column* is one (row, query head of the group): the queries that read one kv head are the
// columns of the products' B operand, keys and values are their A operand (layout.h).
//
// A CTA reads its *split* of one sequence and kv head: of its *parts* (the bands of all pages,
// then the slabs), parts 2 j and 2 j + 1 belong to split j % splits, to its pair of teams
// j / splits % (teams / 2). A *team* is one warp or, where columns are many, two that share the
// work of each part (Team). Every team has its own softmax; they are merged in fixed order at the
// end. Neither rows, nor batch, nor column tiles, nor warps change what a team adds up in which
// order; and what a row does not see adds exact zeros. A draft has no more splits than the parts of
// its first row fill with one for each team (then part j belongs to split j % splits, team j /
// splits), and the CTAs beyond end at once; in a batch it may have fewer (attention_slots.cuh). So
// of its bits only those of one row alone are promised.
//
// A target's batch has CTAs that stay, and read split after split, where contexts are short or
// columns of codes are one tile, in blocks of three column tiles at most (attention_turns.cuh); but
// not with heads of 256 channels, nor pages of 32 tokens.
//
// Of ranks that share a context (context.h) each has the CTAs of some splits, which read what one
// GPU's would: all bands of those splits are its own, and it has all slabs. Then all tell each
// other what came out, and a kernel of its own merges the splits. A draft has as many splits for
// each of a target's, however few its parts.
//
// On 9.0 a launch begins while the kernel ahead still runs, and its copies with it: of what that
// kernel does not write. States, page tables and pages are older than the pass, and so are the
// ring's tokens before the pass's own; lists of pages come from a kernel that lets nothing start
// before its end. Queries, the pass's own tokens, and all that a launch writes wait.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "backend/cuda/context.h"
#include "backend/cuda/device.h"
#include "backend/cuda/layout.h"
#include "backend/cuda/ptx.cuh"

namespace quantspec::cuda {

// One launch. [..] of scratch memory: what a CTA leaves to the one that merges its kv head; what is
// zero is left so.
struct AttentionArgs {
  const float* q;
  float* out;
  int num_heads;
  int group;               // query heads of a kv head
  unsigned group_inverse;  // inverse_of(group)
  KvShape shape;
  int layer;
  float scale;           // times log2(e)
  int splits;            // of all ranks that share the context
  int context_shift;     // 2^context_shift ranks share it
  int places;            // for splits of a rank; the grid's
  int draft_slots;       // of a batch's drafts: CTAs of a kv head, for all sequences; else 0
  int column_blocks;     // CTAs that share a split, each with its own columns
  int band_shift;        // a page is 2^band_shift bands
  int* tickets;          // [sequence, kv head], zero; null where another kernel merges
  float2* partial_sums;  // [sequence, kv head, block, place, column]: exponent, sum
  float* partials;       // [.., channel], not normalized; both zero where there are tickets
  float2* totals;        // [sequence, kv head, column of any block]: exponent, 1 / sum
  float2* page_sums;     // [sequence, kv head, page, band, column of any block]: exponent, sum
  int page_columns;      // in totals, and of a band in page_sums
  int page_capacity;     // pages in page_sums: the most of a sequence that wants their masses
  SequenceTables sequences;

  // A column's query head of its kv head, and its row. NOTE: not by a division, which takes many
  // instructions: all warps wait where this is asked for.
  __device__ int row_of(int column) const { return divide(column, group_inverse); }
  __device__ int head_of(int column) const { return column - row_of(column) * group; }

  // column / group. Exact while columns times group are less than 2^31.
  static constexpr int divide(int column, unsigned inverse) {
    return static_cast<int>(static_cast<std::uint64_t>(column) * inverse >> kInverseBits);
  }
  static constexpr unsigned inverse_of(int group) {
    return ((1u << kInverseBits) + group - 1) / group;
  }
  static constexpr int kInverseBits = 31;
};

template <int kHeadDimension, int kTiles, int kColumnTileCount, int kPlaneCount, int kTeamWarps = 1>
struct AttentionShape {
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kChannelTiles = kHeadDim / 16;
  static constexpr int kTokenTiles = kTiles;  // of a band: tile_slabs(page_size)
  static constexpr int kBandTokens = 16 * kTokenTiles;
  static constexpr int kColumnTiles = kColumnTileCount;
  static constexpr int kColumns = 8 * kColumnTiles;  // of a CTA
  static constexpr int kPlanes = kPlaneCount;        // 1: upper, 2: both
  static constexpr int kTeam = kTeamWarps;           // warps
  static constexpr int kValueGroups = (kHeadDim + kValueGroup - 1) / kValueGroup;
  static constexpr int kSlabTiles = kPlanes;  // so that a slab fills a slot as a band does
  static constexpr int kSlabTokens = 16 * kSlabTiles;

  // Key piece: upper plane, lower plane, key_scale, key_offset. Value piece: upper plane, lower
  // plane, value_scale, value_offset of the band. Slab piece: rows of kRowBytes.
  static constexpr int kPlaneBytes = kBandTokens * kHeadDim / 2;
  static constexpr int kValueScaleBytes = 2 * kBandTokens * kValueGroups;
  // NOTE: an odd number of 16-byte units, so that the 8 rows of an ldmatrix lie in different banks.
  static constexpr int kRowBytes = 2 * kHeadDim + 16;
  static constexpr int kKeyBytes = kPlanes * kPlaneBytes + 4 * kHeadDim;
  static constexpr int kValueBytes = kPlanes * kPlaneBytes + 2 * kValueScaleBytes;
  static constexpr int kSlabBytes = kSlabTokens * kRowBytes;
  static constexpr int kSlotBytes = kKeyBytes > kValueBytes
                                        ? (kKeyBytes > kSlabBytes ? kKeyBytes : kSlabBytes)
                                        : (kValueBytes > kSlabBytes ? kValueBytes : kSlabBytes);

  // A warp's share of a part: scores of so many column tiles, then values of so many channel tiles.
  static constexpr int kScoreTiles = kColumnTiles / kTeam;
  static constexpr int kOutTiles = kChannelTiles / kTeam;
  static_assert(kScoreTiles * kTeam == kColumnTiles && kOutTiles * kTeam == kChannelTiles);

  // Whether splits are merged by a kernel of their own (attention_merge.cu), not by a CTA.
  static constexpr bool kMergesApart = kPlanes == 2 && kColumnTiles > 1;

  // Products with codes are in units of 1 / kCodeUnit scales: codes are subnormals, and those of 4
  // bits are 16 scales apart (code_fragment).
  static constexpr float kCodeUnit = kPlanes == 1 ? 16.0f * 0x1p24f : 0x1p24f;

  // Pieces under way or being read, of a team. NOTE: a third takes L1 from spilled registers. On an
  // H200, 128k tokens: draft 0.146 ms with it and 0.144 without, verifying 32 columns 0.178 and
  // 0.148.
  static constexpr int kSlots = 2;
  // Slots, and where the units of the next bands are (PieceStream), of a team.
  static constexpr int kStreamBytes = kSlots * kSlotBytes + kPlanes * 32 * 8;
  // Whether codes of the next part are asked for while those of this one are read (CodesAhead). Not
  // where lanes read what others copied, and not where columns leave no registers for it.
  static constexpr bool kCopiesAhead = kTeam == 1 && kTokenTiles == 4 && kColumnTiles <= 2;
  // So many parts in a row go to teams of one CTA: neighbours come sooner when asked for together.
  static constexpr int kBeside = 2;
  // Whether a batch may have CTAs that stay (attention_turns.cuh).
  static constexpr bool kTakesTurns =
      kPlanes == 2 && kTokenTiles == 4 && kHeadDim <= 128 && kColumnTiles <= 3;
  // The most teams of a CTA, and CTAs of a multiprocessor (by registers).
  static constexpr int kMaxTeams = 8;
  static constexpr int kCtas = kPlanes == 1 && kColumnTiles == 1 && kHeadDim <= 128 ? 2 : 1;
  static_assert(kMaxTeams % kBeside == 0);
  // So many splits for each of a target's: those CTAs of a draft's one row.
  static constexpr int kSplits = kPlanes == 1 && kHeadDim <= 128 ? 2 : 1;

  // Shared memory before the slots: queries, what Queries has of each column, what warps have.
  static constexpr int kQueryBytes = kColumns * kHeadDim * 2;
  static constexpr int kExponentsOffset = kQueryBytes + kColumns * 12;
  static constexpr int kTeamStats = kTeam == 1 ? 2 : 2 + kValueGroups;  // TeamPartials, of a column
  static constexpr int kStatBytes = kMaxTeams * kColumns * kTeamStats * 4;
  static constexpr int kSlotsOffset = (kExponentsOffset + kStatBytes + 127) / 128 * 128;
  // Behind the slots, of each team: what its warps tell each other, or put away (Team); per warp
  // operands, and what belongs to columns.
  static constexpr int kOperandBytes =
      32 * 16 *
      (kScoreTiles * kTokenTiles / 2 > kOutTiles ? kScoreTiles * kTokenTiles / 2 : kOutTiles);
  static constexpr int kKeptBytes = 32 * 16 * (2 + kValueGroups);
  static constexpr int kTeamBytes =
      kTeam == 1 ? 0 : kTeam * (kOperandBytes + kKeptBytes) + 4 * kColumns + 16;
  // What merging the teams puts over the slots: rows of channels, padded so that four lanes of a
  // column's row lie in different banks.
  static constexpr int kMergeRow = kHeadDim + 4;
  static constexpr int kMergeStride = kColumns * kMergeRow;  // of a team
  static constexpr int merge_bytes(int teams) { return teams * kMergeStride * 4; }
};

// Where this lane is in fragments (ptx.cuh).
struct FragmentLane {
  int index, g, t;
  __device__ FragmentLane() : index(threadIdx.x % 32), g(index / 4), t(index % 4) {}
};

// As the layer has it. NOTE: from L2, as all that changes from pass to pass and is read before
// other kernels have ended: L1 may hold older words.
__device__ __forceinline__ SequenceState state_of(const SequenceState* at, const SequenceKv& kv) {
  const int4 rows = __ldcg(reinterpret_cast<const int4*>(at));
  const int pages = __ldcg(&at->num_pages);
  SequenceState state;
  state.first_row = rows.x;
  state.num_rows = rows.y;
  state.first_position = rows.z;
  state.first_full = kv.all_full ? 0 : rows.w;
  state.num_pages = kv.pages == nullptr ? 0 : pages;
  return state;
}

// REQUIRES: ranks share the context
template <class S>
__host__ __device__ RankSplits rank_splits(const AttentionArgs& args) {
  return {args.splits / S::kSplits, S::kSplits, 1 << args.context_shift};
}

// What a CTA reads. Until take() has said which split it is, what all of a sequence have in common.
struct Work {
  int sequence, kv_head, split, block;
  int place;  // the split's
  const SequenceKv* kv;
  SequenceState state;
  int num_bands;       // parts [0, num_bands)
  int gathered_slabs;  // then so many slabs, then those of the ring
  int num_parts;
  int splits;  // of a draft: those that read something
  int teams;
  bool beside;      // parts 2 j and 2 j + 1 are of one split
  int part_stride;  // of a team

  template <class S>
  __device__ static Work of(const AttentionArgs& args, int sequence, int teams) {
    Work work;
    work.sequence = sequence;
    work.kv = args.sequences.of(sequence);
    const SequenceKv& kv = *work.kv;
    work.state = state_of(args.sequences.states + sequence, kv);
    work.teams = teams;
    const int pages = kv.pages_listed > 0 ? kv.pages_listed : work.state.num_pages;
    const int end = work.state.first_position + work.state.num_rows - work.state.first_full;
    work.num_bands = pages << args.band_shift;
    work.gathered_slabs = (kv.num_gathered + S::kSlabTokens - 1) / S::kSlabTokens;
    work.num_parts =
        work.num_bands + work.gathered_slabs + (end + S::kSlabTokens - 1) / S::kSlabTokens;
    work.splits = args.splits;
    work.beside = true;
    if (S::kPlanes == 1 && args.context_shift == 0) work.share_draft<S>(args.splits);
    work.part_stride = work.splits * work.teams;
    return work;
  }
  // A draft has `most` splits, but no more than its first row fills with a part for each team.
  template <class S>
  __device__ void share_draft(int most) {
    const int before = state.first_position - state.first_full;
    const int parts = num_bands + gathered_slabs + before / S::kSlabTokens + 1;
    const int wanted = (parts + teams - 1) >> (31 - __clz(teams));  // they are a power of two
    splits = min(most, wanted);
    beside = splits < wanted;  // else each team has but one part
    part_stride = splits * teams;
  }
  // Blocks of a split are neighbours, so that one finds in L2 what another reads. Splits that read
  // nothing come last, so that the others have multiprocessors for themselves.
  template <class S>
  __device__ void take(const AttentionArgs& args, int head_and_block, int blocks, int in_place) {
    kv_head = head_and_block / blocks;
    block = head_and_block % blocks;
    place = split = in_place;
    if (args.context_shift > 0) {
      const int unit = args.layer * args.shape.num_kv_heads + kv_head;
      // first_split(); a division less.
      const int first = (args.shape.context_rank - unit) & ((1 << args.context_shift) - 1);
      split = rank_splits<S>(args).in_place(place, first);
    }
  }
  template <class S>
  __device__ int first_part(int team) const {
    return first_part<S>(split, team);
  }
  template <class S>
  __device__ int first_part(int of_split, int team) const {
    if (!beside) return of_split + splits * team;
    return S::kBeside * (of_split + splits * (team / S::kBeside)) + team % S::kBeside;
  }
  __device__ int columns(const AttentionArgs& args) const {  // of all blocks
    return state.num_rows * args.group;
  }
  template <class S>
  __device__ int live_columns(const AttentionArgs& args) const {  // of the block
    return min(S::kColumns, columns(args) - block * S::kColumns);
  }
  // Where the partial result of the split lies, in columns.
  template <class S>
  __device__ std::ptrdiff_t partial(const AttentionArgs& args) const {
    const std::ptrdiff_t head = sequence * args.shape.num_kv_heads + kv_head;
    return ((head * args.column_blocks + block) * args.places + place) * S::kColumns;
  }
};

}  // namespace quantspec::cuda
