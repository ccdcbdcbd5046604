#include "bench/load.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "bench/fields.h"
#include "bench/load_loop.h"
#include "bench/load_summary.h"
#include "bench/memory.h"
#include "engine/fields.h"

namespace quantspec {

namespace {

LoadMeta make_meta(Engine& engine, const Dataset& dataset, const BenchOptions& options,
                   const LoadOptions& load) {
  LoadMeta meta;
  meta.head = options.head;
  note_start(meta.head, options.num_threads);
  meta.head.measurement = load.trace ? "trace" : "streams";
  meta.head.dataset = dataset.spec();
  meta.head.backend = engine.backend_description();
  meta.head.ranks = engine.ranks();
  meta.head.context_ranks = engine.pool().shape().context_ranks;
  meta.head.page_size = engine.pool().shape().page_size;
  if (!load.trace) {
    meta.head.contexts = options.contexts;
    meta.head.tokens = options.predict;
    meta.head.recall_distance = options.recall_distance;
  }
  meta.streams = load.streams;
  meta.late_prompt = load.late_prompt;
  meta.page_memory = load.page_memory;
  meta.host_cache = load.host_cache;
  if (load.trace) {
    meta.trace = load.trace->path.string();
    meta.requests = static_cast<int>(load.trace->requests.size());
    meta.head.prompts = meta.requests;
  } else {
    meta.head.prompts = std::ranges::max(load.streams);
  }
  meta.repeats = options.repeats;
  meta.warm_up = options.warm_up;
  meta.seed = options.seed;
  meta.spec_sampling = options.spec_sampling;
  return meta;
}

// Some streams at one context, or a trace.
struct Job {
  int streams;
  int context;   // of the longest prompt
  int capacity;  // tokens of a sequence
  std::vector<bench::Entry> entries;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<TokenId> late_prompt;
  double effort;
};

bench::LoadLoopOptions loop_options(const Job& job, const BenchOptions& options,
                                    const LoadOptions& load) {
  return {job.streams,      job.capacity,     options.seed,
          load.late_prompt, load.page_memory, load.host_cache};
}

// The longest request must fit by itself.
void require_pages(Engine& engine, const Job& job, const LoadOptions& load) {
  const KvShape& shape = engine.pool().shape();
  const std::size_t pages = (job.capacity + shape.page_size - 1) / shape.page_size;
  const std::size_t least = pages * shape.page_bytes();
  if (load.page_memory == 0 || load.page_memory >= least) return;
  fail(ErrorKind::kInvalidRequest,
       "{} {}: a request of the trace may hold {} tokens, whose pages take {}", field::kPageMemory,
       load.page_memory, job.capacity, least);
}

// All loops of uniform load are there at once, those of a trace one after another.
void require_memory(Engine& engine, const Job& job, const BenchOptions& options,
                    const LoadOptions& load) {
  std::size_t sum = 0, most = 0;
  for (const bench::Entry& entry : job.entries) {
    const std::size_t bytes =
        bench::LoadLoop::bytes_for(engine, entry, loop_options(job, options, load));
    sum += bytes;
    most = std::max(most, bytes);
  }
  const int longest = std::max(job.capacity, load.late_prompt + 1);
  const std::size_t needed =
      bench::prefill_bytes(engine, longest, job.streams) + (load.trace ? most : sum);
  const std::size_t available = bench::available_bytes(engine);
  if (needed <= available) return;
  fail(ErrorKind::kOutOfMemory,
       "{} {}: with {} tokens each, the caches of these plans need {:.0f} MB and {:.0f} MB are "
       "available; fewer streams, fewer plans or a shorter context need less",
       field::kStreams, job.streams, job.capacity, needed / 1e6, available / 1e6);
}

std::vector<std::vector<TokenId>> uniform_prompts(Engine& engine, const Dataset& dataset,
                                                  const BenchOptions& options, int length,
                                                  int count) {
  PromptOptions wanted;
  wanted.length = length;
  wanted.count = count;
  wanted.recall_distance = options.recall_distance;
  std::vector<std::vector<TokenId>> prompts;
  for (Prompt& prompt : dataset.prompts(engine.tokenizer(), wanted)) {
    prompts.push_back(std::move(prompt.tokens));
  }
  return prompts;
}

// Everything that can be wrong is found here.
std::vector<Job> make_jobs(Engine& engine, const Dataset& dataset, const BenchOptions& options,
                           const LoadOptions& load, std::vector<LeftOut>& left_out) {
  std::vector<Job> jobs;
  const auto add = [&](int streams, int context, std::vector<LeftOut>* missing) {
    const int capacity = load.trace ? load.trace->context()
                                    : context + bench::uniform_tokens(options, load.late_prompt);
    jobs.push_back({streams,
                    context,
                    capacity,
                    bench::make_entries(engine, options, context, missing),
                    {},
                    {},
                    0});
    require_pages(engine, jobs.back(), load);
    require_memory(engine, jobs.back(), options, load);
  };
  if (load.trace) {
    add(load.streams.front(), load.trace->longest_prompt(), &left_out);
    Job& job = jobs.front();
    job.prompts = cut_prompts(*load.trace, dataset, engine.tokenizer());
    job.effort = bench::trace_effort(job.entries.size(), *load.trace, options);
    return jobs;
  }
  for (const int context : options.contexts) {
    for (const int streams : load.streams) {
      add(streams, context, streams == load.streams.front() ? &left_out : nullptr);
    }
  }
  for (Job& job : jobs) {
    job.prompts = uniform_prompts(engine, dataset, options, job.context, job.streams);
    if (load.late_prompt > 0) {
      job.late_prompt = uniform_prompts(engine, dataset, options, load.late_prompt, 1).front();
    }
    job.effort = bench::uniform_effort(job.entries.size(), job.streams, job.context, options,
                                       load.late_prompt);
  }
  return jobs;
}

std::vector<bench::LoadMeasured> measure(Engine& engine, const Job& job,
                                         const BenchOptions& options, const LoadOptions& load,
                                         const bench::TokensDone& tokens_done) {
  std::vector<bench::LoadMeasured> measured;
  engine.at_every_rank([&](Engine& own) {
    if (&own != &engine) return bench::LoadLoop::follow(own, job.entries);
    measured = load.trace
                   ? bench::measure_trace(engine, job.entries, *load.trace, job.prompts, options,
                                          loop_options(job, options, load), tokens_done)
                   : bench::measure_uniform(engine, job.entries, job.prompts, job.late_prompt,
                                            options, tokens_done);
    bench::LoadLoop::end(engine);
  });
  return measured;
}

bench::LoadShape shape_of(const Job& job, const BenchOptions& options, const LoadOptions& load) {
  bench::LoadShape shape{job.streams, {}, static_cast<int>(job.prompts.size()), {}, job.capacity};
  if (!load.trace) {
    shape.context = job.context;
    shape.tokens = options.predict;
  }
  return shape;
}

void require_same_tokens(const Job& job, std::span<const bench::LoadMeasured> measured) {
  for (std::size_t i = 0; i < job.entries.size(); ++i) {
    const std::string difference = bench::difference(job.entries, measured, i);
    if (!difference.empty()) fail(ErrorKind::kInternal, "{}", difference);
  }
}

}  // namespace

int load_context(const BenchOptions& options, const LoadOptions& load) {
  if (load.trace) return load.trace->context();
  const int streams =
      std::ranges::max(options.contexts) + bench::uniform_tokens(options, load.late_prompt);
  return std::max(streams, load.late_prompt + 1);
}

void require_loadable(const BenchOptions& options, const LoadOptions& load,
                      const ModelConfig& model) {
  check(!load.streams.empty() && (!load.trace || load.streams.size() == 1),
        "a trace has one number of streams");
  check(load.trace || load.page_memory + load.host_cache == 0, "memory is a trace's to say");
  const bool late = load.late_prompt > 0;
  const int most = RequestLoopOptions::kMostSequences - (late ? 1 : 0);
  for (const int streams : load.streams) {
    if (streams >= 1 && streams <= most) continue;
    fail(ErrorKind::kInvalidRequest, "{} {}: supported are 1 to {}{}", field::kStreams, streams,
         most, late ? ", and a late prompt beside them" : "");
  }
  BenchOptions each = options;
  if (load.trace) {
    if (load.trace->context() > model.max_positions) {
      fail(ErrorKind::kInvalidRequest,
           "{} {}: a request of it has {} tokens, prompt and output; this model takes {}",
           field::kTrace, load.trace->path.string(), load.trace->context(), model.max_positions);
    }
    each.contexts = {1};
    each.predict = 1;
  }
  require_benchable(each, model);
  if (load.trace) return;
  if (load.late_prompt >= model.max_positions) {
    fail(ErrorKind::kInvalidRequest, "{} {}: this model has room for {} and a token more",
         field::kLatePrompt, load.late_prompt, model.max_positions - 1);
  }
  const int longest = load_context(options, load);
  if (longest <= model.max_positions) return;
  fail(ErrorKind::kInvalidRequest,
       "{} {}: with {} repeats of {} tokens and {} to warm up{} a stream may come to hold {}; this "
       "model takes {}",
       field::kContext, std::ranges::max(options.contexts), options.repeats, options.predict,
       options.warm_up, load.late_prompt > 0 ? ", and those beside a late prompt," : "", longest,
       model.max_positions);
}

LoadReport run_load(Engine& engine, const Dataset& dataset, const BenchOptions& asked,
                    const LoadOptions& load, const LoadEvents& events) {
  BenchOptions options = asked;
  options.many_streams = true;
  require_loadable(options, load, engine.config());
  std::vector<LeftOut> left_out;
  const std::vector<Job> jobs = make_jobs(engine, dataset, options, load, left_out);
  LoadReport report{make_meta(engine, dataset, options, load), {}};
  report.meta.left_out = std::move(left_out);
  if (events.begin) events.begin(report.meta);
  const double all = std::accumulate(jobs.begin(), jobs.end(), 0.0,
                                     [](double sum, const Job& job) { return sum + job.effort; });
  double before = 0;
  for (const Job& job : jobs) {
    const auto tokens_done = [&](double done) {
      const double share = (before + std::min(done, job.effort)) / all;
      if (events.progress) events.progress("bench", std::min(share, 1.0));
    };
    const auto measured = measure(engine, job, options, load, tokens_done);
    engine.model().weights().require_unchanged();
    const auto rows =
        bench::make_load_rows(engine, job.entries, measured, shape_of(job, options, load));
    if (events.rows_done) events.rows_done(rows);
    report.rows.insert(report.rows.end(), rows.begin(), rows.end());
    require_same_tokens(job, measured);  // the rows show what differs
    before += job.effort;
  }
  return report;
}

}  // namespace quantspec
