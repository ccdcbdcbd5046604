// Runs the entries of one load, and says what came of each. Private to bench/.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/entries.h"
#include "bench/load.h"
#include "bench/load_loop.h"
#include "engine/request_loop.h"

namespace quantspec::bench {

// What a loop's rounds did, from one moment to another. A turn is a sequence's part of a round.
struct RoundSums {
  std::int64_t rounds = 0;
  std::int64_t turns = 0;
  std::int64_t drafted = 0;
  std::int64_t accepted = 0;
  std::int64_t rejections = 0;
  double round_seconds = 0;
  double draft_seconds = 0;
  std::vector<std::int64_t> turns_by_plan = {};  // that drafted

  RoundSums() = default;
  explicit RoundSums(const RequestLoop::Statistics& statistics);
  RoundSums& operator+=(const RoundSums& other);
  RoundSums operator-(const RoundSums& before) const;
};

// Of a loop, since it was made.
LoadMoves moves_of(const RequestLoop::Statistics& statistics);

// While a prompt was read beside the streams of uniform load.
struct LateMeasured {
  std::optional<double> ttft = {};  // seconds; none: streams came to their end before
  std::vector<double> itl = {};     // of the streams
};

// A repeat: of uniform load, a stretch in which all streams decode; of a trace, all of it.
struct LoadRepeat {
  double seconds = 0;
  std::int64_t tokens = 0;
  RoundSums rounds = {};
};

struct LoadMeasured {
  std::vector<LoadRepeat> repeats = {};
  std::vector<double> ttft = {}, itl = {}, tpot = {};  // seconds, of all repeats
  // [run][stream]. Uniform load is one run, of a trace every repeat is.
  std::vector<std::vector<std::vector<TokenId>>> tokens = {};
  std::int64_t cached_tokens = 0;
  LoadMoves moves = {};
  std::size_t pages = 0;  // in use at the most
  std::vector<LoadMoment> over_time = {};
  std::optional<LateMeasured> late = {};
};

// Tokens decoded so far, of all entries; a prompt's count as some, too. Called between steps.
using TokensDone = std::function<void(double)>;

// Uniform load: every stream has a prompt of its own. late_prompt: empty or, of the tokens that are
// given, a prompt that comes in the end, while the streams go on.
// The tokens that a stream writes at most.
int uniform_tokens(const BenchOptions& options, int late_prompt);
double uniform_effort(std::size_t entries, int streams, int context, const BenchOptions& options,
                      int late_prompt);
std::vector<LoadMeasured> measure_uniform(Engine& engine, std::span<const Entry> entries,
                                          std::span<const std::vector<TokenId>> prompts,
                                          const std::vector<TokenId>& late_prompt,
                                          const BenchOptions& options,
                                          const TokensDone& tokens_done);

double trace_effort(std::size_t entries, const Trace& trace, const BenchOptions& options);
std::vector<LoadMeasured> measure_trace(Engine& engine, std::span<const Entry> entries,
                                        const Trace& trace,
                                        std::span<const std::vector<TokenId>> prompts,
                                        const BenchOptions& options, const LoadLoopOptions& loop,
                                        const TokensDone& tokens_done);

// Whether an entry must give the tokens of others, and of which: the first of them. None: it need
// not.
std::optional<std::size_t> like(std::span<const Entry> entries, std::size_t entry);
// Where it gave other ones in some run: the entry, the stream and the first such token, in words;
// empty: nowhere. Streams are compared as far as both went.
std::string difference(std::span<const Entry> entries, std::span<const LoadMeasured> all,
                       std::size_t entry);

}  // namespace quantspec::bench
