// quantspec bench
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "apps/cli/about.h"
#include "apps/cli/command.h"
#include "apps/cli/flags.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/limits.h"
#include "apps/cli/list_values.h"
#include "apps/cli/messages.h"
#include "apps/cli/output.h"
#include "apps/cli/progress.h"
#include "apps/cli/terminal.h"
#include "base/error.h"
#include "base/fields.h"
#include "bench/load.h"
#include "engine/request_loop.h"
#include "model/model_files.h"

namespace quantspec::cli {

namespace {

enum class Sweep : std::uint8_t { kNone, kDraftLen, kBudget };

static_assert(kMostStreams == RequestLoopOptions::kMostSequences);

struct BenchArgs {
  EngineOptions engine;
  std::string dataset;
  BenchOptions bench;
  // As typed; empty: not at all.
  std::vector<std::string> plans;
  std::vector<std::optional<int>> draft_lens;
  std::vector<KvBudget> budgets;
  std::vector<int> streams;
  std::filesystem::path trace;
  int late_prompt = 0;
  std::size_t page_memory = 0;
  std::size_t host_cache = 0;
  std::optional<SpecSampling> spec_sampling;
  Sweep sweep = Sweep::kNone;
  BenchFormat format = BenchFormat::kMarkdown;
  bool quiet = false;
};

// --- options -------------------------------------------------------------------------------------

void add_texts(CLI::App& app, BenchArgs& args) {
  std::string kinds;
  for (const std::string_view kind : Dataset::kinds()) {
    if (!kinds.empty()) kinds += kinds.size() < 40 || kinds.find('\n') != kinds.npos ? ", " : ",\n";
    kinds += kind;
  }
  app.option_defaults()->group("Prompts");
  add_value(app, "-d,--dataset", "KIND:PATH", "texts; needed. KIND is one of\n" + kinds,
            [&args](const std::string& text) { args.dataset = text; });
  add_list(app, "-c,--ctx-size", "tokens of a prompt (default: 4096)", "whole numbers",
           args.bench.contexts, 1, kMostContext);
  add_int(app, "--prompts", "N", "prompts at each context (default: 1)", args.bench.prompts, 1,
          kMostPrompts);
  add_int(app, "--recall-distance", "N",
          "recall: tokens back to the passage that the prompt's\n"
          "end repeats (default: half of the context)",
          args.bench.recall_distance, 1, kMostContext);
}

void add_drafts(CLI::App& app, BenchArgs& args) {
  app.option_defaults()->group("What is measured, beside plain decoding");
  add_plan_list(app,
                "what drafts read, with commas between or --plan again;\n"
                "see below (default: quantspec,auto)",
                args.plans);
  add_draft_lens(app,
                 "tokens to draft each round, 0 to 16, and auto: what\n"
                 "measures fastest (default: auto)",
                 args.draft_lens, 0);
  add_value(app, "--draft-budget", "LIST",
            "what sparse plans read, auto's too: tokens, or shares\n"
            "such as 1/8 (default: 1/4; for auto 1/16 as well)",
            [&args](const std::string& text) {
              for (const std::string& part : split_list(text)) {
                const KvBudget budget = parse_draft_budget(part, text, ", with commas between");
                add_to_list("--draft-budget", text, part, budget, args.budgets);
              }
            });
  add_choice<Sweep>(app, "--sweep", "WHAT",
                    "draft-len: 1 to 8; budget: 1/32 to 1/2 of the context,\n"
                    "by default with both rules by which pages are chosen",
                    {{"draft-len", Sweep::kDraftLen}, {"budget", Sweep::kBudget}}, args.sweep);
}

void add_load(CLI::App& app, BenchArgs& args) {
  app.option_defaults()->group("Many requests at once");
  add_list(app, "--streams",
           "so many prompts decode at once; with --trace a number:\nrequests in the cache at once "
           "(default: 8)",
           "whole numbers", args.streams, 1, kMostStreams);
  add_path(app, "--trace", "FILE",
           "serve requests as they came: lines of JSON that have\narrival_ms, prompt_tokens, "
           "output_tokens",
           args.trace);
  add_int(
      app, "--late-prompt", "N",
      "with --streams: read a prompt of N tokens at the end,\nwhile they decode: how long do they "
      "wait for tokens?",
      args.late_prompt, 1, kMostContext);
  add_bytes(app, "--page-memory",
            "with --trace: bytes of 8-bit pages; requests that have\nno room are preempted "
            "(default: enough for all)",
            args.page_memory);
  add_bytes(app, "--host-cache",
            "with --trace: bytes of the host's memory for what pages\nhave no room for "
            "(default: 0)",
            args.host_cache);
}

void add_runs(CLI::App& app, BenchArgs& args) {
  app.option_defaults()->group("Runs");
  add_int(app, "-n,--predict", "N", "tokens to decode in a run (default: 512)", args.bench.predict,
          1, kMostTokens);
  add_int(app, "--repeat", "N", "runs of everything on every prompt (default: 3)",
          args.bench.repeats, 1, kMostRuns);
  add_int(app, "--warm-up", "N", "tokens before that, not counted (default: 128)",
          args.bench.warm_up, 0, kMostTokens);
  add_list(app, "--temp", "temperatures; 0: always the likeliest (default: 1)", "numbers",
           args.bench.temperatures, 0.0f, sampling_param<&SamplingParams::temperature>().high);
  add_choice<SpecSampling>(
      app, "--spec-sampling", "HOW",
      "rejection or coupled (default: rejection; coupled with\n--streams and --trace, to compare "
      "their tokens)",
      {{"rejection", SpecSampling::kRejection}, {"coupled", SpecSampling::kCoupled}},
      args.spec_sampling);
  add_seed(app, "of the random numbers (default: 1)",
           [&args](std::uint64_t seed) { args.bench.seed = seed; });
}

// Takes what was typed, else what the sweep varies; both exclude each other.
void apply_lists(BenchArgs& args) {
  BenchOptions& bench = args.bench;
  const bool lens = !args.draft_lens.empty(), budgets = !args.budgets.empty();
  if (lens) bench.draft_lens = args.draft_lens;
  if (budgets) bench.draft_budgets = args.budgets;
  if (args.sweep == Sweep::kDraftLen) {
    if (lens) throw UsageError("--sweep draft-len and --draft-len exclude each other");
    bench.draft_lens = {1, 2, 3, 4, 5, 6, 7, 8};
    bench.plans = {"quantspec", "streaming", "snapkv"};
  }
  if (args.sweep == Sweep::kBudget) {
    if (budgets) throw UsageError("--sweep budget and --draft-budget exclude each other");
    bench.budget_shares = {32, 16, 8, 4, 2};
    bench.plans = {"quantspec", "quantspec+sparse", "quantspec+bounds"};
  }
  if (!args.plans.empty()) bench.plans = args.plans;
}

// --- the run -------------------------------------------------------------------------------------

// Of what is measured: options that say nothing there.
void require_meant(const CLI::App& command, const char* with,
                   std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (command.count(name) == 0) continue;
    throw UsageError(fmt::format("{} and {} exclude each other", with, name));
  }
}

// The rows of one measurement, as they come.
class Writer {
 public:
  explicit Writer(const BenchArgs& args)
      : format_(args.format), progress_(!args.quiet && is_terminal(stderr)) {}

  ProgressCallback progress() { return progress_.callback(); }

  // render_rows(format, rows, first) after render_head(format, meta).
  template <typename Events, typename Meta, typename Row>
  void attach(Events& events, std::string (*render_head)(BenchFormat, const Meta&, FieldNames),
              std::function<void(std::span<const Row>)>& on_rows,
              std::string (*render_rows)(BenchFormat, std::span<const Row>, bool)) {
    events.progress = progress_.callback();
    events.begin = [=, this](const Meta& meta) {
      polled_.emplace();
      progress_.clear();
      if (!meta.left_out.empty()) warn(describe(meta.left_out).text(flag_of));
      write(render_head(format_, meta, flag_of));
      begun_ = true;
    };
    on_rows = [=, this](std::span<const Row> rows) {
      write(render_rows(format_, rows, std::exchange(first_, false)));
    };
  }

  // What was measured stays, and is whole.
  template <typename Run>
  void run(const Run& measure) {
    try {
      measure();
    } catch (...) {
      if (begun_) write(bench_tail(format_, false));
      throw;
    }
    write(bench_tail(format_, true));
  }

  void clear() { progress_.clear(); }

 private:
  void write(const std::string& text) {
    progress_.clear();
    write_output(text);
  }

  BenchFormat format_;
  Progress progress_;
  std::optional<PolledInterrupts> polled_;  // while there are rows to be written
  bool begun_ = false;
  bool first_ = true;
};

void run_plans(BenchArgs& args, const BenchOptions& options, const Dataset& dataset,
               Writer& writer) {
  args.engine.ctx_size = std::ranges::max(options.contexts) + options.predict;
  const auto engine = Engine::load(args.engine);
  BenchEvents events;
  writer.attach(events, bench_head, events.context_done, bench_rows);
  const auto begin = std::move(events.begin);
  events.begin = [&](const BenchMeta& meta) {
    writer.clear();
    warn_of(meta.machine);
    if (!args.bench.machine && engine->backend_name() == "cuda" && meta.machine.name == "this") {
      warn(fmt::format(
          "--machine this: nothing is known of {}, so predictions are for the processor;"
          " --machine NAME predicts for a GPU",
          meta.head.backend));
    }
    begin(meta);
  };
  writer.run([&] { run_bench(*engine, dataset, options, events); });
}

void run_many(BenchArgs& args, const BenchOptions& options, const LoadOptions& load,
              const Dataset& dataset, Writer& writer) {
  args.engine.ctx_size = load_context(options, load);
  const auto engine = Engine::load(args.engine);
  LoadEvents events;
  writer.attach(events, load_head, events.rows_done, load_rows);
  writer.run([&] { run_load(*engine, dataset, options, load, events); });
}

// After parsing: with many requests at once some options say nothing.
void require_meant(const BenchArgs& args, const CLI::App& command) {
  if (!args.trace.empty()) {
    require_meant(command, "--trace",
                  {"--ctx-size", "--predict", "--prompts", "--machine", "--sweep",
                   "--recall-distance", "--late-prompt"});
    return;
  }
  for (const char* name : {"--page-memory", "--host-cache"}) {
    if (command.count(name) > 0) throw UsageError(fmt::format("{}: needs --trace", name));
  }
  if (!args.streams.empty()) {
    require_meant(command, "--streams", {"--prompts", "--machine", "--sweep"});
  } else if (command.count("--late-prompt") > 0) {
    throw UsageError("--late-prompt: needs --streams, beside which it comes");
  }
}

LoadOptions resolve_load(const BenchArgs& args) {
  LoadOptions load;
  load.late_prompt = args.late_prompt;
  load.page_memory = args.page_memory;
  load.host_cache = args.host_cache;
  if (!args.streams.empty()) load.streams = args.streams;
  if (args.trace.empty()) return load;
  if (load.streams.size() != 1) {
    throw UsageError("--streams: with --trace it is one number, the requests in the cache at once");
  }
  load.trace = read_trace(args.trace);
  return load;
}

int measure(BenchArgs& args) {
  const bool many = !args.streams.empty() || !args.trace.empty();
  args.bench.spec_sampling =
      args.spec_sampling.value_or(many ? SpecSampling::kCoupled : SpecSampling::kRejection);
  args.engine.model = resolve_model(args.engine.model);
  const ModelConfig config = open_model(args.engine.model)->config();
  BenchOptions options = args.bench;
  options.num_threads = args.engine.num_threads;
  options.head = report_head(args.engine);
  std::optional<LoadOptions> load;
  if (many) {
    load = resolve_load(args);
    require_loadable(options, *load, config);
  } else {
    require_benchable(options, config);
  }
  require_plans(options, args.engine, config);
  const Dataset dataset = Dataset::load(args.dataset);
  warn_of_threads(args.engine.num_threads);
  Writer writer(args);
  args.engine.progress = writer.progress();
  if (load) {
    run_many(args, options, *load, dataset, writer);
  } else {
    run_plans(args, options, dataset, writer);
  }
  return 0;
}

int run(BenchArgs args) {
  if (args.dataset.empty()) throw UsageError("--dataset KIND:PATH is needed");
  apply_lists(args);
  try {
    return measure(args);
  } catch (const Error& error) {
    const bool is_of_sweep = args.sweep != Sweep::kNone && args.plans.empty();
    if (!is_of_sweep || error.field() != field::kPlan) throw;
    throw UsageError(fmt::format("--sweep {} measures {}; --plan takes others",
                                 args.sweep == Sweep::kBudget ? "budget" : "draft-len",
                                 error.what(flag_of)));
  }
}

}  // namespace

Subcommand add_bench(CLI::App& app) {
  CLI::App* command =
      add_command(app, "bench", "Measure speed, acceptance and memory of drafting plans.");
  const auto args = std::make_shared<BenchArgs>();
  add_engine_options(*command, args->engine);
  add_ranks(*command, args->engine, /*or_launched=*/false);
  add_gpus(*command, args->engine);
  add_texts(*command, *args);
  add_drafts(*command, *args);
  add_load(*command, *args);
  add_runs(*command, *args);
  command->option_defaults()->group("Prediction");
  add_machine(*command, "predictions go",
              "the GPU by its name, or\nthe processor, measured for a second", args->bench.machine);
  command->option_defaults()->group("Output");
  add_choice<BenchFormat>(*command, "-o,--output", "FORMAT", "md, csv, json or jsonl (default: md)",
                          {{"md", BenchFormat::kMarkdown},
                           {"csv", BenchFormat::kCsv},
                           {"json", BenchFormat::kJson},
                           {"jsonl", BenchFormat::kJsonl}},
                          args->format);
  command->add_flag("-q,--quiet", args->quiet, "no progress on standard error");
  const std::string more =
      "Plans:\n" + describe_plans() +
      "  all              quantspec, its parts and every rival, with 4- and 8-bit\n"
      "                   weights too; a third of the layers skipped; auto; but\n"
      "                   for those that do not fit the context or --draft-store\n\n"
      "Examples:\n"
      "  quantspec bench -d text:books -c 4096,8192 --plan all\n"
      "  quantspec bench -d recall:books --plan quantspec,snapkv --draft-len 4\n"
      "  quantspec bench -d text:books --sweep draft-len -o json > sweep.json\n"
      "  quantspec bench -d text:books -c 4096 --streams 1,2,4,8\n"
      "  quantspec bench -d text:books --trace requests.jsonl --streams 16\n\n"
      "docs/bench.md says how it is measured and what every field means.";
  finish_command(*command, more.c_str());
  command->callback([args, command] { require_meant(*args, *command); });
  return {command, [args] { return run(*args); }};
}

}  // namespace quantspec::cli
