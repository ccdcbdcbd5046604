// Decode attention: what ops.h asks for becomes launches. The kernel is in attention_kernel.cuh.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <numbers>

#include "backend/cuda/attention_launch.h"
#include "backend/cuda/context.h"
#include "backend/cuda/linear_rows.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/ranks.h"
#include "backend/params/attention.h"
#include "backend/params/lengths.h"
#include "backend/params/pass.h"
#include "base/error.h"
#include "base/fields.h"

namespace quantspec::cuda {

namespace {

void check_supported(const AttentionParams& params) {
  check(params.num_heads % params.shape.num_kv_heads == 0, "query heads share kv heads evenly");
  require_supported(params.shape);
  const KvView& first = params.sequences.front().kv;
  for (const SequenceRows& sequence : params.sequences) {
    const KvView& kv = sequence.kv;
    check(kv.read == first.read && kv.layer == first.layer,
          "the sequences of an op read one layer at one precision");
    check(
        params.shape.context_ranks == 1 || (kv.page_mass.data == nullptr && kv.page_lists.empty()),
        "ranks that share a context read all of its pages");
    if (kv.page_mass.data == nullptr) continue;
    check(kv.page_lists.empty(), "page_mass is of all pages, not of listed ones");
    check(kv.page_mass.max_pages >= 1 && std::ssize(kv.pages) <= kv.page_mass.max_pages,
          "page_mass has room for the pages");
  }
}

static_assert([] {
  for (int group = 1; group <= 256; ++group) {
    const unsigned inverse = AttentionArgs::inverse_of(group);
    for (const int row : {0, 1, 2, 17, 255, 256, 511}) {
      const int first = row * group, last = first + group - 1;
      if (AttentionArgs::divide(first, inverse) != row) return false;
      if (AttentionArgs::divide(last, inverse) != row) return false;
    }
  }
  return true;
}());

// Of `count` of the sequences, from `first` on. Its shape follows from all of the op's, so that it
// is the same whichever of them have rows: a round is repeated with others. Which kernel it has
// follows from how long they are, too, and into how many slots drafts go from how many have rows;
// repeated with others it is right, if slower.
AttentionLaunch launch_of(const AttentionParams& params, const SequenceTables& all, int first,
                          int count) {
  const KvView& kv = params.sequences.front().kv;
  AttentionLaunch launch{};
  launch.args.q = params.q;
  launch.args.out = params.out;
  launch.args.num_heads = params.num_heads;
  launch.args.group = params.num_heads / params.shape.num_kv_heads;
  launch.args.group_inverse = AttentionArgs::inverse_of(launch.args.group);
  launch.args.shape = params.shape;
  launch.args.layer = kv.layer;
  launch.args.scale = params.scale * std::numbers::log2e_v<float>;
  launch.args.sequences = all.from(first, count);
  launch.read = kv.read;
  launch.all_full = kv.all_full;
  BatchLengths lengths;
  for (const SequenceRows& sequence : params.sequences) {
    if (sequence.num_rows > 0) lengths.add(sequence.first_position);
    launch.columns = std::max(launch.columns, sequence.num_rows * launch.args.group);
    if (sequence.kv.page_mass.data == nullptr) continue;
    launch.args.page_capacity =
        std::max(launch.args.page_capacity, sequence.kv.page_mass.max_pages);
  }
  launch.tokens = static_cast<int>(lengths.mean());
  launch.unequal = lengths.unequal();
  launch.sharing = static_cast<int>(
      std::ranges::count_if(params.sequences.subspan(first, count),
                            [](const SequenceRows& sequence) { return sequence.num_rows > 0; }));
  return launch;
}

// f.operator()<head_dim>()
template <typename F>
void with_head_dim(int head_dim, const F& f) {
  switch (head_dim) {
    case 64:
      return f.template operator()<64>();
    case 80:
      return f.template operator()<80>();
    case 96:
      return f.template operator()<96>();
    case 128:
      return f.template operator()<128>();
    case 256:
      return f.template operator()<256>();
  }
  check(false, "head_dim is supported");
}

// heads_shares: as in AttentionLaunch.
void attend(Device& device, const AttentionParams& params, int heads_shares) {
  check_supported(params);
  OpLaunches launches(device, params.order);
  const SequenceTables all = launches.tables(params.sequences, 0, params.shape.num_kv_heads);
  for_launches(std::ssize(params.sequences), [&](int first, int count) {
    AttentionLaunch launch = launch_of(params, all, first, count);
    launch.order = launches.next();
    launch.heads_shares = heads_shares;
    launch.contexts = device.num_contexts();
    with_head_dim(params.shape.head_dim,
                  [&]<int kHeadDim>() { launch_attention<kHeadDim>(device, launch); });
  });
}

// With the queries of all.
void attend_as_ranks(Device& device, const AttentionParams& params) {
  check(device.ranks() != nullptr && device.ranks()->are_of(params.shape),
        "a cache is of the ranks that share its contexts");
  Ranks& ranks = *device.ranks();
  const int shares = ranks.shares_of_context();
  AttentionParams all = params;
  if (shares > 1) {
    const SequenceRows& last = params.sequences.back();
    const int rows = params.num_rows > 0 ? params.num_rows : last.first_row + last.num_rows;
    const int width = params.num_heads * params.shape.head_dim;
    float* const q = rank_scratch(device, rows, width * shares);
    ranks.gather_queries(params.q, rows, width, q);
    all.q = q;
    all.num_heads *= shares;
    all.order = OpOrder::kOverlaps;
  }
  attend(device, all, shares);
}

}  // namespace

void require_supported(const KvShape& shape) {
  const int page = shape.page_size, dim = shape.head_dim;
  if (page != 32 && page != 64 && page != 128 && page != 256) {
    fail(ErrorKind::kUnsupportedModel,
         "the CUDA backend has attention for pages of 32, 64, 128 or 256 tokens, not {}", page);
  }
  if (dim != 64 && dim != 80 && dim != 96 && dim != 128 && dim != 256) {
    fail(ErrorKind::kUnsupportedModel,
         "the CUDA backend has attention for heads of 64, 80, 96, 128 or 256 channels, not {}; "
         "{} cpu works",
         dim, field::kBackend);
  }
  if (shape.context_ranks > 1 && page > kMostTurnTokens) {
    fail(ErrorKind::kInvalidRequest,
         "{} {}: GPUs share contexts in pages of 32, 64 or 128 tokens, not {}",
         field::kContextRanks, shape.context_ranks, page);
  }
}

int target_splits(const Device& device, const KvShape& shape) {
  return target_splits(device.num_sms(), shape.num_kv_heads * device.num_contexts());
}

// Of drafts, which have a row of each sequence, and of target passes with so many rows or fewer:
// which kernel takes most does not follow from their number alone.
AttentionScratch attention_scratch(const Device& device, const PassSizes& sizes,
                                   const RankSharing& sharing) {
  AttentionScratch most;
  const auto add = [&](KvRead read, int sequences, int rows, int mass_pages, int tokens) {
    AttentionLaunch launch{};
    launch.tokens = tokens;
    launch.heads_shares = sharing.shares_of_context();
    launch.contexts = sharing.contexts();
    const int heads = sizes.queries / sizes.shape.head_dim * launch.heads_shares;
    launch.args.shape = sizes.shape;
    launch.args.group = heads / sizes.shape.num_kv_heads;
    launch.args.page_capacity = mass_pages;
    launch.args.sequences.count = sequences;
    launch.read = read;
    launch.all_full = read != KvRead::kUpper;  // which may have either form of every launch
    launch.columns = rows * launch.args.group;
    with_head_dim(sizes.shape.head_dim, [&]<int kHeadDim>() {
      const AttentionScratch scratch = scratch_of<kHeadDim>(device, launch);
      most.results = std::max(most.results, scratch.results);
      most.counters = std::max(most.counters, scratch.counters);
    });
  };
  const int sequences = std::min(padded(sizes.sequences), kLaunchSequences);
  for (int count = 1; count <= sequences; ++count) {  // where splits are merged follows from it
    add(KvRead::kUpper, count, 1, 0, 0);
    for (int rows = 1; rows <= sizes.rows; ++rows) {
      for (const int tokens : {0, std::numeric_limits<int>::max()}) {
        add(KvRead::kBoth, count, rows, sizes.mass_pages, tokens);
      }
    }
  }
  return most;
}

void attention(Device& device, const AttentionParams& params) {
  if (params.sequences.empty()) return;
  if (params.shape.context_ranks > 1) return attend_as_ranks(device, params);
  attend(device, params, 1);
}

}  // namespace quantspec::cuda
