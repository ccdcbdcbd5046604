// What a Completion tells of prompts and tokens as they come, on the engine's thread.
#include <utility>

#include "api/completion.h"
#include "base/utf8.h"

namespace quantspec::api {

namespace {

// Where a token comes from, and what was drafted in its place.
OrderedJson draft_of(const Tokenizer& tokenizer, const TokenEvent& event) {
  OrderedJson rejected = OrderedJson::array();
  for (const TokenId id : event.rejected) {
    rejected.push_back({{"id", id}, {"token", repair_utf8(tokenizer.token_bytes(id))}});
  }
  return {{"id", event.id},
          {"drafted", event.drafted},
          {"looked_up", event.looked_up},
          {"rejected", std::move(rejected)}};
}

}  // namespace

void Completion::take_progress(std::size_t index, const PromptProgress& read) {
  ++core_.beats;
  const std::lock_guard lock(mutex_);
  begun_ = true;
  if (answered_) return;
  Choice& choice = choices_[index];
  const bool first = choice.read.tokens == 0;
  const int before = choice.read.read();
  choice.read = read;
  if (!wanted_.return_progress || !wanted_.stream) return;
  const auto tell = [&](int tokens) {
    const OrderedJson progress = {{"total", read.tokens},
                                  {"cache", read.cached},
                                  {"processed", tokens},
                                  {"time_ms", call_.clock.milliseconds()}};
    const OrderedJson ends = {{"prompt_progress", progress}};
    push(frames_.text(static_cast<int>(index), "", nullptr, OrderedJson::object(), usage_of_chunk(),
                      &ends));
  };
  if (first) tell(read.cached);
  if (read.read() > (first ? read.cached : before)) tell(read.read());
}

void Completion::take_prompt(std::size_t index, const PromptLogProbs& read) {
  const std::lock_guard lock(mutex_);
  if (answered_) return;
  Choice& choice = choices_[index];
  const PromptTokens& prompt = prompts_[choice.prompt];
  choice.log_probs.begin(prompt.ids, prompt.echo);
  for (std::size_t i = 0; i < prompt.ids.size(); ++i) {
    const std::size_t top = i == 0 ? 0 : wanted_.top_log_probs;
    choice.log_probs.add(prompt.ids[i],
                         i == 0 ? std::nullopt : std::optional(read.log_probs[i - 1]),
                         std::span(read.top).subspan(i == 0 ? 0 : (i - 1) * top, top));
  }
  if (!wanted_.stream) return;
  push(frames_.text(static_cast<int>(index), prompt.echo, choice.log_probs.take(),
                    OrderedJson::object(), usage_of_chunk()));
}

bool Completion::take(std::size_t index, const TokenEvent& event) {
  ++core_.beats;
  const std::lock_guard lock(mutex_);
  if (answered_) return false;
  begun_ = true;
  if (wanted_.reads_only()) return true;
  Choice& choice = choices_[index];
  if (!event.more_text) {
    const double now = call_.clock.seconds();
    choice.looked_up += event.looked_up;
    if (choice.tokens++ == 0) {
      choice.first_token_seconds = now;
      core_.metrics.first_token(now);
    } else {
      core_.metrics.next_token(now - choice.last_token_seconds);
    }
    choice.last_token_seconds = now;
    choice.accepted += event.drafted ? 1 : 0;
    choice.drafted += (event.drafted ? 1 : 0) + static_cast<int>(event.rejected.size());
    if (event.log_prob) choice.log_probs.add(event.id, event.log_prob, event.top_log_probs);
    if (wanted_.return_tokens) choice.ids.push_back(event.id);
    if (wanted_.return_drafts) choice.drafts.push_back(draft_of(core_.engine.tokenizer(), event));
  }
  if (wanted_.stream) tell(choice, index, event);
  return true;
}

OrderedJson Completion::more_of(Choice& choice) const {
  OrderedJson more = OrderedJson::object();
  if (wanted_.return_tokens) more["tokens"] = std::exchange(choice.ids, {});
  if (wanted_.return_drafts) more["drafts"] = std::exchange(choice.drafts, OrderedJson::array());
  return more;
}

// A token without text says nothing, unless more than text is asked for.
void Completion::tell(Choice& choice, std::size_t index, const TokenEvent& event) {
  const bool says_more = wanted_.log_probs || wanted_.return_tokens || wanted_.return_drafts;
  if (event.text.empty() && (!says_more || event.more_text)) return;
  const OrderedJson log_probs =
      wanted_.log_probs && !event.more_text ? choice.log_probs.take() : OrderedJson(nullptr);
  OrderedJson ends;
  if (wanted_.timings_per_token) ends["timings"] = to_json(times_so_far());
  push(frames_.text(static_cast<int>(index), event.text, log_probs, more_of(choice),
                    usage_of_chunk(), wanted_.timings_per_token ? &ends : nullptr));
}

AnswerTimes Completion::times_so_far() const {
  AnswerTimes times;
  for (const Choice& choice : choices_) {
    times += {.prompt = choice.read.tokens - choice.read.cached,
              .cached = choice.read.cached,
              .predicted = choice.tokens,
              .drafted = choice.drafted,
              .accepted = choice.accepted,
              .prompt_ms = 1e3 * choice.first_token_seconds,
              .predicted_ms = 1e3 * (choice.last_token_seconds - choice.first_token_seconds)};
  }
  return times;
}

std::optional<OrderedJson> Completion::usage_of_chunk() const {
  if (wanted_.continuous_usage) return to_json(usage());
  if (wanted_.include_usage) return OrderedJson(nullptr);
  return std::nullopt;
}

}  // namespace quantspec::api
