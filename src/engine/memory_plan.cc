#include "engine/memory_plan.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace quantspec {

namespace {

constexpr double kMegabyte = 1e6;

// Of a context that nobody asked for, so much memory stays free: others want some, too.
constexpr std::size_t kShareLeft = 16;
// A shorter one is no use to anybody.
constexpr int kLeastContext = 512;

// Each has a ring, and logits of 33 rows.
constexpr int kMaxSequences = 256;

}  // namespace

WeightRead planes_kept(DraftWeights draft_weights) {
  switch (draft_weights) {
    case DraftWeights::kUpper:
      return WeightRead::kUpper;
    case DraftWeights::kFull:
      return WeightRead::kFull;
    case DraftWeights::kAuto:
    case DraftWeights::kBoth:
      break;
  }
  return WeightRead::kBoth;
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
       Field::kContext, context, kMaxContext);
}

MemoryPlanner::MemoryPlanner(const EngineOptions& options, const ModelConfig& config,
                             const Backend& backend, std::size_t checkpoint_bytes)
    : config_(config),
      backend_(backend),
      shape_(kv_shape(config, options.page_size)),
      checkpoint_bytes_(checkpoint_bytes),
      draft_weights_bytes_(
          options.draft_store.empty()
              ? Weights::draft_bytes_for(config, backend, planes_kept(options.draft_weights))
              : Weights::draft_bytes_for(DraftStore(options.draft_store), backend)),
      kv_store_(options.kv_store),
      sequences_(num_sequences(options)) {}

MemoryPlan MemoryPlanner::plan(int context) const {
  MemoryPlan plan;
  plan.weights_bytes = checkpoint_bytes_;
  plan.draft_weights_bytes = draft_weights_bytes_;
  plan.kv_bytes = KvCache::page_bytes_for(shape_, context, kv_store_);
  plan.ring_bytes = sequences_ * KvCache::ring_bytes_for(shape_, backend_, context, {kv_store_});
  const int in_pages = kv_store_ == KvStore::kFull ? 0 : context;
  plan.prefill_bytes = Model::prefill_bytes(config_, backend_, shape_, in_pages) +
                       Model::logits_bytes(config_, sequences_ - 1) +
                       Model::angle_bytes(config_, context);
  plan.kv_fp16_bytes = shape_.fp16_token_bytes() * context;
  return plan;
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
                  std::size_t checkpoint_bytes, std::size_t available) {
  const auto largest = [&](const EngineOptions& tried) {
    return MemoryPlanner(tried, config, backend, checkpoint_bytes).largest_context(available);
  };
  if (const int here = largest(options); here > 0) {
    auto text = Message::format("the largest that fits is {} {}", Field::kContext, here);
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
    return Message::format("{} {} with {} {} or less fits", Field::kDraftWeights, name,
                           Field::kContext, there);
  }
  return Message::format("not even the weights fit, which take {:.0f} MB",
                         checkpoint_bytes / kMegabyte);
}

}  // namespace

int choose_context(const EngineOptions& options, const ModelConfig& config, const Backend& backend,
                   std::size_t checkpoint_bytes, std::size_t available,
                   std::vector<Message>& warnings) {
  const bool chosen = options.ctx_size == 0;
  const int context = chosen ? longest_of(config) : options.ctx_size;
  require_supported_context(context);
  if (config.sliding_window && context > *config.sliding_window) {
    fail(ErrorKind::kUnsupportedModel,
         "{}: this model needs sliding-window attention ({} tokens) for a context of {}, which is "
         "not supported; {} {} or less works",
         options.model.string(), *config.sliding_window, context, Field::kContext,
         *config.sliding_window);
  }
  if (context > config.max_positions) {
    warnings.push_back(Message::format(
        "the context of {} tokens is longer than the {} that the model was made for", context,
        config.max_positions));
  }
  const MemoryPlanner planner(options, config, backend, checkpoint_bytes);
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
        Field::kContext));
    return largest;
  }
  fail(ErrorKind::kOutOfMemory,
       "a context of {} tokens needs {:.0f} MB and {:.0f} MB are available; {}", context,
       needed / kMegabyte, available / kMegabyte,
       what_fits(options, config, backend, checkpoint_bytes, available));
}

ModelReport report_model(const EngineOptions& options, std::span<const int> contexts) {
  const auto backend = make_backend({options.backend, options.num_threads, options.device});
  ModelReport report;
  report.config = load_config(options.model);
  const Checkpoint checkpoint(options.model);
  report.unread_tensors = unread_tensors(report.config, checkpoint);  // refuses what loading would
  const MemoryPlanner planner(options, report.config, *backend, checkpoint.bytes());
  const KvShape shape = kv_shape(report.config, options.page_size);
  backend->require_supported(shape);
  report.page_size = shape.page_size;
  report.backend = backend->description();
  report.available_bytes = backend->available_bytes();
  const int fits = planner.largest_context(report.available_bytes);
  const int longest = longest_of(report.config);
  report.largest_context = std::min(fits, longest);
  report.limited_by_window = longest < report.config.max_positions && longest < fits;
  if (fits == 0) {
    report.advice =
        what_fits(options, report.config, *backend, checkpoint.bytes(), report.available_bytes);
  }
  for (const int context : contexts) {
    require_supported_context(context);
    report.plans.emplace_back(context, planner.plan(context));
  }
  return report;
}

}  // namespace quantspec
