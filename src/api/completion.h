// A request of generation, from its admission to its answer: one request of HTTP, as many of the
// engine's as it has choices. It has the answer's state behind one mutex, since three threads meet
// in it: the one that starts it, the engine's, and those on which the Reply calls back.
//
// A reader that does not keep up: what send() did not take is held here, and all choices are paused
// until there is room. So at most what a round gave each of them is held.
//
// Private to api/.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "api/core.h"
#include "api/frames.h"
#include "api/wanted.h"
#include "engine/request_loop.h"

namespace quantspec::api {

// A prompt of the request, as the engine takes it.
struct PromptTokens {
  std::vector<TokenId> ids;
  std::string echo = {};  // its text, where that is a part of the answer
};

class Completion : public std::enable_shared_from_this<Completion> {
 public:
  Completion(Core& core, Call call, Wanted wanted);
  // Submits all choices; then the answer begins. Throws what Engine::submit() does, and Refused:
  // nothing was answered then.
  void start(std::vector<PromptTokens> prompts);

  bool wants_engine();  // it waits for tokens, and its reader does not keep it waiting
  void room();          // the reader takes more
  void gone();          // the client has gone
  void tick();          // about every second
  void drain();         // ends it, unless something was computed
  void give_up(const char* cause, Refusal refusal);  // ends it; cause: of Metrics::cancelled()

 private:
  struct Choice {
    std::size_t prompt = 0;  // of prompts_
    std::optional<Ticket> ticket = {};
    ShownLogProbs log_probs;
    PromptProgress read = {};
    int drafted = 0, accepted = 0;  // so far, for timings_per_token
    int tokens = 0;
    int looked_up = 0;  // of those
    double first_token_seconds = 0;
    double last_token_seconds = 0;
    // What is said of tokens beside their text and was not told yet.
    std::vector<TokenId> ids = {};
    OrderedJson drafts = OrderedJson::array();
    std::string_view finish = {};  // once it has ended
    GenerateResult result = {};
    GenerateOptions options = {};  // by which it was written, for a receipt
  };

  GenerateOptions options_of(const Choice& choice, int index_in_prompt) const;
  void submit_all();
  void open();  // the answer of a stream begins
  void take_progress(std::size_t index, const PromptProgress& read);
  void take_prompt(std::size_t index, const PromptLogProbs& read);
  bool take(std::size_t index, const TokenEvent& event);
  void end(std::size_t index, Outcome outcome);
  void end_locked(std::size_t index, Outcome outcome);
  OrderedJson more_of(Choice& choice) const;
  void tell(Choice& choice, std::size_t index, const TokenEvent& event);
  void end_choice(Choice& choice, std::size_t index);
  void end_request();
  void answer_whole();
  void read_ahead() noexcept;
  void give_up_locked(const char* cause, const Refusal& refusal);
  void break_off() noexcept;  // what ends it has thrown
  void fail(const Refusal& refusal);
  void push(std::string frame);
  void flush();
  void set_paused(bool paused);
  void cancel_choices();
  void settle();
  Usage usage() const;
  OrderedJson ends() const;
  OrderedJson receipts() const;
  std::optional<OrderedJson> usage_of_chunk() const;
  AnswerTimes times_so_far() const;
  void log_end() const;

  Core& core_;
  const std::uint64_t number_;
  const Call call_;
  const Wanted wanted_;
  const bool chat_;
  const Frames frames_;
  std::vector<PromptTokens> prompts_;
  std::size_t prompt_tokens_ = 0;

  std::mutex mutex_;
  std::vector<Choice> choices_;
  std::size_t running_ = 0;  // choices that have not ended
  bool submitting_ = true;
  bool begun_ = false;     // something was computed
  bool opened_ = false;    // the stream's head was sent
  bool answered_ = false;  // nothing more is to be said
  bool finished_ = false;  // and all of it was taken
  bool paused_ = false;
  bool given_up_ = false;
  int status_ = 200;
  std::string why_ = {};          // of an error, for the log
  std::deque<std::string> held_;  // what the reader did not take
  Stopwatch since_sent_;
  Stopwatch since_held_;
};

}  // namespace quantspec::api
