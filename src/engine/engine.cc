#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/system_memory.h"
#include "engine/fields.h"
#include "engine/memory_plan.h"
#include "engine/request_loop.h"
#include "model/draft_store.h"

namespace quantspec {

namespace {

void require_same_vocabulary(const EngineOptions& options, const Tokenizer& tokenizer,
                             const ModelConfig& config) {
  if (tokenizer.vocab_size() <= config.vocab_size) return;
  fail(ErrorKind::kCorruptFile,
       "{}: the tokenizer has {} tokens and the model a vocabulary of {}; they do not belong "
       "together",
       options.model.string(), tokenizer.vocab_size(), config.vocab_size);
}

}  // namespace

std::string_view name_of(StopReason reason) {
  switch (reason) {
    case StopReason::kEos:
      return "eos";
    case StopReason::kStop:
      return "stop";
    case StopReason::kLength:
      return "length";
    case StopReason::kContext:
      return "context";
    case StopReason::kCancelled:
      break;
  }
  return "cancelled";
}

std::unique_ptr<Engine> Engine::load(const EngineOptions& options) {
  const Stopwatch clock;
  const auto report = [&](std::string_view stage, double done) {
    if (options.progress) options.progress(stage, done);
  };
  if (options.plan != "auto" && options.draft_weights != DraftWeights::kAuto) {
    fail(ErrorKind::kInvalidRequest, "{} {}: it says what weights drafts read, and so does {}",
         field::kPlan, options.plan, field::kDraftWeights);
  }
  ModelConfig config = load_config(options.model);
  const KvShape shape = kv_shape(config, options.page_size);
  auto backend = make_backend({options.backend, options.num_threads, options.device});
  if (options.backend == "auto" && backend->name() != "cuda") {
    log_debug("auto takes the CPU: " + cuda_unavailable());
  }
  backend->require_supported(shape);
  // A name that is wrong is refused before there is anything to wait for.
  const PlanContext context_of_plans{config.num_layers, shape.page_size, options.draft_budget};
  if (options.plan != "auto") {
    const Plan plan = make_plan(options.plan, context_of_plans);
    RequestLoop::require_plans({&plan, 1}, num_sequences(options));
  }
  Checkpoint checkpoint(options.model);
  std::vector<Message> warnings;
  const std::size_t available = backend->available_bytes();
  const int context =
      choose_context(options, config, *backend, checkpoint.bytes(), available, warnings);
  const MemoryPlan memory = MemoryPlanner(options, config, *backend, checkpoint.bytes())
                                .plan(context, available, available_memory_bytes());
  for (const Message& warning : warnings) log_warning(warning);

  report("load", 0);
  auto tokenizer = load_tokenizer(options.model);
  require_same_vocabulary(options, *tokenizer, config);
  if (config.eos_tokens.empty() && tokenizer->eos()) config.eos_tokens = {*tokenizer->eos()};
  Weights weights(config, std::move(checkpoint), *backend);
  weights.warn_of_unread();
  report("load", 1);
  const auto planes_done = [&](int done, int total) {
    report("quantize", static_cast<double>(done) / total);
  };
  if (options.draft_store.empty()) {
    weights.make_draft_planes(*backend, planes_kept(options.draft_weights), planes_done);
  } else {
    weights.use_draft_store(*backend, DraftStore(options.draft_store), planes_done);
  }
  weights.checkpoint().require_unchanged();
  Model model(std::move(config), std::move(weights), *backend, context);
  EngineOptions resolved = options;
  resolved.ctx_size = context;
  resolved.page_size = shape.page_size;
  resolved.sequences = num_sequences(options);
  resolved.page_memory = memory.page_memory_bytes;
  resolved.host_cache = memory.host_cache_bytes;
  std::unique_ptr<Engine> engine(
      new Engine(std::move(resolved), std::move(backend), std::move(model), std::move(tokenizer)));
  engine->load_ms_ = clock.milliseconds();
  return engine;
}

std::vector<Plan> Engine::plans(std::string_view spec, KvBudget budget) const {
  const PlanContext context{config().num_layers, pool_.shape().page_size, budget,
                            model_.weights().head_read()};
  const bool choose = spec == "auto";
  std::vector<Plan> plans = choose ? auto_plans(context) : std::vector{make_plan(spec, context)};
  if (choose) {
    const auto unreadable = [&](const Plan& plan) { return !model_.reads(plan); };
    if (std::ranges::all_of(plans, unreadable)) model_.require_weights(plans.front());
    std::erase_if(plans, unreadable);
  }
  for (const Plan& plan : plans) model_.require_weights(plan);
  return plans;
}

std::vector<Plan> Engine::plans_at(int prompt_tokens, std::string_view spec,
                                   KvBudget budget) const {
  std::vector<Plan> at = plans(spec, budget);
  if (spec == "auto" && !budget.given()) return at;
  const Message what = Message::format("{} {}", field::kPlan, spec);
  for (Plan& plan : at) {
    plan = plan_at(std::move(plan), prompt_tokens, pool_.shape().page_size, what);
  }
  return at;
}

// What the options ask for, as far as the cache has it.
std::vector<Plan> Engine::make_plans() const {
  switch (options_.draft_weights) {
    case DraftWeights::kUpper:
      return plans("quantspec");
    case DraftWeights::kBoth:
      return plans("quantspec+w8");
    case DraftWeights::kFull:
      return plans("quantspec+w16");
    case DraftWeights::kAuto:
      break;
  }
  std::vector<Plan> drafts = plans(options_.plan, options_.draft_budget);
  if (options_.plan == "auto" && options_.kv_store == KvStore::kFull) {
    std::erase_if(drafts, [](const Plan& plan) { return plan.layers.front().kv.chooses_pages(); });
  }
  return drafts;
}

Engine::Engine(EngineOptions options, std::unique_ptr<Backend> backend, Model model,
               std::unique_ptr<Tokenizer> tokenizer)
    : options_(std::move(options)),
      backend_(std::move(backend)),
      model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      pool_(*backend_, kv_shape(model_.config(), options_.page_size)),
      plans_(make_plans()) {}

}  // namespace quantspec
