// A rank's share of a model that several ranks compute together (comm/comm.h): some of the heads
// and of the MLP's channels, and some rows of the head.
//
//     q, k, v, gate, up, head           rows, with their biases: an output is one rank's
//     o, down                           columns: whole segments of a sum (segments.h)
//     embedding, norms, the bias of o   all of it, at every rank
//
// So products of shares have the bits of the whole: outputs side by side, and of o and down, x plus
// the bias, plus the sum of what the ranks' columns give (Communicator::reduce_add).
//
// Ranks that share contexts (backend/params/context.h) all have the k and v of such a context's KV
// heads. So there may be more ranks than shares: those that are alike have the same one.
#pragma once

#include <memory>
#include <vector>

#include "model/config.h"
#include "model/weight_source.h"

namespace quantspec {

struct RankGroups;  // backend/backend.h

struct Share {
  ModelConfig config;  // of a model with so many heads and channels
  std::unique_ptr<WeightSource> source;
};

// How many ranks can share a model, where so many of them share each context: some of 1, 2, 4, 8.
std::vector<int> rank_counts(const ModelConfig& model, const WeightSource& source,
                             int context_ranks = 1);

// How so many ranks do that: by as many shares of the weights as can be. Throws kInvalidRequest as
// share_of().
RankGroups rank_groups(const ModelConfig& model, const WeightSource& source, int ranks,
                       int context_ranks);

// The share of one of 1, 2, 4 or 8 ranks. Of what is shared it reads its own rows and columns, up
// to pages, but for what a file has in another order: q and k of GGUF's elements. Shares have the
// hash of the whole. One rank decides what passes all make: their parts of a prompt, drafts,
// plans. Throws kInvalidRequest where a model cannot be shared by so many, saying by how many it
// can; else as unread_tensors() of the whole. REQUIRES: 0 <= rank < ranks.
Share share_of(const ModelConfig& model, std::unique_ptr<WeightSource> source, int rank, int ranks,
               const RankGroups& groups);
// The same of ranks that share no contexts.
Share share_of(const ModelConfig& model, std::unique_ptr<WeightSource> source, int rank, int ranks);

}  // namespace quantspec
