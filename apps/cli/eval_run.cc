// quantspec eval: texts and model to measurement to report.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "apps/cli/about.h"
#include "apps/cli/command.h"
#include "apps/cli/eval_args.h"
#include "apps/cli/flags.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/messages.h"
#include "apps/cli/options.h"
#include "apps/cli/output.h"
#include "apps/cli/progress.h"
#include "apps/cli/terminal.h"
#include "base/fields.h"
#include "base/files.h"
#include "base/json.h"
#include "base/shown.h"
#include "datasets/datasets.h"
#include "engine/engine.h"
#include "eval/eval.h"
#include "model/model_files.h"

namespace quantspec::cli {

namespace {

using OrderedJson = nlohmann::ordered_json;

// What a measurement runs on. Texts come first: they are quick, and may be refused.
class Setup {
 public:
  explicit Setup(const EvalArgs& args)
      : args_(args),
        model_(resolve_model(args.engine.model)),
        files_(open_model(model_)),
        config_(files_->config()),
        head_(head_of(args, model_)),
        dataset_(Dataset::load(args.dataset)),
        tokenizer_(files_->tokenizer()),
        progress_(!args.quiet && is_terminal(stderr)) {
    warn_of_threads(args.engine.num_threads);
  }

  // `count` prompts of `length` tokens with so many true ones after them.
  std::vector<Prompt> prompts(int length, int count, int continuation) const {
    auto prompts = dataset_.prompts(*tokenizer_, {.length = length,
                                                  .count = count,
                                                  .continuation = continuation,
                                                  .recall_distance = args_.recall_distance});
    for (const Prompt& prompt : prompts) {
      if (std::ssize(prompt.continuation) >= continuation) continue;
      throw UsageError(fmt::format(
          "--dataset '{}': its prompts end in a question, and what truly follows is not known; "
          "text, pg19, wikitext, c4, recall and tasks with answers work",
          args_.dataset));
    }
    return prompts;
  }

  std::optional<TokenId> bos() const { return tokenizer_->bos(); }

  // Throws for plans that do not exist, stand there twice or look tokens up where that is not
  // measured, which is cheaper to know before the weights are loaded.
  void require_plans(int prompt_tokens, bool lookup = false) const {
    const int page_size = kv_shape(config_, args_.engine.page_size).page_size;
    std::vector<std::string> names;
    for (const std::string& spec : args_.plans) {
      names.push_back(spec);
      require_plan(spec, args_.engine, config_, args_.budget);
      const DraftSpec wanted = read_draft_spec(spec);
      if (wanted.looks_up && !lookup && !wanted.is_auto()) {
        throw UsageError(fmt::format(
            "--plan {}: tokens that are looked up are no pass that could be measured; lossless "
            "takes it",
            spec));
      }
      if (wanted.is_auto()) names.back() = wanted.auto_name();
      if (!wanted.is_auto() && !wanted.plan.empty()) {
        const PlanContext context{config_.num_layers, page_size, args_.budget};
        const Message what = Message::format("{} {}", field::kPlan, spec);
        names.back() =
            plan_at(make_plan(wanted.plan, context), prompt_tokens, page_size, what).name;
        if (wanted.looks_up) names.back() += "+lookup";
      }
      if (std::ranges::count(names, names.back()) > 1) {
        throw UsageError(fmt::format("--plan {}: the list has {} already", spec, names.back()));
      }
    }
  }

  // Throws for chunks of which no pages can be made.
  void require_chunks() const {
    const int page_size = kv_shape(config_, args_.engine.page_size).page_size;
    for (const int chunk : args_.chunks) {
      if (chunk % page_size == 0) continue;
      throw UsageError(
          fmt::format("--chunks {}: must be a multiple of the page size, {}", chunk, page_size));
    }
  }

  // Throws where the model was not made for so many positions.
  void require_positions(int context, int tokens) const {
    const int most = config_.max_positions;
    if (context > most) {
      throw UsageError(
          fmt::format("--ctx-size {}: this model takes up to {} tokens", context, most));
    }
    if (tokens > most - context) {
      throw UsageError(
          fmt::format("--tokens {}: after {} tokens of context, this model has room for {}", tokens,
                      context, most - context));
    }
  }

  void load(int context) { engine_ = load(args_.engine, context); }
  std::unique_ptr<Engine> load(EngineOptions options, int context) {
    const PolledInterrupts polled;
    options.model = model_;
    options.ctx_size = context;
    options.progress = progress_.callback();
    auto engine = Engine::load(options);
    progress_.clear();
    if (interrupted()) throw Interrupted();  // after the last report of progress
    return engine;
  }
  Engine& engine() { return *engine_; }
  std::vector<Plan> plans(int prompt_tokens) const {
    std::vector<Plan> plans;
    for (const std::string& spec : args_.plans) {
      for (Plan& plan : engine_->plans_at(prompt_tokens, spec, args_.budget)) {
        if (!plan.looks_up()) plans.push_back(std::move(plan));  // it has no pass
      }
    }
    return plans;
  }

  // Measures and prints. Where something ends it early, what was measured by then is printed,
  // marked as incomplete. `options` are those that this measurement alone has; make_report() gives
  // what there is. measure(model, progress, result) is called by every rank, of which rank 0 has
  // this result, and shows progress.
  template <typename Result, typename Measure, typename MakeReport>
  void run(std::string_view measurement, const OrderedJson& options, Result& result,
           const Measure& measure, const MakeReport& make_report) {
    head_.measurement = measurement;
    head_.backend = engine_->backend_description();
    head_.ranks = engine_->ranks();
    head_.context_ranks = args_.engine.context_ranks;
    head_.page_size = engine_->pool().shape().page_size;
    head_.target_weights = engine_->target_weights();
    OrderedJson meta = to_json(head_);
    meta.update(options);
    const PolledInterrupts polled;
    try {
      engine_->at_every_rank([&](Engine& own) {
        const EvalModel model{own.model(), own.pool(), own.rank_communicator()};
        if (&own == engine_.get()) return measure(model, progress(), result);
        Result of_another;
        measure(model, ProgressCallback(), of_another);
      });
    } catch (...) {
      Report report = make_report();
      report.complete = false;
      if (interrupted() || !report.empty()) print(meta, report);
      throw;
    }
    print(meta, make_report());
  }

 private:
  ProgressCallback progress() { return progress_.callback(); }
  static ReportHead head_of(const EvalArgs& args, const std::filesystem::path& model) {
    EngineOptions engine = args.engine;
    engine.model = model;
    ReportHead head = report_head(engine);
    note_start(head, engine.num_threads);
    head.dataset = args.dataset;
    head.contexts = args.contexts;
    head.prompts = args.prompts;
    head.tokens = args.tokens;
    head.recall_distance = args.recall_distance;
    return head;
  }

  void print(const OrderedJson& meta, const Report& report) {
    progress_.clear();
    write_output(args_.json ? to_json(meta, report, flag_of) : to_markdown(meta, report, flag_of));
    if (args_.json && !report.conclusion.empty()) {
      say(one_line(report.conclusion.text(flag_of)) + "\n");
    }
  }

  const EvalArgs& args_;
  std::filesystem::path model_;
  std::unique_ptr<ModelFiles> files_;
  ModelConfig config_;
  ReportHead head_;
  Dataset dataset_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Progress progress_;
  std::unique_ptr<Engine> engine_;
};

int run_windows(const EvalArgs& args, std::string_view measurement,
                std::vector<Variant> (*variants)(const Model& model)) {
  const int context = args.contexts[0];
  const int stride = args.stride > 0 ? args.stride : std::max(1, context / 2);
  if (stride >= context) {
    throw UsageError(fmt::format("--stride {}: must be less than --ctx-size, {}", stride, context));
  }
  Setup setup(args);
  setup.require_positions(context, 0);
  // The first window of a document scores all but its first token, the others `stride`.
  const int wanted = (args.tokens + args.prompts - 1) / args.prompts;
  const int more = std::max(0, wanted - (context - 1));
  const auto texts = setup.prompts(context, args.prompts, (more + stride - 1) / stride * stride);
  setup.load(context);
  const PerplexityOptions options{context, stride, setup.bos()};
  std::vector<PerplexityRow> rows;
  setup.run(
      measurement, {{"stride", stride}}, rows,
      [&](const EvalModel& model, const ProgressCallback& progress, auto& own) {
        eval_perplexity(model, texts, options, variants(model.model), progress, own);
      },
      [&] { return report(rows); });
  return 0;
}

}  // namespace

int run_perplexity(const EvalArgs& args) { return run_windows(args, "perplexity", kv_variants); }

int run_axes(const EvalArgs& args) { return run_windows(args, "axes", axis_variants); }

namespace {

// Tokens, or a share as "1/4"; 0: none was given.
OrderedJson budget_json(const KvBudget& budget) {
  return budget.is_share() ? OrderedJson(budget.text()) : OrderedJson(budget.tokens(0));
}

// Prompts of every context, and the plans; loads the model.
std::vector<FidelityTask> load_tasks(Setup& setup, const EvalArgs& args) {
  std::vector<FidelityTask> tasks;
  for (const int context : args.contexts) {
    setup.require_plans(context);
    setup.require_positions(context, args.tokens + 1);
    tasks.push_back({setup.prompts(context, args.prompts, args.tokens + 1), {}});
  }
  setup.load(*std::ranges::max_element(args.contexts) + args.tokens + 1);
  for (std::size_t i = 0; i < tasks.size(); ++i) tasks[i].plans = setup.plans(args.contexts[i]);
  return tasks;
}

}  // namespace

int run_fidelity(const EvalArgs& args) {
  Setup setup(args);
  const auto tasks = load_tasks(setup, args);
  std::vector<FidelityRow> rows;
  setup.run(
      "fidelity", {{"draft_budget", budget_json(args.budget)}, {"round", args.round}}, rows,
      [&](const EvalModel& model, const ProgressCallback& progress, auto& own) {
        eval_fidelity(model, tasks, args.round, progress, own);
      },
      [&] { return report(rows); });
  return 0;
}

namespace {

// In what an engine of these options would read the target's weights.
std::string target_weights_of(EngineOptions options) {
  options.model = resolve_model(options.model);
  return report_model(options, {}).target_weights;
}

// The engine that targets are compared with.
EngineOptions base_of(const EvalArgs& args) {
  EngineOptions base = args.engine;
  if (args.against == Against::kReference) {
    base.backend = "reference";
    base.device = {};
    return base;
  }
  base.target_weights = TargetWeights::kCheckpoint;
  const std::string weights = target_weights_of(base);
  if (weights == target_weights_of(args.engine)) {
    throw UsageError(fmt::format(
        "--against checkpoint: the target reads the checkpoint's own weights, {}; "
        "--target-weights 8 reads bf16, fp16 and fp32 ones otherwise, and --against reference "
        "works for all",
        weights));
  }
  return base;
}

}  // namespace

int run_targets(const EvalArgs& args) {
  Setup setup(args);
  const EngineOptions base_options = base_of(args);
  const auto tasks = load_tasks(setup, args);
  const auto base_engine = setup.load(base_options, setup.engine().ctx_size());
  const bool of_backends = args.against == Against::kReference;
  const EvalBase base{{base_engine->model(), base_engine->pool()},
                      of_backends ? "reference backend" : "checkpoint's weights"};
  std::vector<TargetRow> rows;
  setup.run(
      "targets",
      {{"against", of_backends ? "reference" : "checkpoint"},
       {"against_backend", base_engine->backend_description()},
       {"against_weights", base_engine->target_weights()}},
      rows,
      [&](const EvalModel& model, const ProgressCallback& progress, auto& own) {
        eval_targets(model, base, tasks, progress, own);
      },
      [&] { return report(rows); });
  return 0;
}

int run_prefill(const EvalArgs& args) {
  Setup setup(args);
  setup.require_chunks();
  const auto tasks = load_tasks(setup, args);
  std::vector<int> chunks = args.chunks;
  if (chunks.empty()) chunks.push_back(setup.engine().model().backend().prefill_chunk());
  PrefillResult result;
  setup.run(
      "prefill",
      {{"chunks", chunks}, {"draft_budget", budget_json(args.budget)}, {"round", args.round}},
      result,
      [&](const EvalModel& model, const ProgressCallback& progress, auto& own) {
        eval_prefill(model, tasks, chunks, args.round, progress, own);
      },
      [&] { return report(result); });
  return 0;
}

int run_lossless(const EvalArgs& args) {
  if (args.streams > 0 && args.engine.ranks > 1) {
    throw UsageError("--streams: works at one rank only; without it several ranks work");
  }
  Setup setup(args);
  const int context = args.contexts[0];
  setup.require_plans(context, true);
  setup.require_positions(context, args.tokens);
  const auto prompts = setup.prompts(context, args.prompts, 0);
  setup.load(context + args.tokens);
  LosslessOptions options;
  options.predict = args.tokens;
  options.temperature = args.temperature;
  options.seed = args.seed;
  options.draft_lens = args.draft_lens;
  for (const std::string& spec : args.plans) {
    options.drafters.push_back({spec, setup.engine().plans_at(context, spec, args.budget)});
  }
  OrderedJson meta = {{"draft_budget", budget_json(args.budget)},
                      {"temperature", as_typed(args.temperature)},
                      {"seed", args.seed}};
  const auto differ = [](const auto& rows) {
    return std::ranges::any_of(rows,
                               [](const auto& row) { return row.first_difference.has_value(); });
  };
  if (args.streams > 0) {
    meta["streams"] = args.streams;
    std::vector<StreamRow> rows;
    setup.run(
        "lossless", meta, rows,
        [&](const EvalModel& model, const ProgressCallback& progress, auto& own) {
          eval_lossless_streams(model, prompts, args.streams, options, progress, own);
        },
        [&] { return report(rows); });
    return differ(rows);
  }
  std::vector<LosslessRow> rows;
  setup.run(
      "lossless", meta, rows,
      [&](const EvalModel& model, const ProgressCallback& progress, auto& own) {
        eval_lossless(model, prompts, options, progress, own);
      },
      [&] { return report(rows); });
  return differ(rows);
}

int run_sensitivity(const EvalArgs& args) {
  if (args.plans.size() != 1 || read_draft_spec(args.plans[0]).is_auto()) {
    throw UsageError("--plan: must be one plan, which is to be beaten");
  }
  NewFile::require_possible(args.plan_file);  // before the work whose result could not be written
  Setup setup(args);
  const int context = args.contexts[0];
  setup.require_plans(context);
  setup.require_positions(context, args.tokens + 1);
  // The first half is measured on, the second verified on.
  const auto prompts = setup.prompts(context, 2 * args.prompts, args.tokens + 1);
  setup.load(context + args.tokens + 1);
  SensitivityOptions options;
  options.base = setup.plans(context).front();
  options.draft_bytes = args.draft_bytes;
  options.target_bytes = args.target_bytes;
  options.round = args.round;
  SensitivityResult result;
  // After the report, which is not to be lost with the file.
  const auto write_plan = [&] {
    if (!result.chosen) return;
    const PolledInterrupts polled;
    NewFile file(args.plan_file);
    write_plan_file(*result.chosen, file);
  };
  try {
    setup.run(
        "sensitivity",
        {{"draft_budget", budget_json(args.budget)},
         {"round", args.round},
         {"draft_bytes", args.draft_bytes ? OrderedJson(*args.draft_bytes) : OrderedJson(nullptr)},
         {"target_bytes", args.target_bytes}},
        result,
        [&](const EvalModel& model, const ProgressCallback& progress, auto& own) {
          eval_sensitivity(model, std::span(prompts).first(args.prompts),
                           std::span(prompts).last(args.prompts), options, progress, own);
        },
        [&] {
          if (result.chosen) result.chosen->name = args.plan_file.stem().string();
          return report(result);
        });
  } catch (...) {
    write_plan();
    throw;
  }
  write_plan();
  return 0;
}

}  // namespace quantspec::cli
