#include "bench/bench.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "bench/summary.h"

namespace quantspec {

namespace {

// Of a GPU what its name says, if anything. Of a processor that of reading what plain decoding
// reads at the longest context: a cache may hold that.
Machine machine_of(Engine& engine, const BenchOptions& options, int longest) {
  if (options.machine) return *options.machine;
  if (engine.backend_name() == "cuda") {
    if (auto machine = machine_named_in(engine.backend_description())) return *machine;
  }
  const std::size_t kv =
      KvCache::page_bytes_for(engine.pool().shape(), longest, KvStore::kHierarchical);
  return measure_this_machine(options.num_threads, engine.target_weights_bytes() + kv);
}

BenchMeta make_meta(Engine& engine, const Dataset& dataset, const BenchOptions& options) {
  BenchMeta meta;
  meta.head = options.head;
  note_start(meta.head, options.num_threads);
  meta.head.measurement = "bench";
  meta.head.dataset = dataset.spec();
  meta.head.backend = engine.backend_description();
  meta.head.ranks = engine.ranks();
  meta.head.context_ranks = engine.pool().shape().context_ranks;
  meta.head.target_weights = engine.model().weights().target_description();
  meta.head.page_size = engine.pool().shape().page_size;
  meta.head.contexts = options.contexts;
  meta.head.prompts = options.prompts;
  meta.head.tokens = options.predict;
  meta.head.recall_distance = options.recall_distance;
  meta.repeats = options.repeats;
  meta.warm_up = options.warm_up;
  meta.seed = options.seed;
  meta.spec_sampling = options.spec_sampling;
  meta.machine = machine_of(engine, options, std::ranges::max(options.contexts));
  return meta;
}

// All that is to run at one context.
struct Job {
  int context;
  std::vector<bench::Entry> entries;
  std::vector<Prompt> prompts;
};

// Everything that can be wrong is found here.
std::vector<Job> make_jobs(Engine& engine, const Dataset& dataset, const BenchOptions& options,
                           std::vector<LeftOut>& left_out) {
  std::vector<Job> jobs;
  for (const int context : options.contexts) {
    jobs.push_back({context, bench::make_entries(engine, options, context, &left_out), {}});
    bench::require_memory(engine, jobs.back().entries, options, context);
  }
  for (Job& job : jobs) {
    job.prompts =
        dataset.prompts(engine.tokenizer(), {job.context, options.prompts,
                                             /*continuation=*/0, options.recall_distance});
  }
  return jobs;
}

// How long a job takes, in some unit: its tokens by the roofline's time of one.
double effort(const Job& job, const BenchOptions& options, const bench::Predictor& predictor) {
  const double plain = predictor.milliseconds(job.entries[1], job.context, nullptr, 0, 0);
  return plain * bench::tokens_to_do(job.entries, options, job.context);
}

}  // namespace

BenchReport run_bench(Engine& engine, const Dataset& dataset, const BenchOptions& options,
                      const BenchEvents& events) {
  require_benchable(options, engine.config());
  std::vector<LeftOut> left_out;
  const std::vector<Job> jobs = make_jobs(engine, dataset, options, left_out);
  BenchReport report{make_meta(engine, dataset, options), {}};
  report.meta.left_out = std::move(left_out);
  if (events.begin) events.begin(report.meta);
  const Weights& weights = engine.model().weights();
  const int drafts_group = weights.head().draft.format.group;  // 0: it is not kept for drafts
  const bench::Predictor predictor{
      report.meta.machine, engine.config(), report.meta.head.page_size,
      mean_weight_bytes(matrix_formats(engine.model().config(), weights.source()),
                        drafts_group > 0 ? drafts_group : kWeightGroup)};
  double before = 0, all = 0;
  for (const Job& job : jobs) all += effort(job, options, predictor);
  for (const Job& job : jobs) {
    const double here = effort(job, options, predictor);
    const double tokens = bench::tokens_to_do(job.entries, options, job.context);
    const auto tokens_done = [&](double done) {
      if (events.progress) events.progress("bench", (before + here * done / tokens) / all);
    };
    const auto measured = bench::measure(engine, job.entries, job.prompts, options, tokens_done);
    const auto rows = bench::make_rows(job.entries, measured, options, job.context, predictor);
    if (events.context_done) events.context_done(rows);
    report.rows.insert(report.rows.end(), rows.begin(), rows.end());
    bench::require_same_tokens(job.entries, measured);  // the rows show what differs
    before += here;
  }
  return report;
}

}  // namespace quantspec
