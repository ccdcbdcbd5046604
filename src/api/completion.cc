#include "api/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "api/head.h"
#include "api/prompt_tokens.h"
#include "api/routes.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "engine/receipt.h"

namespace quantspec::api {

namespace {

constexpr int kGone = 499;  // nginx's: the client went before its answer

// Says at its own end that the engine calls back no more for a choice.
class EndOfEngine {
 public:
  explicit EndOfEngine(Core& core) : core_(core) {}
  ~EndOfEngine() { core_.live.engine_ended(); }
  EndOfEngine(const EndOfEngine&) = delete;
  EndOfEngine& operator=(const EndOfEngine&) = delete;

 private:
  Core& core_;
};

}  // namespace

Completion::Completion(Core& core, Call call, Wanted wanted)
    : core_(core),
      number_(++core.last_id),
      call_(std::move(call)),
      wanted_(std::move(wanted)),
      chat_(wanted_.endpoint == Endpoint::kChat),
      frames_(chat_, core.options.model, core.engine.fingerprint()) {}

// --- its beginning -------------------------------------------------------------------------------

// Equal prompts of equal seeds get equal answers: choice i of a prompt has the seed + i, whatever
// other prompts there are.
GenerateOptions Completion::options_of(const Choice& choice, int index_in_prompt) const {
  GenerateOptions options;
  options.predict = wanted_.reads_only() ? 1 : wanted_.max_tokens.value_or(-1);
  const int most = core_.options.max_output;
  if (most > 0 && (options.predict < 0 || options.predict > most)) options.predict = most;
  options.stop = wanted_.stop;
  options.stop_ids = wanted_.stop_ids;
  options.ignore_eos = wanted_.ignore_eos;
  options.min_tokens = wanted_.min_tokens;
  options.logit_bias = wanted_.logit_bias;
  options.sampling = wanted_.sampling;
  options.sampling.seed = wanted_.seed ? *wanted_.seed + static_cast<std::uint64_t>(index_in_prompt)
                                       : std::stoull(random_hex(64), nullptr, 16);
  const auto usual = wanted_.seed ? SpecSampling::kCoupled : SpecSampling::kRejection;
  options.spec_sampling = wanted_.spec_sampling.value_or(usual);
  options.draft_len = wanted_.draft_len;
  options.prediction = wanted_.prediction;
  options.log_probs = wanted_.log_probs;
  options.top_log_probs = wanted_.top_log_probs;
  options.prompt_log_probs = wanted_.log_probs && wanted_.echo;
  options.owner = call_.caller.owner;
  options.salt = call_.caller.salt + ":" + wanted_.cache_salt;
  if (!wanted_.cache_prompt) options.salt += ":" + frames_.id() + std::to_string(choice.prompt);
  options.to_folder = wanted_.cache_prompt;
  return options;
}

void Completion::start(std::vector<PromptTokens> prompts) {
  prompts_ = std::move(prompts);
  for (const PromptTokens& prompt : prompts_) prompt_tokens_ += prompt.ids.size();
  // Each choice holds the prediction.
  const std::size_t held = prompt_tokens_ + prompts_.size() * wanted_.n * wanted_.prediction.size();
  const int n = wanted_.n;
  for (std::size_t i = 0; i < prompts_.size() * n; ++i) {
    choices_.push_back(
        {.prompt = i / n, .log_probs = {core_.engine.tokenizer(), chat_, wanted_.top_log_probs}});
  }
  if (auto refusal = core_.full(held)) throw Refused(std::move(*refusal));
  core_.live.add(number_, shared_from_this(), held);
  try {
    if (core_.draining || core_.stopping) {  // it was not among those that drain() saw
      throw Refused(unavailable("the server ends, and takes no more requests"));
    }
    submit_all();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    submitting_ = false;
    const bool told = std::exchange(answered_, true);  // what was submitted has failed meanwhile
    cancel_choices();
    if (!told) {
      finished_ = true;
      status_ = 0;  // who called answers
    }
    settle();
    if (told) return;
    throw;
  }
  const std::weak_ptr<Completion> self = weak_from_this();
  call_.reply->on_room([self] {
    if (const auto at = self.lock()) at->room();
  });
  call_.reply->on_gone([self] {
    if (const auto at = self.lock()) at->gone();
  });
  const std::lock_guard lock(mutex_);
  submitting_ = false;
  if (finished_) {  // it has failed, or its client has gone, meanwhile
    cancel_choices();
  } else if (wanted_.stream) {
    try {
      open();
    } catch (...) {
      break_off();
    }
  }
  settle();
}

// NOTE: the engine's thread may call back before submit() returns, so this takes the mutex for what
// it keeps alone.
void Completion::submit_all() {
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const GenerateOptions options = options_of(choices_[i], static_cast<int>(i) % wanted_.n);
    {
      const std::lock_guard lock(mutex_);
      if (answered_) return;
      ++running_;
      if (wanted_.receipt) choices_[i].options = options;
    }
    core_.live.engine_begins();
    std::optional<Ticket> ticket;
    try {
      ticket = core_.engine.submit(
          prompts_[choices_[i].prompt].ids, options,
          {.on_prompt = [self = shared_from_this(),
                         i](const PromptProgress& read) { self->take_progress(i, read); },
           .on_prompt_log_probs = [self = shared_from_this(),
                                   i](const PromptLogProbs& read) { self->take_prompt(i, read); },
           .on_token = [self = shared_from_this(),
                        i](const TokenEvent& event) { return self->take(i, event); },
           .on_end =
               [self = shared_from_this(), i](Outcome outcome) {
                 const EndOfEngine ended(self->core_);
                 self->end(i, std::move(outcome));
               }});
    } catch (...) {
      core_.live.engine_ended();
      const std::lock_guard lock(mutex_);
      --running_;
      throw;
    }
    const std::lock_guard lock(mutex_);
    choices_[i].ticket = ticket;
  }
}

// What came meanwhile is held.
void Completion::open() {
  Headers headers = call_.headers;
  headers.emplace_back("Content-Type", "text/event-stream; charset=utf-8");
  headers.emplace_back("Cache-Control", "no-store");
  headers.emplace_back("X-Accel-Buffering", "no");
  call_.reply->begin_stream(200, std::move(headers));
  opened_ = true;
  std::deque<std::string> first;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const int index = static_cast<int>(i);
    if (chat_) first.push_back(frames_.role(index, wanted_.include_usage));
    const std::string& echo = prompts_[choices_[i].prompt].echo;
    if (!echo.empty() && !wanted_.log_probs) {  // which come when the prompt is read
      first.push_back(frames_.text(index, echo, nullptr, OrderedJson::object(), usage_of_chunk()));
    }
  }
  held_.insert(held_.begin(), std::make_move_iterator(first.begin()),
               std::make_move_iterator(first.end()));
  since_sent_.restart();
  since_held_.restart();
  flush();
}

// --- its answer ----------------------------------------------------------------------------------

void Completion::end(std::size_t index, Outcome outcome) {
  ++core_.beats;
  const std::lock_guard lock(mutex_);
  --running_;
  try {
    end_locked(index, std::move(outcome));
  } catch (...) {
    break_off();
  }
  settle();
}

namespace {

// An engine generates one token at least.
void drop_answer(GenerateResult& result) {
  result.text.clear();
  result.tokens.clear();
  result.log_probs.clear();
  result.top_log_probs.clear();
  result.stop_reason = StopReason::kLength;
}

}  // namespace

void Completion::end_locked(std::size_t index, Outcome outcome) {
  Choice& choice = choices_[index];
  choice.result = std::move(outcome.result);
  if (wanted_.reads_only() && choice.result.stop_reason != StopReason::kCancelled) {
    drop_answer(choice.result);
  }
  const bool cancelled = choice.result.stop_reason == StopReason::kCancelled;
  choice.finish = outcome.error ? "error"
                  : cancelled   ? "cancelled"
                                : finish_of(choice.result.stop_reason);
  core_.metrics.choice_ended({.result = &choice.result,
                              .finish = choice.finish,
                              .first_token_seconds = choice.first_token_seconds,
                              .seconds = call_.clock.seconds(),
                              .max_tokens = wanted_.max_tokens.value_or(-1)});
  if (answered_) return;
  if (outcome.error) {
    why_ = outcome.error->what();
    fail(refusal_of(*outcome.error, call_.id));
  } else if (cancelled) {
    fail(unavailable("the server ended this request"));
  } else {
    end_choice(choice, index);
  }
}

void Completion::end_choice(Choice& choice, std::size_t index) {
  const bool last =
      std::ranges::all_of(choices_, [](const Choice& one) { return !one.finish.empty(); });
  if (wanted_.stream) {
    const OrderedJson more = last && !wanted_.include_usage ? ends() : OrderedJson();
    push(frames_.finish(static_cast<int>(index), choice.finish, usage_of_chunk(),
                        more.is_null() ? nullptr : &more));
  }
  if (last) end_request();
}

// What the next turn begins with. Nobody waits for it, so requests that wait to be read go first,
// and whatever is thrown is nobody's: the next turn says what is wrong with it.
void Completion::read_ahead() noexcept {
  const bool is_turn = chat_ && wanted_.n == 1 && wanted_.cache_prompt && !wanted_.reads_only();
  if (!core_.options.read_ahead || !is_turn || core_.draining || core_.front->waiting() > 0) return;
  const auto read = [self = shared_from_this()] {
    Core& core = self->core_;
    if (core.front->waiting() > 0) return;
    try {
      std::unique_lock lock(self->mutex_);
      std::string answer = self->choices_.front().result.text;
      const GenerateOptions options = self->options_of(self->choices_.front(), 0);
      lock.unlock();
      core.engine.read_ahead(next_turn_tokens(core, self->wanted_, std::move(answer)), options.salt,
                             options.to_folder);
    } catch (...) {
    }
  };
  try {
    core_.front->post(read, prompt_tokens_ * sizeof(TokenId));
  } catch (...) {
  }
}

void Completion::end_request() {
  answered_ = true;
  if (wanted_.stream) {
    if (wanted_.include_usage) push(frames_.usage(to_json(usage()), ends()));
    push(std::string(kDone));
    return read_ahead();
  }
  // Not on the engine's thread, which others wait for, unless there is no other any more.
  const bool is_posted = core_.front->post_first([self = shared_from_this()] {
    const std::lock_guard lock(self->mutex_);
    if (self->finished_) return;
    try {
      self->answer_whole();
    } catch (...) {
      self->break_off();
    }
    self->settle();
    self->read_ahead();
  });
  if (!is_posted) answer_whole();
}

void Completion::answer_whole() {
  OrderedJson answers = OrderedJson::array();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    answers.push_back(frames_.choice(
        static_cast<int>(i), prompts_[choice.prompt].echo + choice.result.text, choice.finish,
        wanted_.log_probs ? choice.log_probs.take() : OrderedJson(nullptr), more_of(choice)));
  }
  answer(core_, call_, 200, frames_.whole(std::move(answers), to_json(usage()), ends()));
  finished_ = true;
}

// A prompt counts once, however many answers it gets.
Usage Completion::usage() const {
  Usage usage;
  for (const Choice& choice : choices_) usage.completion_tokens += choice.tokens;
  usage.prompt_tokens = static_cast<int>(prompt_tokens_);
  for (std::size_t i = 0; i < choices_.size(); i += wanted_.n) {
    usage.cached_tokens += std::max(choices_[i].read.cached, choices_[i].result.cached_tokens);
  }
  if (!wanted_.prediction.empty()) {
    usage.predicted.emplace();
    for (const Choice& choice : choices_) {
      const RoundStats& rounds = choice.result.speculation;  // once it has ended
      usage.predicted->accepted += choice.looked_up;
      usage.predicted->rejected += static_cast<int>(rounds.looked_up - rounds.looked_up_accepted);
    }
  }
  return usage;
}

OrderedJson Completion::ends() const {
  std::vector<const GenerateResult*> results;
  for (const Choice& choice : choices_) results.push_back(&choice.result);
  AnswerTimes times;
  for (const GenerateResult* result : results) times += AnswerTimes::of(*result);
  OrderedJson ends = {{"timings", to_json(times)},
                      {"metrics", {{"speculative_decoding", speculation_of(results)}}}};
  if (wanted_.receipt) ends["receipts"] = receipts();
  return ends;
}

OrderedJson Completion::receipts() const {
  OrderedJson all = OrderedJson::array();
  for (const Choice& choice : choices_) {
    all.push_back(
        to_json(make_receipt(core_.engine.fingerprint(), core_.engine, prompts_[choice.prompt].ids,
                             choice.options, choice.result)));
  }
  return all;
}

// --- its end -------------------------------------------------------------------------------------

void Completion::fail(const Refusal& refusal) {
  answered_ = true;
  status_ = refusal.status;
  if (opened_) {
    push(event_of(dump_json(refusal.json())));
  } else {
    answer(core_, call_, refusal);
    finished_ = true;
  }
  cancel_choices();
}

// Memory is short, most likely: a client at least sees an end.
void Completion::break_off() noexcept {
  log_caught("the end of a request");
  answered_ = true;
  held_.clear();
  if (!finished_) {
    status_ = 500;
    finished_ = true;
    try {
      if (opened_) {
        call_.reply->finish();
      } else {
        answer(core_, call_, {.status = 500, .message = "the server failed in this request"});
      }
    } catch (...) {
      log_caught("the end of a request");
    }
  }
  try {
    cancel_choices();
  } catch (...) {
    log_caught("the end of a request");
  }
}

void Completion::cancel_choices() {
  for (Choice& choice : choices_) {
    if (choice.ticket && choice.finish.empty()) choice.ticket->cancel();
  }
}

void Completion::give_up(const char* cause, Refusal refusal) {
  const auto self = shared_from_this();
  const std::lock_guard lock(mutex_);
  give_up_locked(cause, refusal);
}

void Completion::give_up_locked(const char* cause, const Refusal& refusal) {
  // What is answered and not open has its whole answer, and is about to get it.
  if (finished_ || (answered_ && !opened_)) return;
  if (!std::exchange(given_up_, true)) core_.metrics.cancelled(cause);
  if (answered_) {  // a reader that never took the end of it
    held_.clear();
    call_.reply->finish();
    finished_ = true;
  } else {
    why_ = refusal.message;
    fail(refusal);
  }
  settle();
}

void Completion::drain() {
  {
    const std::lock_guard lock(mutex_);
    if (begun_ || answered_) return;
  }
  give_up("drain", unavailable("the server ends, and has not begun with this request"));
}

void Completion::gone() {
  const auto self = shared_from_this();
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  if (!answered_) core_.metrics.cancelled("gone");
  answered_ = finished_ = true;
  status_ = kGone;
  held_.clear();
  cancel_choices();
  settle();
}

// --- the reader ----------------------------------------------------------------------------------

void Completion::push(std::string frame) {
  held_.push_back(std::move(frame));
  if (opened_) flush();
}

void Completion::flush() {
  if (held_.size() == 1) since_held_.restart();
  while (!held_.empty() && call_.reply->send(held_.front())) {
    held_.pop_front();
    since_sent_.restart();
    since_held_.restart();
  }
  set_paused(!held_.empty());
}

void Completion::set_paused(bool paused) {
  if (paused == paused_) return;
  paused_ = paused;
  for (Choice& choice : choices_) {
    if (!choice.ticket || !choice.finish.empty()) continue;
    paused ? choice.ticket->pause() : choice.ticket->resume();
  }
}

bool Completion::wants_engine() {
  const std::lock_guard lock(mutex_);
  return running_ > 0 && !paused_;
}

void Completion::room() {
  const auto self = shared_from_this();
  const std::lock_guard lock(mutex_);
  if (!opened_ || finished_) return;
  flush();
  settle();
}

void Completion::tick() {
  const auto self = shared_from_this();
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  if (!held_.empty() && opened_ && since_held_.seconds() > core_.options.stalled) {
    const Refusal refusal = {.status = 408, .message = "the answer was not read"};
    give_up_locked("stalled", refusal);
    if (!finished_) give_up_locked("stalled", refusal);  // nor would the error be
    return;
  }
  if (call_.clock.seconds() > core_.options.request_timeout) {
    return give_up_locked("timeout",
                          unavailable(fmt::format("a request may take {:.0f} s, and this one took "
                                                  "more; fewer tokens work",
                                                  core_.options.request_timeout)));
  }
  const double ping = wanted_.ping.value_or(core_.options.ping);
  const bool quiet = opened_ && held_.empty() && since_sent_.seconds() >= ping;
  if (quiet && call_.reply->send(kPing)) since_sent_.restart();
}

// When all is said and taken, the reply ends; when the engine has no part of it either, so does
// this.
void Completion::settle() {
  if (answered_ && !finished_ && opened_ && held_.empty()) {
    call_.reply->finish();
    finished_ = true;
  }
  if (!finished_ || running_ > 0 || submitting_ || status_ < 0) return;
  if (status_ != 0) {
    if (opened_ || status_ == kGone) core_.metrics.answered(call_.route->path, status_);
    core_.metrics.request_ended(wanted_.n);
    log_end();
  }
  status_ = -1;
  core_.live.remove(number_, prompt_tokens_);
}

void Completion::log_end() const {
  std::vector<const GenerateResult*> results;
  std::string_view finish;
  double first = 0;
  for (const Choice& choice : choices_) {
    results.push_back(&choice.result);
    finish = choice.finish;
    if (choice.tokens > 0 && first == 0) first = choice.first_token_seconds;
  }
  const Usage used = usage();
  const double seconds = call_.clock.seconds();
  const int after_first = used.completion_tokens - static_cast<int>(choices_.size());
  RoundStats speculation;
  for (const GenerateResult* result : results) speculation += result->speculation;
  std::string measured = fmt::format(
      "finish {} prompt {} cached {} generated {} ttft_ms {:.1f} tpot_ms {:.2f} ms {:.1f} drafted "
      "{} accepted {}",
      finish.empty() ? "none" : finish, used.prompt_tokens, used.cached_tokens,
      used.completion_tokens, 1e3 * first,
      after_first > 0 ? 1e3 * (seconds - first) / after_first : 0.0, 1e3 * seconds,
      speculation.drafted, speculation.accepted);
  if (choices_.size() > 1) measured += fmt::format(" choices {}", choices_.size());
  log_request_end(core_, call_, status_, measured, why_);
}

}  // namespace quantspec::api
