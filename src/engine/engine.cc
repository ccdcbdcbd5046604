#include "engine/engine.h"

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/log.h"
#include "base/system_memory.h"
#include "engine/memory_plan.h"
#include "engine/request_loop.h"
#include "engine/turns.h"

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
  ModelConfig config = load_config(options.model);
  const KvShape shape = kv_shape(config, options.page_size);
  auto backend = make_backend({options.backend, options.num_threads, options.device});
  if (options.backend == "auto" && backend->name() != "cuda") {
    log_debug("auto takes the CPU: " + cuda_unavailable());
  }
  backend->require_supported(shape);
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
      new Engine(resolved, std::move(backend), std::move(model), std::move(tokenizer)));
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

// QuantSpec's drafts with the weights that are kept.
std::vector<Plan> Engine::own_plans() const {
  switch (draft_weights_) {
    case DraftWeights::kUpper:
      return plans("quantspec");
    case DraftWeights::kBoth:
      return plans("quantspec+w8");
    case DraftWeights::kFull:
      return plans("quantspec+w16");
    case DraftWeights::kAuto:
      break;
  }
  std::vector<Plan> own = plans("quantspec");
  const Plan eight_bits = Plan::draft(config().num_layers, WeightRead::kBoth);
  if (model_.reads(eight_bits)) own.push_back(eight_bits);
  return own;
}

namespace {

// What the plans need of the cache, for which the engine could not plan: it did not know them.
void require_memory(const RequestLoopOptions& options, const KvShape& shape,
                    const Backend& backend) {
  KvOptions kv = kv_options(options.plans);
  kv.store = options.store;
  const std::size_t needed =
      options.sequences * (KvCache::gathered_bytes_for(shape, backend, kv) +
                           KvCache::ring_bytes_for(shape, backend, options.context, kv));
  const std::size_t available = backend.available_bytes();
  if (needed <= available) return;
  fail(ErrorKind::kOutOfMemory,
       "{} {}: needs {:.0f} MB for KV in full precision and {:.0f} MB are available; a smaller {} "
       "or {} works",
       field::kPlan, options.plans.front().name, needed / 1e6, available / 1e6, field::kDraftBudget,
       field::kContext);
}

}  // namespace

// Of one sequence, with pages for one context.
RequestLoopOptions Engine::loop_options(std::vector<Plan> plans) const {
  RequestLoopOptions options;
  options.sequences = 1;
  options.context = ctx_size_;
  options.plans = std::move(plans);
  options.store = kv_store_;
  options.max_waiting = std::numeric_limits<int>::max();  // threads are the bound
  return options;
}

std::unique_ptr<RequestLoop> Engine::make_loop(RequestLoopOptions options) const {
  require_memory(options, pool_.shape(), *backend_);
  return std::make_unique<RequestLoop>(model_, pool_.shape(), std::move(options));
}

// REQUIRES: it is the caller's turn.
RequestLoop& Engine::shared_loop() {
  if (shared_loop_ != nullptr) return *shared_loop_;
  RequestLoopOptions options = loop_options(own_plans());
  options.sequences = sequences_;
  if (kv_store_ != KvStore::kFull) {  // which has no pages to share
    options.pages = page_memory_ / pool_.page_bytes();
    options.host_bytes = host_cache_;
    if (sequences_ > 1) options.admission = Admission::kExpected;
  }
  shared_loop_ = make_loop(std::move(options));
  return *shared_loop_;
}

Engine::~Engine() = default;

Engine::Engine(const EngineOptions& options, std::unique_ptr<Backend> backend, Model model,
               std::unique_ptr<Tokenizer> tokenizer)
    : backend_(std::move(backend)),
      model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      pool_(*backend_, kv_shape(model_.config(), options.page_size)),
      draft_weights_(options.draft_weights),
      kv_store_(options.kv_store),
      ctx_size_(options.ctx_size),
      sequences_(options.sequences),
      page_memory_(options.page_memory),
      host_cache_(*options.host_cache),
      turns_(std::make_unique<Turns>()) {}

}  // namespace quantspec
