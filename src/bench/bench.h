// The measuring instrument: speed, acceptance and memory of plans (model/plan.h), all over the same
// weights, kernels and prompts, in one process and interleaved run by run, so that whatever drifts
// hits all of them alike. docs/bench.md says how it measures and what every field means.
//
// Plain decoding is measured twice, over an fp16 cache and over the hierarchical one (8-bit pages):
// speed-ups are over both. Every run starts from a copy of the same state after the prompt.
//
// Times are in milliseconds unless a name says otherwise, sizes in bytes. One call at a time.
// Errors: kInvalidRequest before any long work for what cannot be run, kOutOfMemory, and kInternal
// where runs that must give the same tokens did not, after the rows of their context were told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/message.h"
#include "base/report_head.h"
#include "datasets/datasets.h"
#include "engine/engine.h"
#include "roofline/roofline.h"

namespace quantspec {

inline constexpr std::string_view kPlainFp16 = "plain-fp16";
inline constexpr std::string_view kPlainInt8 = "plain-int8";

struct BenchOptions {
  std::vector<int> contexts = {4096};  // tokens of a prompt
  int predict = 512;                   // tokens that a run decodes, whatever they are
  std::vector<std::string> plans = {"quantspec", "auto"};       // make_plan()'s, auto and all
  std::vector<std::optional<int>> draft_lens = {std::nullopt};  // nullopt: chosen by measured cost
  std::vector<KvBudget> draft_budgets = {{}};  // of sparse plans; none given: as Engine::plans()
  std::vector<int> budget_shares = {};  // if any: instead, the context over these, in whole pages
  std::vector<float> temperatures = {1};
  SpecSampling spec_sampling = SpecSampling::kRejection;
  int prompts = 1;
  int repeats = 3;    // of every run; medians and spreads are over them
  int warm_up = 128;  // tokens before the counted runs, of every plan on every prompt
  std::uint64_t seed = 1;
  int recall_distance = 0;              // as PromptOptions'
  bool many_streams = false;            // refuse plans that work for one sequence only
  std::optional<Machine> machine = {};  // for predictions; nullopt: this one
  int num_threads = 0;                  // as the engine's
  // For the report: version, commit, model and draft_store; the rest is filled in.
  ReportHead head = {};
};

// What plans are called, for help (model/plan.h).
std::string describe_plans();

// What the plan `all` stands for: the plans of the paper's tables and of section 4 of
// docs/design.md, `auto` last.
std::vector<std::string> all_bench_plans(int num_layers);

// One of those that cannot be run: a budget does not fit the context, or the draft store lacks
// weights. A plan that was asked for by its own name is an error instead.
struct LeftOut {
  int context = 0;
  std::string plan;
  Message why;  // of the same words for plans of the same reason
};
// One line, by reasons; empty where nothing was left out.
Message describe(std::span<const LeftOut> left_out);

// Throws kInvalidRequest for what this model cannot run, known without its weights.
void require_benchable(const BenchOptions& options, const ModelConfig& model);
// The same for plans that an engine of these options will not have.
void require_plans(const BenchOptions& options, const EngineOptions& engine,
                   const ModelConfig& model);

// Over the repeats or, where it says so, over single runs (those of the first repeat first) or
// prompts.
struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
  std::vector<double> values = {};  // in the order of the repeats, of every entry alike; NaN: none
};

// One plan, draft length and temperature at one context. Where there is a median, each repeat gives
// a value: of the runs on all prompts together.
struct BenchRow {
  int context = 0;
  std::string plan;              // Plan::name; auto; kPlainFp16 and kPlainInt8
  std::optional<int> draft_len;  // as asked for
  float temperature = 0;
  std::optional<int> draft_budget;  // tokens; none: the plan reads all, or auto has its own
  std::string chosen_plan;  // as plan_label(): what drafted in most rounds; empty: nothing did
  int prompts = 0;
  int repeats = 0;
  int tokens = 0;  // of a run
  Spread decode_tokens_per_second;
  Spread ms_per_token;
  Spread speedup_fp16;  // over plain decoding in the same repeat, at the same temperature
  Spread speedup_int8;
  std::optional<Spread> acceptance_rate;       // accepted / drafted; spread over single runs
  std::optional<Spread> acceptance_per_token;  // of those that the target judged; likewise
  std::vector<double> accepted_per_position;   // [position in a draft], of those drafted there
  Spread tokens_per_round;
  double draft_len_mean = 0;
  Spread draft_ms;  // of a round: all its draft passes
  Spread verify_ms;
  Spread commit_ms;
  Spread prefill_ms;                  // over the prompts
  double predicted_ms_per_token = 0;  // by the roofline, at this acceptance
  MemoryPlan memory;               // of such a run alone; kv_bytes holds all of plain-fp16's cache
  std::size_t gathered_bytes = 0;  // tokens that a rival keeps for itself, beside that
  std::size_t process_peak_bytes = 0;  // the most that this process has held so far, in all
  std::uint64_t tokens_hash = 0;       // of the tokens of the first repeat
};

// A plan with its budget where it has one, as every table and log has it: "quantspec+sparse@2048".
std::string plan_label(const std::string& plan, std::optional<int> budget);

struct BenchMeta {
  ReportHead head;
  int repeats = 0;
  int warm_up = 0;
  std::uint64_t seed = 0;
  SpecSampling spec_sampling = SpecSampling::kRejection;
  Machine machine;
  std::vector<LeftOut> left_out;  // of the plan `all`
};

struct BenchReport {
  BenchMeta meta;
  std::vector<BenchRow> rows;
};

// What is told while it runs. Each may throw to cancel.
struct BenchEvents {
  std::function<void(const BenchMeta&)> begin = {};                  // everything was found good
  std::function<void(std::span<const BenchRow>)> context_done = {};  // its rows
  ProgressCallback progress = {};  // of all contexts; between rounds, not within what is timed
};

// REQUIRES: the engine keeps the weights that the plans read, both planes for `auto`.
BenchReport run_bench(Engine& engine, const Dataset& dataset, const BenchOptions& options,
                      const BenchEvents& events = {});

// --- the report, also piece by piece -------------------------------------------------------------

enum class BenchFormat : std::uint8_t { kMarkdown, kCsv, kJson, kJsonl };

// A report is its head, the rows of one context after another, and its tail. Markdown is at most
// 100 columns wide, and no wider than its plans' names make it.
// `names`: how it calls what can be set.
std::string bench_head(BenchFormat format, const BenchMeta& meta, FieldNames names = plain_name);
// `first`: no rows were rendered before. REQUIRES: rows of one context.
std::string bench_rows(BenchFormat format, std::span<const BenchRow> rows, bool first);
// `complete`: everything was measured; JSON and Markdown say where not.
std::string bench_tail(BenchFormat format, bool complete);

}  // namespace quantspec
