// Fidelity, measured on true text: what the precision of KV and weights costs in perplexity and in
// KL divergence, how often drafts would be accepted, which layers matter most, and the proof that
// speculation changes nothing. docs/eval.md defines every number.
//
// Everything is deterministic but for the times that eval_prefill takes. Not thread-safe: one
// measurement at a time on a model. Results are added to what the caller holds; where something is
// thrown on the way, by `progress` to cancel above all, those of what was measured whole before
// (windows, prompts, generations) are there. Errors: kInvalidRequest, its message naming what was
// wrong (Error::field), and kOutOfMemory where the caches that are compared do not fit, both before
// any pass; kCorruptFile where the checkpoint changed during a window, prompt or generation, which
// is not added. REQUIRES throughout: the model has the weights that plans read (Model::reads).
#pragma once

#include <cstddef>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/progress.h"
#include "datasets/datasets.h"
#include "eval/kv_codec.h"
#include "eval/metrics.h"
#include "eval/report.h"
#include "kv_cache/kv_cache.h"
#include "model/model.h"

namespace quantspec {

class Communicator;  // comm/comm.h

// What is measured: a model and the pages of its caches, which both outlive the measurement. Ranks
// that share the model go through a measurement at the same time, each with its own; all come to
// the same results but for times. Sensitivity and streams are of one rank, and so are targets.
struct EvalModel {
  const Model& model;
  PagePool& pool;
  Communicator* ranks = nullptr;  // with whom it is shared; null: nobody
};

// How passes over given text read their context.
struct Variant {
  std::string name;
  Plan plan;
  KvStore store = KvStore::kHierarchical;
  // REQUIRES: kFull. What becomes of positions when they are so old that a quantized cache would
  // read them from pages.
  std::optional<KvCodec> codec = {};
  // As in KvOptions: tokens of a prompt that read each other in full precision. With kFull all do.
  int chunk = 0;
};
// fp16 KV, which the others are measured against; 8 and 4 bits of ours and of the paper's
// quantizer; 8- and 4-bit weights over 8-bit KV, those of them that drafts can read (Table 2,
// arXiv:2502.10424, and more).
std::vector<Variant> kv_variants(const Model& model);
// fp16 KV, then 4 bits by the paper's quantizer along every pair of axes (Table 5).
std::vector<Variant> axis_variants(const Model& model);

// Positions [first, last) of a text.
struct Bucket {
  int first;
  int last;
  ScoreSummary scores;
};

// --- perplexity ----------------------------------------------------------------------------------

struct PerplexityOptions {
  int context = 0;                  // tokens of a window, BOS included
  int stride = 0;                   // tokens of it that are new; at most context - 1
  std::optional<TokenId> bos = {};  // what every window begins with
};

struct PerplexityRow {
  std::string variant;
  int windows = 0;
  ScoreSummary scores;  // against variants[0]
  Mean delta_nll;       // nll less that of variants[0], nats per token
  std::vector<Bucket> by_position;

  double perplexity() const;
};

// Strided perplexity, as in Hugging Face's recipe: windows of `context` tokens, each `stride`
// tokens further on in its text and read from an empty cache. In the first window of a text all
// tokens but BOS are scored, in the others the last `stride`.
void eval_perplexity(const EvalModel& model, std::span<const Prompt> texts,
                     const PerplexityOptions& options, const std::vector<Variant>& variants,
                     const ProgressCallback& progress, std::vector<PerplexityRow>& rows);

// --- fidelity ------------------------------------------------------------------------------------

struct FidelityRow {
  std::string reading;    // a variant or a plan
  std::string reference;  // what it is compared with
  int context = 0;        // tokens of the prompts
  int prompts = 0;
  ScoreSummary scores;
  std::vector<Bucket> by_position;  // tokens after the prompt
};

// Prompts of one length, and the plans that draft after them.
// REQUIRES, here and below: prompts have a continuation of two tokens or more; all but its last are
// read, and each is followed by the next.
struct FidelityTask {
  std::vector<Prompt> prompts;
  std::vector<Plan> plans;
};

// Of every task: target passes with 8-bit KV, ours and the paper's, against fp16 KV; then the first
// draft step of each plan against its target, at temperature 1. round: tokens of the target passes
// by whose attention sparse plans choose their pages (draft length + 1).
void eval_fidelity(const EvalModel& model, std::span<const FidelityTask> tasks, int round,
                   const ProgressCallback& progress, std::vector<FidelityRow>& rows);

// --- targets -------------------------------------------------------------------------------------

// A target against a base.
struct TargetRow {
  std::string reading;    // a variant
  std::string reference;  // the base, with which it is compared
  int context = 0;        // tokens of the prompts
  int prompts = 0;
  ScoreSummary scores;
  Mean delta_nll;            // nll less the reference's, nats per token
  double reference_nll = 0;  // over the same tokens

  double perplexity() const;
  double reference_perplexity() const;
};

// What targets are compared with: the plain cache of the same model, on another backend or of other
// weights.
struct EvalBase {
  EvalModel model;
  std::string name;
};

// Of every task: target passes with fp16 KV and with 8-bit KV against the base. The tasks' plans
// have no say. Both models' caches must fit at once, beside both models. REQUIRES: of one
// vocabulary and page size.
void eval_targets(const EvalModel& model, const EvalBase& base, std::span<const FidelityTask> tasks,
                  const ProgressCallback& progress, std::vector<TargetRow>& rows);

// --- prefill -------------------------------------------------------------------------------------

// Forced target passes after a prompt that was read in chunks, against those after a prompt that
// was read as one chunk.
struct PrefillRow {
  int context = 0;  // tokens of the prompts
  int chunk = 0;    // tokens
  int prompts = 0;
  ScoreSummary scores;
  Mean delta_nll;  // nats per token
  // Times of reading a prompt, each prompt a group; ratio: in chunks to whole.
  Mean seconds;
  Mean whole_seconds;
  Mean ratio;
};

// A plan's first draft step against its target, after prompts that were read either way.
struct PrefillDraftRow {
  std::string plan;
  int context = 0;
  int chunk = 0;
  int prompts = 0;
  std::int64_t tokens = 0;
  Mean acceptance;
  Mean whole_acceptance;
  Mean acceptance_change;  // prompt by prompt
};

struct PrefillResult {
  std::vector<PrefillRow> targets;
  std::vector<PrefillDraftRow> drafts;
};

// Of every task and every chunk: what reading prompts in chunks costs. A chunk that holds a prompt
// reads it whole: nothing differs but times. round: as eval_fidelity's. REQUIRES: chunks are one
// or more multiples of the page size.
void eval_prefill(const EvalModel& model, std::span<const FidelityTask> tasks,
                  std::span<const int> chunks, int round, const ProgressCallback& progress,
                  PrefillResult& result);

// --- sensitivity ---------------------------------------------------------------------------------

struct SensitivityOptions {
  Plan base;                               // the uniform plan to be beaten
  std::optional<std::size_t> draft_bytes;  // that a draft step may read; nullopt: as base does
  std::size_t target_bytes = 0;            // that copies in full precision may take, for the target
  int round = 5;                           // as eval_fidelity's
};

// One layer's setting changed. `kl` and `acceptance` are those of the whole pass.
struct SensitivityRow {
  std::optional<int> layer;  // nullopt: the head
  std::string from;          // "target", "draft" or "target vs fp16": what is changed
  std::string change;        // what it is changed to
  Mean kl;
  Mean acceptance;
  double kl_change = 0;
  double acceptance_change = 0;
  std::ptrdiff_t bytes_change = 0;  // read in a draft step; of a target: kept in memory
};

// How a layer's attention is spread, at the granularity of pages.
struct LayerEntropy {
  int layer;
  double nats;      // mean over positions and kv heads of the entropy over pages and ring
  double relative;  // of the greatest that is possible, log(pages + 1)
};

// A plan, what was predicted of it, and what was measured on prompts that did not choose it.
struct PlanOutcome {
  std::string name;
  std::size_t draft_bytes = 0;
  double predicted_kl = 0;
  double predicted_acceptance = 0;
  ScoreSummary measured;  // of no tokens: not measured
  ScoreSummary target;    // its target against fp16 KV
};

struct SensitivityResult {
  std::vector<LayerEntropy> entropies;
  std::vector<SensitivityRow> rows;
  int prompts = 0;  // that layers were measured on; as many others verify
  Plan base;
  std::size_t draft_budget = 0;  // bytes that a draft step of the chosen plan may read
  std::optional<Plan> chosen;    // nullopt: not yet
  PlanOutcome base_outcome;
  PlanOutcome chosen_outcome;
  // What was measured of the chosen plan less that of the base, prompt by prompt.
  Mean acceptance_change;
  Mean kl_change;

  bool is_verified() const { return chosen_outcome.measured.tokens > 0; }
  // Fewer tokens are accepted than of the base, by more than the standard error, and the base might
  // have been chosen: it fits the bytes.
  bool is_worse() const;
  // The change of acceptance is within its standard error.
  bool is_within_error() const;
};

// Measures layer by layer on `prompts`, chooses a plan under the byte budgets, and compares it with
// the base on `held_out`. REQUIRES: as FidelityTask, and all prompts of one length.
void eval_sensitivity(const EvalModel& model, std::span<const Prompt> prompts,
                      std::span<const Prompt> held_out, const SensitivityOptions& options,
                      const ProgressCallback& progress, SensitivityResult& result);

// --- lossless ------------------------------------------------------------------------------------

// A drafter: the plans among which it chooses, under one name.
struct Drafter {
  std::string name;
  std::vector<Plan> plans;
};

struct LosslessOptions {
  int predict = 256;                           // tokens after each prompt
  float temperature = 0.8f;                    // of coupled sampling
  std::uint64_t seed = 0;                      // of coupled sampling
  std::vector<Drafter> drafters;               // one or more
  std::vector<std::optional<int>> draft_lens;  // one or more; nullopt: auto
};

struct LosslessRow {
  std::string prompt;
  std::string sampling;  // "greedy" or "coupled"
  std::string drafter;
  std::optional<int> draft_len;  // nullopt: auto
  int tokens = 0;
  std::optional<int> first_difference;  // the token generated differently, from 0
  double acceptance = 0;
  double tokens_per_round = 0;
};

// Generates with and without speculation. Generation does not stop at EOS.
void eval_lossless(const EvalModel& model, std::span<const Prompt> prompts,
                   const LosslessOptions& options, const ProgressCallback& progress,
                   std::vector<LosslessRow>& rows);

// One of many requests that ran at once.
struct StreamRow {
  std::string prompt;    // whose beginning it has, at least
  std::string sampling;  // "greedy" or "coupled"
  std::string drafter;
  std::optional<int> draft_len;  // nullopt: auto
  bool warm = false;             // its loop had read the prompts before
  int arrival = 0;               // in steps of the loop
  int tokens = 0;
  int cached_tokens = 0;  // of the prompt, that were found
  int preemptions = 0;
  // To the request alone, by plain decoding: in a token or in its log-probability.
  std::optional<int> first_difference;
  double acceptance = 0;
  double tokens_per_round = 0;
};

// The same of many requests at once, in one RequestLoop for each way of sampling and drafter:
// prompts, and more that begin as those do, arrive at random steps; each drafts by one of the
// draft_lens, and some are preempted, all from `seed`. Then they come again, to a loop that has
// their beginnings. Each against itself alone, by plain decoding. REQUIRES: prompts of one length;
// streams >= 1.
void eval_lossless_streams(const EvalModel& model, std::span<const Prompt> prompts, int streams,
                           const LosslessOptions& options, const ProgressCallback& progress,
                           std::vector<StreamRow>& rows);

// The first index at which they differ, a missing token being a difference; nullopt: equal.
std::optional<int> first_difference(std::span<const TokenId> one, std::span<const TokenId> other);

// --- reports -------------------------------------------------------------------------------------

Report report(std::span<const PerplexityRow> rows);
Report report(std::span<const FidelityRow> rows);
Report report(std::span<const TargetRow> rows);
Report report(const PrefillResult& result);
Report report(const SensitivityResult& result);
Report report(std::span<const LosslessRow> rows);
Report report(std::span<const StreamRow> rows);

}  // namespace quantspec
