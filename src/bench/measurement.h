// Runs the entries of one context: prefills once for each kind of cache, then decodes from copies
// of it. Private to bench/.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "bench/entries.h"

namespace quantspec::bench {

// One run of an entry: so many tokens after one prompt.
struct Run {
  double seconds = 0;  // of all rounds
  RoundStats stats;
  std::vector<TokenId> tokens;
  std::vector<std::int64_t> rounds_by_plan;  // that drafted
};

// All counted runs of an entry.
struct Measured {
  std::vector<std::vector<Run>> repeats;  // [repeat][prompt]
  std::vector<double> prefill_ms;         // [prompt]
  MemoryPlan memory;
  std::size_t gathered_bytes = 0;  // as BenchRow's
};

// Tokens decoded so far, of all entries; a prefill counts as some too. Called between rounds.
using TokensDone = std::function<void(double)>;

// Throws kOutOfMemory, before it allocates, where the caches of these entries do not fit together.
void require_memory(Engine& engine, const std::vector<Entry>& entries, const BenchOptions& options,
                    int context);

// What measure() will report in all.
double tokens_to_do(const std::vector<Entry>& entries, const BenchOptions& options, int context);

// Prompt by prompt; on each, a warm-up of every entry, then the repeats: in each of them, one run
// of every entry. Throws kCorruptFile where the checkpoint changed meanwhile.
// REQUIRES: prompts of equal length.
std::vector<Measured> measure(Engine& engine, const std::vector<Entry>& entries,
                              std::span<const Prompt> prompts, const BenchOptions& options,
                              const TokensDone& tokens_done);

// Repeats of what no clock decides give the same tokens; lossless entries those of one another.
// Throws kInternal where two of these did not.
void require_same_tokens(const std::vector<Entry>& entries, const std::vector<Measured>& all);

}  // namespace quantspec::bench
