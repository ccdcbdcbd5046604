#include "engine/generation.h"

#include <utility>

#include "engine/engine_impl.h"

namespace quantspec {

namespace {

TextStream::Rules rules(const Engine& engine, const GenerateOptions& options) {
  return {.eos = options.ignore_eos ? std::vector<TokenId>() : engine.config().eos_tokens,
          .stop_ids = options.stop_ids,
          .stop = options.stop,
          .min_tokens = options.min_tokens};
}

double per_second(double count, double milliseconds) {
  return milliseconds > 0 ? 1e3 * count / milliseconds : 0.0;
}

}  // namespace

Engine::Generation::Generation(const Engine& engine, std::size_t prompt_tokens, int most,
                               const GenerateOptions& options, Listener listener)
    : engine_(engine),
      prompt_tokens_(static_cast<int>(prompt_tokens)),
      progress_(options.progress),
      listener_(std::move(listener)),
      stream_(engine.tokenizer(), rules(engine, options)),
      stop_reason_(options.predict >= 0 && options.predict <= most ? StopReason::kLength
                                                                   : StopReason::kContext) {}

void Engine::Generation::read(const PromptProgress& progress) const {
  if (progress_) progress_("prefill", progress.share);
  if (listener_.on_prompt) listener_.on_prompt(progress);
}

bool Engine::Generation::take(const Step& step) {
  if (stream_.tokens().empty()) first_token_ms_ = clock_.milliseconds();
  if (step.prompt != nullptr) {
    prompt_log_probs_ = *step.prompt;
    if (listener_.on_prompt_log_probs) listener_.on_prompt_log_probs(prompt_log_probs_);
  }
  const std::size_t top = step.top_log_probs.size() / step.tokens.size();
  for (std::size_t i = 0; i < step.tokens.size(); ++i) {
    const bool drafted = std::cmp_less(i, step.accepted);
    TokenEvent event{
        .id = step.tokens[i], .drafted = drafted, .looked_up = drafted && step.looked_up};
    if (!event.drafted) event.rejected = step.rejected;
    if (!step.log_probs.empty()) {
      event.log_prob = step.log_probs[i];
      log_probs_.push_back(step.log_probs[i]);
      event.top_log_probs = step.top_log_probs.subspan(i * top, top);
      top_log_probs_.insert(top_log_probs_.end(), event.top_log_probs.begin(),
                            event.top_log_probs.end());
    }
    const auto reason = stream_.push(event, listener_.on_token);
    if (!reason) continue;
    stop_reason_ = *reason;
    stopped_ = true;
    return false;
  }
  return true;
}

void Engine::Generation::end(const Request::Ended& ended) {
  Outcome outcome;
  if (ended.end == RequestEnd::kCancelled) stop_reason_ = StopReason::kCancelled;
  try {
    outcome.error = ended.error;
    if (ended.end == RequestEnd::kDone && !stopped_) stream_.finish(listener_.on_token);
    engine_.model().weights().require_unchanged();
  } catch (...) {
    if (!outcome.error) outcome.error = current_error("who was told of tokens");
  }
  try {
    report(ended, outcome.result);
  } catch (...) {
    outcome.result = {};
    outcome.error = memory_ran_out();
  }
  if (listener_.on_end) listener_.on_end(std::move(outcome));
}

// What was generated is moved, not copied: an end is told also where memory is short.
void Engine::Generation::report(const Request::Ended& ended, GenerateResult& result) {
  result.text = stream_.take_text();
  result.tokens = stream_.take_tokens();
  result.log_probs = std::move(log_probs_);
  result.top_log_probs = std::move(top_log_probs_);
  result.prompt_log_probs = std::move(prompt_log_probs_);
  result.prompt_tokens = prompt_tokens_;
  result.cached_tokens = ended.cached_tokens;
  result.stop_reason = stop_reason_;
  result.speculation = ended.stats;
  result.drafts_off = ended.drafts_off;
  result.draft_choice = ended.draft_choice;
  Timings& timings = result.timings;
  timings.prefill_ms = first_token_ms_;
  timings.decode_ms = result.tokens.empty() ? 0 : clock_.milliseconds() - first_token_ms_;
  timings.prefill_tokens_per_second =
      per_second(prompt_tokens_ - ended.cached_tokens, timings.prefill_ms);
  timings.decode_tokens_per_second =
      per_second(static_cast<double>(result.tokens.size()) - 1, timings.decode_ms);
  const Weights& weights = engine_.model().weights();
  const std::size_t ranks = engine_.ranks();  // of which each takes as much
  result.memory = {
      .weights_bytes = ranks * weights.target_bytes(),
      .draft_weights_bytes = ranks * weights.draft_bytes(),
      .kv_bytes = ranks * ended.page_bytes,
      .ring_bytes = ranks * ended.ring_bytes,
      .kv_fp16_bytes = ranks * engine_.impl_->pool.shape().fp16_token_bytes() * ended.tokens};
}

}  // namespace quantspec
