#include "engine/memory_plan.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "base/system_memory.h"
#include "comm/comm.h"
#include "engine/fields.h"
#include "engine/model_report.h"
#include "kv_cache/prompt_tails.h"
#include "model/draft_store.h"
#include "model/model_files.h"
#include "model/share.h"
#include "model/weight_source.h"
#include "speculative/speculative.h"

namespace quantspec {

namespace {

constexpr double kMegabyte = 1e6;

// Of a context that nobody asked for, so much memory stays free: others want some, too.
constexpr std::size_t kShareLeft = 16;
// A shorter one is no use to anybody.
constexpr int kLeastContext = 512;

// Of a device's memory so much stays free of pages, for what nobody counts: kernels, graphs of
// rounds. Of the host's, where pages take memory as they come to be used, so much.
constexpr std::size_t kDeviceShareLeft = 16, kHostShareLeft = 2;
// Pages for so many times what all sequences can come to hold: the rest is for cached prefixes.
constexpr std::size_t kMostTimes = 2;

// Of the host's memory for a device, which takes it at the start: a share, and so much at most.
constexpr std::size_t kHostCacheShare = 8, kMostHostCache = std::size_t{4} << 30;

// For ends of prompts.
constexpr std::size_t kTailShare = 16, kTailsOfSequence = 2;

// Each has a ring, and logits of all rows of a round.
constexpr int kMaxSequences = 256;

}  // namespace

WeightRead planes_kept(DraftWeights draft_weights) {
  switch (draft_weights) {
    case DraftWeights::kUpper:
      return WeightRead::kUpper;
    case DraftWeights::kFull:
      return WeightRead::kTarget;
    case DraftWeights::kAuto:
    case DraftWeights::kBoth:
      break;
  }
  return WeightRead::kBoth;
}

std::vector<Plan> plans_of_passes(const DraftSpec& spec, const PlanContext& context) {
  if (spec.plan.empty()) return {};
  if (spec.is_auto()) return auto_plans(context);
  return {make_plan(spec.plan, context)};
}

int num_sequences(const EngineOptions& options) {
  if (options.sequences < 0 || options.sequences > kMaxSequences) {
    fail(ErrorKind::kInvalidRequest, "{} sequences at once: supported are 1 to {}",
         options.sequences, kMaxSequences);
  }
  if (options.sequences > 0) return options.sequences;
  return options.kv_store == KvStore::kFull ? 1 : 4;
}

void require_supported_context(int context) {
  if (context >= 1 && context <= kMaxContext) return;
  fail(ErrorKind::kInvalidRequest, "{} {}: supported are 1 to {} tokens (0: the model's)",
       field::kContext, context, kMaxContext);
}

namespace {

// A store is for matrices of elements (Weights::use_draft_store()), which is known beforehand.
std::size_t draft_bytes(const EngineOptions& options, const ModelConfig& config,
                        const Backend& backend, const WeightSource& source) {
  if (options.draft_store.empty()) {
    return Weights::draft_bytes_for(config, source, backend, planes_kept(options.draft_weights));
  }
  for (const MatrixFormat& matrix : matrix_formats(config, source)) {
    if (matrix.layout.dense()) continue;
    fail(ErrorKind::kInvalidRequest,
         "{} {}: is for targets in bf16, fp16 or fp32; of {} in {} drafts read the target's own "
         "codes, without a store",
         field::kDraftStore, options.draft_store.string(), source.own_name(matrix.name),
         matrix.format);
  }
  DraftStore store(options.draft_store);
  store.cut(source);
  return Weights::draft_bytes_for(store, backend);
}

// What caches are made for, as far as it follows from the options: of auto the engine leaves out
// what the weights do not give (Engine::plans). Drafts by weights that were chosen read all pages,
// and so do those that nobody chose where contexts are shared, or in full precision.
KvOptions kv_of(const EngineOptions& options, const KvShape& shape) {
  KvOptions kv;
  if (options.draft_weights == DraftWeights::kAuto) {
    kv = kv_options(plans_of_passes(read_draft_spec(options.plan),
                                    {shape.num_layers, shape.page_size, options.draft_budget}));
  }
  kv.store = options.kv_store;
  if (shape.context_ranks > 1 || kv.store == KvStore::kFull) kv.accesses.clear();
  return kv;
}

bool chooses_by_mass(const KvOptions& kv) {
  return std::ranges::any_of(
      kv.accesses, [](const KvAccess& access) { return access.tokens == KvTokens::kByMass; });
}

}  // namespace

void require_ranks(const EngineOptions& options, int ranks) {
  if (ranks == EngineOptions::kLaunchedRanks) {
    fail(ErrorKind::kInvalidRequest,
         "{}: a launcher's are for generate, chat, serve and verify; 1, 2, 4 and 8 work",
         field::kRanks);
  }
  constexpr int kMostRanks = 8;
  if (ranks < 1 || ranks > kMostRanks || !std::has_single_bit(static_cast<unsigned>(ranks))) {
    fail(ErrorKind::kInvalidRequest, "{} {}: supported are 1, 2, 4 and 8", field::kRanks, ranks);
  }
  const int sharing = options.context_ranks;
  if (sharing < 1 || sharing > ranks || !std::has_single_bit(static_cast<unsigned>(sharing))) {
    fail(ErrorKind::kInvalidRequest, "{} {}: may be 1, 2, 4 or 8, and no more than {} {}",
         field::kContextRanks, sharing, field::kRanks, ranks);
  }
  if (sharing > 1 && options.kv_store == KvStore::kFull) {
    fail(ErrorKind::kInvalidRequest, "{} {}: {} full has no pages to share; {} hierarchical works",
         field::kContextRanks, sharing, field::kKvCache, field::kKvCache);
  }
}

RankGroups rank_groups(const EngineOptions& options, const ModelFiles& files, int ranks) {
  if (options.context_ranks == 1) return {};
  const auto backend = make_backend({.name = options.backend,
                                     .num_threads = 1,
                                     .device = options.device,
                                     .groups = {.context = options.context_ranks}});
  return rank_groups(files.config(), *files.weights(options.target_weights, *backend), ranks,
                     options.context_ranks);
}

bool runs_on_gpus(const EngineOptions& options) {
  if (options.backend != "auto") return options.backend == "cuda";
  return options.device || cuda_unavailable().empty();
}

void require_one_machine(const EngineOptions& options, bool on_one_machine) {
  if (on_one_machine || !runs_on_gpus(options)) return;
  fail(ErrorKind::kInvalidRequest,
       "{} cuda: GPUs of one machine share a model, and the launcher's processes are on several; "
       "there cpu and reference work",
       field::kBackend);
}

std::optional<int> gpu_of_process(const EngineOptions& options, int rank) {
  if (options.device || (options.backend != "auto" && options.backend != "cuda")) {
    return options.device;
  }
  const int gpus = num_gpus();
  if (gpus == 0) return std::nullopt;
  const int own = rank % gpus;
  const bool used = options.backend == "cuda" || cuda_unavailable(own).empty();
  return used ? std::optional(own) : std::nullopt;
}

RankMemory memory_of_rank(const Backend& backend, int num_here) {
  const std::size_t available = backend.available_bytes();
  return {backend.is_apart_from_host() ? available : available / num_here,
          available_memory_bytes() / num_here};
}

RankMemory memory_of_rank(const Backend& backend, Communicator* ranks) {
  const RankMemory own = memory_of_rank(backend, ranks != nullptr ? ranks->num_here() : 1);
  const Agreement agreement(ranks);
  return {agreement.least(own.available), agreement.least(own.on_host)};
}

MemoryPlanner::MemoryPlanner(const EngineOptions& options, const ModelConfig& config,
                             const Backend& backend, const WeightSource& source)
    : config_(config),
      backend_(backend),
      shape_(kv_shape(config, options.page_size)),
      target_weights_bytes_(Weights::target_bytes_for(config, source, backend)),
      draft_weights_bytes_(draft_bytes(options, config, backend, source)),
      kv_(kv_of(options, shape_)),
      sequences_(num_sequences(options)),
      looks_up_(read_draft_spec(options.plan).looks_up),
      lookup_history_(static_cast<std::size_t>(std::max(options.lookup_history, 0))),
      wanted_page_memory_(options.page_memory),
      wanted_host_cache_(options.host_cache),
      wanted_tail_memory_(options.tail_memory) {
  const bool wanted = wanted_page_memory_ > 0 || wanted_host_cache_.value_or(0) > 0;
  if (wanted && kv_.store == KvStore::kFull) {
    fail(ErrorKind::kInvalidRequest,
         "{} full has no pages, for which {} and {} are; {} hierarchical works", field::kKvCache,
         field::kPageMemory, field::kHostCache, field::kKvCache);
  }
}

std::size_t working_bytes(const ModelConfig& config, const Backend& backend, const KvShape& shape,
                          const KvOptions& kv, int sequences, int context) {
  const bool paged = kv.store != KvStore::kFull;
  const int in_pages = paged ? context : 0;
  const int pages = (in_pages + shape.page_size - 1) / shape.page_size;
  const std::size_t of_sequence =
      Sequence::bytes_for(context) + KvCache::table_bytes_for(shape, context, kv);
  return Model::prefill_bytes(config, backend, shape, in_pages) +
         Model::pass_bytes(config, backend, shape, sequences, chooses_by_mass(kv) ? pages : 0) +
         Model::angle_bytes(config, context) + Decoder::bytes_for(config, backend, sequences) +
         sequences * of_sequence +
         (paged ? PromptTails::staging_bytes(shape, backend, backend.prefill_chunk()) : 0);
}

MemoryPlan MemoryPlanner::plan(int context) const {
  MemoryPlan plan;
  plan.weights_bytes = target_weights_bytes_;
  plan.draft_weights_bytes = draft_weights_bytes_;
  plan.kv_bytes = KvCache::page_bytes_for(shape_, context, kv_.store);
  plan.ring_bytes = sequences_ * KvCache::ring_bytes_for(shape_, backend_, context, kv_);
  plan.prefill_bytes = working_bytes(config_, backend_, shape_, kv_, sequences_, context);
  if (!backend_.is_apart_from_host()) plan.prefill_bytes += lookup_bytes(context);
  plan.kv_fp16_bytes = shape_.fp16_token_bytes() * context;
  return plan;
}

std::size_t MemoryPlanner::lookup_bytes(int context) const {
  if (!looks_up_) return 0;
  return sequences_ * Sequence::lookup_bytes(context, lookup_history_);
}

MemoryPlan MemoryPlanner::plan(int context, std::size_t available,
                               std::size_t available_on_host) const {
  MemoryPlan plan = this->plan(context);
  if (backend_.is_apart_from_host()) {
    available_on_host -= std::min(available_on_host, lookup_bytes(context));
  }
  if (kv_.store == KvStore::kFull) return plan;
  plan.page_memory_bytes = page_memory(plan, context, available);
  plan.host_cache_bytes = host_cache(plan, available, available_on_host);
  plan.tail_bytes = tail_memory(plan, available, available_on_host);
  return plan;
}

// At least what one context takes, with a page that is begun.
std::size_t MemoryPlanner::page_memory(const MemoryPlan& plan, int context,
                                       std::size_t available) const {
  const std::size_t page = shape_.page_bytes();
  const std::size_t least = (context + shape_.page_size - 1) / shape_.page_size * page;
  const std::size_t others = plan.total() - plan.kv_bytes;
  const std::size_t there = available - std::min(available, others);
  if (wanted_page_memory_ == 0) {
    const std::size_t left =
        backend_.is_apart_from_host() ? available / kDeviceShareLeft : there / kHostShareLeft;
    const std::size_t most =
        std::min(there - std::min(there, left), kMostTimes * sequences_ * least);
    return std::max(most / page * page, least);
  }
  if (wanted_page_memory_ < least) {
    const std::size_t tokens = wanted_page_memory_ / page * shape_.page_size;
    fail(ErrorKind::kInvalidRequest,
         "{} {}: pages of {} tokens take {}, which one request may hold; {} {} or less works",
         field::kPageMemory, wanted_page_memory_, context, least, field::kContext, tokens);
  }
  if (wanted_page_memory_ > there) {
    fail(ErrorKind::kOutOfMemory, "{} {}: {} bytes are available for pages beside all else",
         field::kPageMemory, wanted_page_memory_, there);
  }
  return wanted_page_memory_ / page * page;
}

std::size_t MemoryPlanner::host_cache(const MemoryPlan& plan, std::size_t available,
                                      std::size_t available_on_host) const {
  const std::size_t page = shape_.page_bytes();
  const bool on_device = backend_.is_apart_from_host();
  if (!wanted_host_cache_) {
    if (!on_device) return 0;
    const std::size_t most = std::min(available_on_host / kHostCacheShare, kMostHostCache);
    return std::min(most, plan.page_memory_bytes) / page * page;
  }
  const std::size_t beside = on_device ? 0 : plan.total() - plan.kv_bytes + plan.page_memory_bytes;
  const std::size_t there = (on_device ? available_on_host : available);
  const std::size_t left = there - std::min(there, beside);
  if (*wanted_host_cache_ <= left) return *wanted_host_cache_ / page * page;
  fail(ErrorKind::kOutOfMemory, "{} {}: {} bytes of the host's memory are available for it",
       field::kHostCache, *wanted_host_cache_, left);
}

std::size_t MemoryPlanner::tail_memory(const MemoryPlan& plan, std::size_t available,
                                       std::size_t available_on_host) const {
  if (wanted_tail_memory_) return *wanted_tail_memory_;
  const bool on_device = backend_.is_apart_from_host();
  const std::size_t taken =
      on_device ? plan.host_cache_bytes
                : plan.total() - plan.kv_bytes + plan.page_memory_bytes + plan.host_cache_bytes;
  const std::size_t there = on_device ? available_on_host : available;
  const std::size_t longest = PromptTails::most_bytes(shape_, backend_, backend_.prefill_chunk());
  return std::min((there - std::min(there, taken)) / kTailShare,
                  kTailsOfSequence * sequences_ * longest);
}

int MemoryPlanner::largest_context(std::size_t available) const {
  int low = 0, high = kMaxContext;  // the answer lies in [low, high]
  while (low < high) {
    const int middle = low + (high - low + 1) / 2;
    if (plan(middle).total() <= available) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

namespace {

// The longest context that a model computes as it was made to.
int longest_of(const ModelConfig& config) {
  return std::min(config.max_positions, config.sliding_window.value_or(config.max_positions));
}

// What fits instead of a context that does not, by this or by other weights for drafts.
Message what_fits(const EngineOptions& options, const ModelConfig& config, const Backend& backend,
                  const WeightSource& source, std::size_t available) {
  const auto largest = [&](const EngineOptions& tried) {
    return MemoryPlanner(tried, config, backend, source).largest_context(available);
  };
  if (const int here = largest(options); here > 0) {
    auto text = Message::format("the largest that fits is {} {}", field::kContext, here);
    if (here > config.max_positions) {
      text += Message::format(" (the model was made for {})", config.max_positions);
    }
    return text;
  }
  EngineOptions other = options;
  other.draft_store.clear();
  for (const auto& [weights, name] :
       {std::pair{DraftWeights::kUpper, "4"}, std::pair{DraftWeights::kFull, "full"}}) {
    other.draft_weights = weights;
    const int there = largest(other);
    if (there == 0) continue;
    return Message::format("{} {} with {} {} or less fits", field::kDraftWeights, name,
                           field::kContext, there);
  }
  return Message::format("not even the weights fit, which take {:.0f} MB",
                         Weights::target_bytes_for(config, source, backend) / kMegabyte);
}

}  // namespace

int choose_context(const EngineOptions& options, const ModelConfig& config, const Backend& backend,
                   const WeightSource& source, std::size_t available,
                   std::vector<Message>& warnings) {
  const bool chosen = options.ctx_size == 0;
  const int context = chosen ? longest_of(config) : options.ctx_size;
  require_supported_context(context);
  if (config.sliding_window && context > *config.sliding_window) {
    fail(ErrorKind::kUnsupportedModel,
         "{}: this model needs sliding-window attention ({} tokens) for a context of {}, which is "
         "not supported; {} {} or less works",
         options.model.string(), *config.sliding_window, context, field::kContext,
         *config.sliding_window);
  }
  if (context > config.max_positions) {
    warnings.push_back(Message::format(
        "the context of {} tokens is longer than the {} that the model was made for", context,
        config.max_positions));
  }
  const MemoryPlanner planner(options, config, backend, source);
  const std::size_t needed = planner.plan(context).total();
  if (needed <= available) {
    if (context < config.max_positions && chosen) {
      warnings.push_back(Message::format(
          "the context is {} of the model's {} tokens: beyond, it needs sliding-window attention, "
          "which is not supported",
          context, config.max_positions));
    }
    return context;
  }
  const int largest = planner.largest_context(available - available / kShareLeft);
  if (chosen && largest >= std::min(kLeastContext, context)) {
    warnings.push_back(Message::format(
        "the context is {} of the model's {} tokens: {} would need {:.0f} MB, and {:.0f} MB are "
        "available; {} takes another",
        largest, config.max_positions, context, needed / kMegabyte, available / kMegabyte,
        field::kContext));
    return largest;
  }
  fail(ErrorKind::kOutOfMemory,
       "a context of {} tokens needs {:.0f} MB and {:.0f} MB are available; {}", context,
       needed / kMegabyte, available / kMegabyte,
       what_fits(options, config, backend, source, available));
}

namespace {

std::vector<WeightCost> weight_costs(const ModelFiles& files, const ModelConfig& config,
                                     const Backend& backend) {
  std::vector<WeightCost> costs;
  for (const TargetWeights target : {TargetWeights::kCheckpoint, TargetWeights::k8Bits}) {
    // What has no elements is refused in 8 bits.
    if (!costs.empty() && costs.front().upper_bytes == 0) break;
    const auto source = files.weights(target, backend);
    const auto of_drafts = [&](WeightRead read) {
      return Weights::draft_bytes_for(config, *source, backend, read);
    };
    costs.push_back({target, Weights::target_bytes_for(config, *source, backend),
                     of_drafts(WeightRead::kUpper), of_drafts(WeightRead::kBoth)});
  }
  return costs;
}

}  // namespace

ModelReport report_model(const EngineOptions& options, std::span<const int> contexts) {
  require_ranks(options, options.ranks);
  const auto files = open_model(options.model);
  const RankGroups groups = rank_groups(options, *files, options.ranks);
  const auto backend = make_backend({.name = options.backend,
                                     .num_threads = options.num_threads,
                                     .device = options.device,
                                     .groups = groups});
  ModelReport report;
  report.ranks = options.ranks;
  report.context_ranks = options.context_ranks;
  report.config = files->config();
  Share own{report.config, files->weights(options.target_weights, *backend)};
  report.unread_tensors = unread_tensors(report.config, *own.source);  // refuses what loading would
  const auto matrices = matrix_formats(report.config, *own.source);
  report.rank_counts = rank_counts(report.config, *own.source, options.context_ranks);
  if (options.ranks > 1) {
    own = share_of(report.config, std::move(own.source), 0, options.ranks, groups);
  }
  report.target_weights = describe_formats(matrices);
  for (const MatrixFormat& matrix : matrices) {
    report.matrices.emplace_back(matrix.name, matrix.format);
  }
  const MemoryPlanner planner(options, own.config, *backend, *own.source);
  const KvShape shape = kv_shape(own.config, options.page_size);
  backend->require_supported(shape);
  report.weights = weight_costs(*files, report.config, *backend);
  report.page_size = shape.page_size;
  report.backend = backend->description();
  const RankMemory each = memory_of_rank(*backend, options.ranks);
  report.available_bytes = each.available;
  const int fits = planner.largest_context(report.available_bytes);
  const int longest = longest_of(report.config);
  report.largest_context = std::min(fits, longest);
  report.limited_by_window = longest < report.config.max_positions && longest < fits;
  if (fits == 0) {
    report.advice = what_fits(options, own.config, *backend, *own.source, report.available_bytes);
  }
  for (const int context : contexts) {
    require_supported_context(context);
    const MemoryPlan plan = planner.plan(context);
    const bool fits = plan.total() <= report.available_bytes;
    report.plans.emplace_back(
        context, fits ? planner.plan(context, report.available_bytes, each.on_host) : plan);
  }
  return report;
}

}  // namespace quantspec
