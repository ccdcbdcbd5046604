#include "engine/engine.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "engine/memory_plan.h"

namespace quantspec {

namespace {

constexpr double kMegabyte = 1e6;

// The application's logger of this name; else one to standard error, since standard output is the
// application's.
spdlog::logger& log() {
  if (const auto logger = spdlog::get("quantspec")) return *logger;
  return *spdlog::stderr_logger_mt("quantspec");
}

int choose_context(const EngineOptions& options, const ModelConfig& config) {
  const int context = options.ctx_size != 0 ? options.ctx_size : config.max_positions;
  require_supported_context(context);
  if (config.sliding_window && context > *config.sliding_window) {
    fail(ErrorKind::kUnsupportedModel,
         "{}: this model needs sliding-window attention ({} tokens) for a context of {}, which is "
         "not supported; --ctx-size {} or less works",
         options.model.string(), *config.sliding_window, context, *config.sliding_window);
  }
  if (context > config.max_positions) {
    log().warn("the context of {} tokens is longer than the {} that the model was made for",
               context, config.max_positions);
  }
  return context;
}

void require_memory(const EngineOptions& options, const ModelConfig& config, const Backend& backend,
                    int context) {
  const MemoryPlanner planner(options, config, backend);
  const std::size_t needed = planner.plan(context).total();
  const std::size_t available = backend.available_bytes();
  if (needed <= available) return;
  const int largest = planner.largest_context(available);
  std::string advice = largest > 0 ? fmt::format("the largest that fits is --ctx-size {}", largest)
                                   : std::string("not even the weights fit");
  if (largest > config.max_positions) {
    advice += fmt::format(" (the model was made for {})", config.max_positions);
  }
  fail(ErrorKind::kOutOfMemory,
       "a context of {} tokens needs {:.0f} MB and {:.0f} MB are available; {}", context,
       needed / kMegabyte, available / kMegabyte, advice);
}

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
  auto backend = make_backend({options.backend, options.num_threads});
  if (options.backend == "auto" && backend->name() != "cuda") {
    log().debug("auto takes the CPU: {}", cuda_unavailable());
  }
  backend->require_supported(shape);
  const int context = choose_context(options, config);
  require_memory(options, config, *backend, context);

  report("load", 0);
  auto tokenizer = load_tokenizer(options.model);
  require_same_vocabulary(options, *tokenizer, config);
  if (config.eos_tokens.empty() && tokenizer->eos()) config.eos_tokens = {*tokenizer->eos()};
  Weights weights(config, Checkpoint(options.model), *backend);
  report("load", 1);
  const auto planes_done = [&](int done, int total) {
    report("quantize", static_cast<double>(done) / total);
  };
  if (options.draft_store.empty()) {
    weights.make_draft_planes(*backend, planes_kept(options.draft_weights), planes_done);
  } else {
    weights.use_draft_store(*backend, DraftStore(options.draft_store), planes_done);
  }
  Model model(std::move(config), std::move(weights), *backend);
  EngineOptions resolved = options;
  resolved.ctx_size = context;
  resolved.page_size = shape.page_size;
  std::unique_ptr<Engine> engine(
      new Engine(resolved, std::move(backend), std::move(model), std::move(tokenizer)));
  engine->load_ms_ = clock.milliseconds();
  return engine;
}

std::vector<Plan> Engine::plans(std::string_view spec, int prompt_tokens, int budget) const {
  const PlanContext context{config().num_layers, pool_.shape().page_size, prompt_tokens, budget,
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

// QuantSpec's drafts with the weights that are kept.
std::vector<Plan> Engine::own_plans() const {
  switch (draft_weights_) {
    case DraftWeights::kUpper:
      return plans("quantspec", 0);
    case DraftWeights::kBoth:
      return plans("quantspec+w8", 0);
    case DraftWeights::kFull:
      return plans("quantspec+w16", 0);
    case DraftWeights::kAuto:
      break;
  }
  std::vector<Plan> own = plans("quantspec", 0);
  const Plan eight_bits = Plan::draft(config().num_layers, WeightRead::kBoth);
  if (model_.reads(eight_bits)) own.push_back(eight_bits);
  return own;
}

Engine::Engine(const EngineOptions& options, std::unique_ptr<Backend> backend, Model model,
               std::unique_ptr<Tokenizer> tokenizer)
    : backend_(std::move(backend)),
      model_(std::move(model)),
      tokenizer_(std::move(tokenizer)),
      pool_(*backend_, kv_shape(model_.config(), options.page_size)),
      decoder_(model_),
      draft_weights_(options.draft_weights),
      kv_store_(options.kv_store),
      ctx_size_(options.ctx_size) {}

}  // namespace quantspec
