// quantspec bench
#include "bench/bench.h"

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

namespace quantspec::cli {

namespace {

enum class Sweep : std::uint8_t { kNone, kDraftLen, kBudget };

struct BenchArgs {
  EngineOptions engine;
  std::string dataset;
  BenchOptions bench;
  // As typed; empty: not at all.
  std::vector<std::string> plans;
  std::vector<std::optional<int>> draft_lens;
  std::vector<int> budgets;
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
            "tokens that sparse plans read, auto's too (default: a\nquarter of the context; for "
            "auto a sixteenth as well)",
            [&args](const std::string& text) {
              for (const std::string& part : split_list(text)) {
                const auto value = parse_number<int>(part);
                if (!value || *value < 1 || *value > kMostContext) {
                  throw UsageError(fmt::format(
                      "--draft-budget '{}': must be tokens, from 1 to {}, with commas between",
                      text, kMostContext));
                }
                add_to_list("--draft-budget", text, part, *value, args.budgets);
              }
            });
  add_choice<Sweep>(app, "--sweep", "WHAT",
                    "draft-len: 1 to 8; budget: 1/32 to 1/2 of the context,\n"
                    "by default with both rules by which pages are chosen",
                    {{"draft-len", Sweep::kDraftLen}, {"budget", Sweep::kBudget}}, args.sweep);
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
      app, "--spec-sampling", "HOW", "rejection or coupled (default: rejection)",
      {{"rejection", SpecSampling::kRejection}, {"coupled", SpecSampling::kCoupled}},
      args.bench.spec_sampling);
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

BenchOptions resolve(const BenchArgs& args, const ModelConfig& config) {
  BenchOptions options = args.bench;
  options.num_threads = args.engine.num_threads;
  options.head = report_head(args.engine);
  require_benchable(options, config);
  return options;
}

int run(BenchArgs args) {
  if (args.dataset.empty()) throw UsageError("--dataset KIND:PATH is needed");
  apply_lists(args);
  args.engine.model = resolve_model(args.engine.model);
  const BenchOptions options = resolve(args, load_config(args.engine.model));
  const Dataset dataset = Dataset::load(args.dataset);
  warn_of_threads(args.engine.num_threads);
  Progress progress(!args.quiet && is_terminal(stderr));
  args.engine.progress = progress.callback();
  args.engine.ctx_size = std::ranges::max(options.contexts) + options.predict;
  const auto engine = Engine::load(args.engine);

  bool begun = false, first = true;
  const auto write = [&](const std::string& text) {
    progress.clear();
    write_output(text);
  };
  std::optional<PolledInterrupts> polled;  // while there are rows to be written
  BenchEvents events;
  events.progress = progress.callback();
  events.begin = [&](const BenchMeta& meta) {
    polled.emplace();
    progress.clear();
    warn_of(meta.machine);
    if (!args.bench.machine && engine->model().backend().name() == "cuda") {
      warn(fmt::format(
          "--machine this: the processor is measured, and {} runs the model; --machine NAME "
          "predicts for a GPU",
          meta.head.backend));
    }
    if (!meta.left_out.empty()) {
      warn(describe(meta.left_out).text(flag_of));
    }
    write(bench_head(args.format, meta, flag_of));
    begun = true;
  };
  events.context_done = [&](std::span<const BenchRow> rows) {
    write(bench_rows(args.format, rows, std::exchange(first, false)));
  };
  try {
    run_bench(*engine, dataset, options, events);
  } catch (...) {  // what was measured stays, and is whole
    if (begun) write(bench_tail(args.format, false));
    throw;
  }
  write(bench_tail(args.format, true));
  return 0;
}

}  // namespace

Subcommand add_bench(CLI::App& app) {
  CLI::App* command =
      add_command(app, "bench", "Measure speed, acceptance and memory of drafting plans.");
  const auto args = std::make_shared<BenchArgs>();
  add_engine_options(*command, args->engine);
  add_texts(*command, *args);
  add_drafts(*command, *args);
  add_runs(*command, *args);
  command->option_defaults()->group("Prediction");
  add_machine(*command, "predictions go", args->bench.machine);
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
      "  quantspec bench -d text:books --sweep draft-len -o json > sweep.json\n\n"
      "docs/bench.md says how it is measured and what every field means.";
  finish_command(*command, more.c_str());
  return {command, [args] { return run(*args); }};
}

}  // namespace quantspec::cli
