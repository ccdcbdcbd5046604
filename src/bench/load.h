// Speed under load: many requests at once, by every plan, beside the same engine without drafts and
// with an fp16 cache (docs/bench.md, "Many streams"). Either uniform, so many prompts of one length
// that decode together, or a trace of arrivals.
//
// As bench.h: what is compared runs in one process and interleaved, speed-ups are ratios within a
// repeat, and what must give the same tokens is held to it. Errors likewise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "bench/trace.h"

namespace quantspec {

struct LoadOptions {
  // How many requests at once: of uniform load, one list of rows for each; of a trace, one number,
  // the sequences that are in the cache together.
  std::vector<int> streams = {8};
  std::optional<Trace> trace = {};  // none: uniform load
  // Of uniform load: tokens of a prompt that comes when all else was measured, while the streams
  // decode on; 0: none does.
  int late_prompt = 0;
  // Of a trace, as EngineOptions': bytes of 8-bit pages, 0: what all streams can come to hold; and
  // of the host's memory for what they have no room for. fp16 caches have neither.
  std::size_t page_memory = 0;
  std::size_t host_cache = 0;
};

// Of a loop's requests, and of cached prefixes: where they went that pages had no room for.
struct LoadMoves {
  std::int64_t preemptions = 0;
  std::int64_t swaps = 0;    // of those, to the host's memory
  std::int64_t replays = 0;  // to be read again
  std::int64_t pages_swapped_out = 0;
  std::int64_t pages_swapped_in = 0;
  std::int64_t prefix_pages_to_host = 0;
  std::int64_t prefix_pages_from_host = 0;
};

// The tokens that a sequence holds at most in such a run, for EngineOptions::ctx_size.
// REQUIRES: one context or more where there is no trace.
int load_context(const BenchOptions& options, const LoadOptions& load);

// Throws kInvalidRequest for what this model cannot run, known without its weights.
void require_loadable(const BenchOptions& options, const LoadOptions& load,
                      const ModelConfig& model);

// Of all counted requests or intervals together, in milliseconds; by nearest rank. NaN: none.
struct Latency {
  double p50 = 0;
  double p99 = 0;
};

// A tenth of a trace's time.
struct LoadMoment {
  double ms = 0;         // its end, after the first arrival
  double streams = 0;    // that decoded, mean over its rounds
  double draft_len = 0;  // mean over what they drafted in a round
  double output_tokens_per_second = 0;
};

// One plan, draft length and temperature, at one number of streams and one context or trace.
struct LoadRow {
  int streams = 0;
  std::optional<int> context;  // tokens of a prompt; none: a trace's
  std::string plan;            // as BenchRow's, and the next four
  std::optional<int> draft_len;
  float temperature = 0;
  std::optional<int> draft_budget;
  std::string chosen_plan;
  int requests = 0;  // of a repeat
  int repeats = 0;
  std::optional<int> tokens;  // of a stream in a repeat; none: as a trace says
  Spread output_tokens_per_second;
  Spread speedup_fp16;  // of that, in the same repeat, at the same temperature
  Spread speedup_int8;
  Latency ttft;  // from a request's arrival to its first token
  Latency itl;   // between two arrivals of tokens at a client; a round brings one or more
  Latency tpot;  // of a stream: its time after the first token over the tokens in it
  std::optional<double> acceptance_rate;
  std::optional<double> acceptance_per_token;
  double draft_len_mean = 0;
  double streams_per_round = 0;
  double draft_ms = 0;             // of a round, mean
  double other_ms = 0;             // of a round, mean: verification, acceptance, pages
  std::int64_t cached_tokens = 0;  // of prompts, that needed not be read, in all repeats
  LoadMoves moves;                 // in all repeats
  MemoryPlan memory;  // of such a run alone: all streams' pages and rings at their most
  std::size_t process_peak_bytes = 0;  // the most that this process has held so far, in all
  // The tokens are those of plain-int8 and of all repeats; none: they need not be (rejection,
  // fp16).
  std::optional<bool> identical;
  std::uint64_t tokens_hash = 0;      // of the first `tokens` of every stream, or a trace's all
  std::vector<LoadMoment> over_time;  // of a trace's first repeat
  struct Late {
    std::optional<double> ttft_ms;  // none: streams had all that they may hold before
    Latency itl;                    // of the streams, up to then
  };
  std::optional<Late> late;  // while the late prompt was read
};

struct LoadMeta {
  ReportHead head;
  std::vector<int> streams;
  std::string trace;  // its path; empty: uniform load
  int requests = 0;   // of the trace
  int late_prompt = 0;
  std::size_t page_memory = 0;
  std::size_t host_cache = 0;
  int repeats = 0;
  int warm_up = 0;
  std::uint64_t seed = 0;
  SpecSampling spec_sampling = SpecSampling::kCoupled;
  std::vector<LeftOut> left_out;
};

struct LoadReport {
  LoadMeta meta;
  std::vector<LoadRow> rows;
};

struct LoadEvents {
  std::function<void(const LoadMeta&)> begin = {};
  // The rows of one number of streams at one context.
  std::function<void(std::span<const LoadRow>)> rows_done = {};
  ProgressCallback progress = {};
};

// `options`: prompts, machine and recall_distance are of no meaning for a trace, nor contexts and
// predict. REQUIRES: as run_bench.
LoadReport run_load(Engine& engine, const Dataset& dataset, const BenchOptions& options,
                    const LoadOptions& load, const LoadEvents& events = {});

// --- the report, piece by piece, as bench.h's; its tail is bench_tail() --------------------------

std::string load_head(BenchFormat format, const LoadMeta& meta, FieldNames names = plain_name);
std::string load_rows(BenchFormat format, std::span<const LoadRow> rows, bool first);

}  // namespace quantspec
