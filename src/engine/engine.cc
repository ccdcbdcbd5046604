#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/system_memory.h"
#include "base/thread_pool.h"
#include "engine/chat_prompts.h"
#include "engine/engine_impl.h"
#include "engine/fields.h"
#include "engine/memory_plan.h"
#include "model/draft_store.h"
#include "model/model_files.h"
#include "model/share.h"
#include "model/weight_source.h"
#include "tokenizer/tokenizer.h"

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

bool reads_all_pages(const Plan& plan) {
  return std::ranges::none_of(plan.layers, [](const LayerPlan& layer) {
    return layer.run && (layer.kv.chooses_pages() || layer.kv.gathers());
  });
}

void require_all_pages(const Plan& plan, int context_ranks) {
  if (context_ranks == 1 || reads_all_pages(plan)) return;
  fail(ErrorKind::kInvalidRequest,
       "{} {}: it reads some pages or tokens; with {} {} plans that read all of them work, such as "
       "quantspec",
       field::kPlan, plan.name, field::kContextRanks, context_ranks);
}

// What drafts are asked for, before there is anything to wait for.
void require_drafts(const EngineOptions& options, const PlanContext& context) {
  const DraftSpec spec = read_draft_spec(options.plan);
  const bool chosen = spec.is_auto(), by_weights = options.draft_weights != DraftWeights::kAuto;
  const bool all_full = options.kv_store == KvStore::kFull;
  if (options.lookup_history < 0) {
    fail(ErrorKind::kInvalidRequest, "{} {}: at least 0, for none", field::kLookupHistory,
         options.lookup_history);
  }
  if (options.lookup_history > 0 && !spec.looks_up) {
    fail(ErrorKind::kInvalidRequest,
         "{} {}: {} {} looks nothing up; auto, lookup and NAME+lookup do", field::kLookupHistory,
         options.lookup_history, field::kPlan, options.plan);
  }
  if (by_weights && !chosen) {
    fail(ErrorKind::kInvalidRequest, "{} {}: it says what weights drafts read, and so does {}",
         field::kPlan, options.plan, field::kDraftWeights);
  }
  if (options.draft_budget.given() && (by_weights || all_full)) {
    fail(ErrorKind::kInvalidRequest,
         "{} {}: is for sparse plans, which there are without {} and with pages ({} hierarchical)",
         field::kDraftBudget, options.draft_budget.text(), field::kDraftWeights, field::kKvCache);
  }
  const std::vector<Plan> plans = plans_of_passes(spec, context);
  if (chosen || plans.empty()) return;
  require_all_pages(plans.front(), options.context_ranks);
  RequestLoop::require_plans(plans, num_sequences(options));
  const auto by_pages = [](const LayerPlan& layer) {
    return layer.run && layer.kv.chooses_pages();
  };
  if (all_full && std::ranges::any_of(plans.front().layers, by_pages)) {
    fail(ErrorKind::kInvalidRequest,
         "{} {}: it chooses pages, and a cache in full precision has none; {} hierarchical works",
         field::kPlan, options.plan, field::kKvCache);
  }
}

// Of the host's threads each has a part. Of GPUs each thread has one, from the first one on;
// processes have theirs (Engine::meet_launched()).
std::unique_ptr<Backend> backend_of_rank(const EngineOptions& options, Communicator& ranks,
                                         const RankGroups& groups) {
  const int all = options.num_threads > 0 ? options.num_threads : num_physical_cores();
  BackendOptions backend{options.backend, std::max(1, all / ranks.num_here()), options.device,
                         &ranks, groups};
  const bool on_gpus = runs_on_gpus(options);
  if (options.processes != nullptr) {
    require_one_machine(options, ranks.num_here() == ranks.size());
    if (Agreement(&ranks).on(on_gpus) != on_gpus) {
      fail(ErrorKind::kInvalidRequest,
           "rank {} {} and rank 0 {}: with {} cpu, or cuda, all are alike", ranks.rank(),
           on_gpus ? "has a GPU" : "has none that can be used", on_gpus ? "none" : "one",
           field::kBackend);
    }
    return make_backend(backend);
  }
  if (!on_gpus) return make_backend(backend);
  const int first = options.device.value_or(0);
  backend.device = first + ranks.rank();
  try {
    return make_backend(backend);
  } catch (const Error& error) {
    fail(error.kind(), "{} ranks on GPUs, one for each from {} on: {}", ranks.size(), first,
         error.what());
  }
}

// Launchers may start other commands at other ranks, and on machines that compute otherwise.
void require_same_options(const EngineOptions& options, const ModelConfig& config,
                          const Backend& backend, const WeightSource& weights,
                          const Communicator* ranks, const Agreement& agreement) {
  const std::string own =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}", options.model.filename().string(),
                  config.num_layers, config.hidden_size, config.vocab_size,
                  static_cast<int>(options.target_weights), static_cast<int>(options.draft_weights),
                  static_cast<int>(options.kv_store), options.plan, options.draft_budget.text(),
                  options.lookup_history, num_sequences(options), options.page_size,
                  options.context_ranks, options.draft_store.filename().string());
  const auto same = [&](const std::string& text) {
    const std::uint64_t hash = hash_bytes(std::as_bytes(std::span(text)));
    return agreement.on(hash) == hash;
  };
  if (!same(own)) {
    fail(ErrorKind::kInvalidRequest, "a rank has another model or other options than rank 0: {}",
         own);
  }
  if (options.processes == nullptr) return;
  if (ranks->num_here() < ranks->size() && !same(fmt::format("{:016x}", weights.hash()))) {
    fail(ErrorKind::kInvalidRequest, "{}: is another file than that of rank 0",
         options.model.string());
  }
  const std::string machine = bits_follow_from(backend);
  if (same(machine)) return;
  fail(ErrorKind::kInvalidRequest,
       "a rank's processor has other instructions than that of rank 0, so that their bits may "
       "differ: {}",
       machine);
}

std::vector<NamedChatTemplate> chat_templates_of(const EngineOptions& options,
                                                 const ModelFiles& files) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  const std::filesystem::path& file = options.chat_template;
  if (file.empty()) return files.chat_templates();
  std::string source = read_file(file, kMostBytes);
  try {
    ChatTemplate{source};
  } catch (const Error& error) {
    fail(error.kind(), "{}: {}", file.string(), error.what());
  }
  return {{"default", std::move(source)}};
}

}  // namespace

void require_plan(std::string_view spec, const EngineOptions& options, const ModelConfig& model,
                  KvBudget budget) {
  const DraftSpec wanted = read_draft_spec(spec);
  const int page_size = kv_shape(model, options.page_size).page_size;
  const auto plans = plans_of_passes(wanted, {model.num_layers, page_size, budget});
  if (wanted.is_auto()) return;  // it does without those that cannot be
  for (const Plan& plan : plans) require_all_pages(plan, options.context_ranks);
}

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
  if (options.processes != nullptr) {
    check(options.processes->rank() == 0, "who is no rank 0 follows");
    require_ranks(options, options.processes->size());
    try {
      return load_rank(options, options.processes.get());
    } catch (...) {
      options.processes->give_up(current_error("the engine").what());
      throw;
    }
  }
  require_ranks(options, options.ranks);
  if (options.ranks == 1) return load_rank(options, nullptr);
  auto others = std::make_unique<RankThreads>(options);
  auto engine = load_rank(options, &others->own());
  engine->impl_->rank_threads = std::move(others);
  return engine;
}

// As the one rank that there is, or one of several, which load at the same time.
std::unique_ptr<Engine> Engine::load_rank(const EngineOptions& options, Communicator* ranks) {
  const Stopwatch clock;
  const Agreement agreement(ranks);
  const int num_ranks = ranks != nullptr ? ranks->size() : 1;
  const auto report = [&](std::string_view stage, double done) {
    if (options.progress) options.progress(stage, done);
  };
  if (ranks != nullptr) ranks->wait_for_all();
  const auto files = open_model(options.model);
  ModelConfig config = files->config();
  const KvShape shape = kv_shape(config, options.page_size);
  require_drafts(options, {config.num_layers, shape.page_size, options.draft_budget});
  const RankGroups groups = rank_groups(options, *files, num_ranks);
  auto backend = ranks != nullptr
                     ? backend_of_rank(options, *ranks, groups)
                     : make_backend({options.backend, options.num_threads, options.device});
  if (options.backend == "auto" && backend->name() != "cuda") {
    log_debug("auto takes the CPU: " + cuda_unavailable());
  }
  if (!options.cache_folder.empty() && options.kv_store == KvStore::kFull) {
    fail(ErrorKind::kInvalidRequest,
         "{}: keeps pages of 8 bits; a cache in full precision has none",
         options.cache_folder.string());
  }
  Share own{config, files->weights(options.target_weights, *backend)};
  if (ranks != nullptr) {
    own = share_of(config, std::move(own.source), ranks->rank(), num_ranks, groups);
  }
  backend->require_supported(kv_shape(own.config, options.page_size));
  require_same_options(options, config, *backend, *own.source, ranks, agreement);
  std::vector<Message> warnings;
  const auto [left, on_host] = memory_of_rank(*backend, ranks);
  const std::size_t available = left + backend->taken_bytes();  // which plans have, too
  const int context =
      agreement.on(choose_context(options, own.config, *backend, *own.source, available, warnings));
  const MemoryPlan memory = agreement.on(
      MemoryPlanner(options, own.config, *backend, *own.source).plan(context, available, on_host));
  if (agreement.leads()) {
    for (const Message& warning : warnings) log_warning(warning);
  }

  report("load", 0);
  auto tokenizer = files->tokenizer();
  require_same_vocabulary(options, *tokenizer, config);
  if (config.eos_tokens.empty() && tokenizer->eos()) config.eos_tokens = {*tokenizer->eos()};
  own.config.eos_tokens = config.eos_tokens;
  Weights weights(own.config, std::move(own.source), *backend,
                  [&](int done, int total) { report("load", static_cast<double>(done) / total); });
  if (agreement.leads()) weights.warn_of_unread();
  report("load", 1);
  const auto planes_done = [&](int done, int total) {
    report("quantize", static_cast<double>(done) / total);
  };
  if (options.draft_store.empty()) {
    weights.make_draft_planes(*backend, planes_kept(options.draft_weights), planes_done);
  } else {
    DraftStore store(options.draft_store);
    store.cut(weights.source());
    weights.use_draft_store(*backend, store, planes_done);
  }
  weights.source().require_unchanged();
  Model model(std::move(own.config), std::move(weights), *backend, context);
  EngineOptions resolved = options;
  resolved.ctx_size = context;
  resolved.page_size = shape.page_size;
  resolved.sequences = num_sequences(options);
  resolved.page_memory = memory.page_memory_bytes;
  resolved.host_cache = memory.host_cache_bytes;
  resolved.tail_memory = memory.tail_bytes;
  if (ranks != nullptr) ranks->wait_for_all();
  auto impl = std::make_unique<Impl>(std::move(resolved), std::move(config), std::move(backend),
                                     std::move(model), std::move(tokenizer), ranks);
  impl->chat_prompts =
      std::make_unique<ChatPrompts>(chat_templates_of(options, *files), *impl->tokenizer);
  impl->load_ms = clock.milliseconds();
  auto engine = std::unique_ptr<Engine>(new Engine(std::move(impl)));
  if (agreement.leads() && !options.cache_folder.empty()) {
    engine->impl_->folder = std::make_shared<ChunkFolder>(
        ChunkFolder::Options{.folder = options.cache_folder,
                             .most_bytes = options.cache_folder_bytes,
                             .fingerprint = engine->fingerprint(),
                             .chunk_tokens = engine->impl_->backend->prefill_chunk()});
  }
  return engine;
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

const ModelConfig& Engine::config() const { return impl_->config; }
const Tokenizer& Engine::tokenizer() const { return *impl_->tokenizer; }
const ChatPrompts& Engine::chat_prompts() const { return *impl_->chat_prompts; }
std::string Engine::backend_name() const { return impl_->backend->name(); }
std::string Engine::backend_description() const {
  const std::string each = impl_->backend->description();
  return ranks() == 1 ? each : fmt::format("{} ranks of {}", ranks(), each);
}
int Engine::ctx_size() const { return impl_->options.ctx_size; }
int Engine::page_size() const { return impl_->options.page_size; }
int Engine::sequences() const { return impl_->options.sequences; }
int Engine::ranks() const { return impl_->ranks != nullptr ? impl_->ranks->size() : 1; }
double Engine::load_ms() const { return impl_->load_ms; }
const std::vector<Plan>& Engine::draft_plans() const { return impl_->draft_plans; }
const Model& Engine::model() const { return impl_->model; }
PagePool& Engine::pool() { return impl_->pool; }
std::size_t Engine::target_weights_bytes() const {
  return ranks() * model().weights().target_bytes();
}
std::string Engine::target_weights() const { return model().weights().target_description(); }

bool Engine::drafts_by_budget() const {
  const auto keeps_to_one = [](const LayerPlan& layer) { return layer.kv.budget.given(); };
  return std::ranges::any_of(draft_plans(), [&](const Plan& plan) {
    return std::ranges::any_of(plan.layers, keeps_to_one);
  });
}

std::vector<Plan> Engine::plans(std::string_view spec, KvBudget budget) const {
  return impl_->plans_of(spec, budget);
}

std::vector<Plan> Engine::Impl::plans_of(std::string_view spec, KvBudget budget) const {
  const PlanContext context{model.config().num_layers, pool.shape().page_size, budget,
                            model.weights().head_read()};
  const DraftSpec wanted = read_draft_spec(spec);
  std::vector<Plan> plans = plans_of_passes(wanted, context);
  if (wanted.is_auto()) {
    const auto unreadable = [&](const Plan& plan) { return !model.reads(plan); };
    if (std::ranges::all_of(plans, unreadable)) model.require_weights(plans.front());
    std::erase_if(plans, unreadable);
    if (pool.shape().context_ranks > 1) {
      std::erase_if(plans, [](const Plan& plan) { return !reads_all_pages(plan); });
    }
    plans = distinct_plans(plans, model.weights(), model.backend(), pool.shape());
  }
  for (const Plan& plan : plans) {
    model.require_weights(plan);
    require_all_pages(plan, pool.shape().context_ranks);
  }
  if (wanted.looks_up) plans.push_back(Plan::lookup(kv_options(plans).full_layers));
  return plans;
}

std::vector<Plan> Engine::plans_at(int prompt_tokens, std::string_view spec,
                                   KvBudget budget) const {
  std::vector<Plan> at = plans(spec, budget);
  if (read_draft_spec(spec).is_auto() && !budget.given()) return at;
  const Message what = Message::format("{} {}", field::kPlan, spec);
  for (Plan& plan : at) {
    plan = plan_at(std::move(plan), prompt_tokens, impl_->pool.shape().page_size, what);
  }
  return at;
}

// What the options ask for, as far as the cache has it.
std::vector<Plan> Engine::Impl::make_draft_plans() const {
  const DraftSpec spec = read_draft_spec(options.plan);
  const auto of_weights = [&](const char* plan) {
    return plans_of(spec.looks_up ? fmt::format("{}+lookup", plan) : plan, {});
  };
  switch (options.draft_weights) {
    case DraftWeights::kUpper:
      return of_weights("quantspec");
    case DraftWeights::kBoth:
      return of_weights("quantspec+w8");
    case DraftWeights::kFull:
      return of_weights("quantspec+wfull");
    case DraftWeights::kAuto:
      break;
  }
  std::vector<Plan> drafts = plans_of(options.plan, options.draft_budget);
  if (spec.is_auto() && options.kv_store == KvStore::kFull) {
    std::erase_if(drafts, [](const Plan& plan) {
      return !plan.looks_up() && plan.layers.front().kv.chooses_pages();
    });
  }
  return drafts;
}

Engine::Impl::Impl(EngineOptions resolved, ModelConfig whole_config, std::unique_ptr<Backend> used,
                   Model loaded, std::unique_ptr<Tokenizer> of_model, Communicator* with)
    : options(std::move(resolved)),
      config(std::move(whole_config)),
      ranks(with),
      backend(std::move(used)),
      model(std::move(loaded)),
      loaded_bytes(backend->allocated_bytes()),
      tokenizer(std::move(of_model)),
      pool(*backend, kv_shape(model.config(), options.page_size)),
      draft_plans(make_draft_plans()) {}

}  // namespace quantspec
