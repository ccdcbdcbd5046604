// A submitted request on its way out of the loop: its text and what is told of it. Used by the
// loop's thread alone. Private to engine/.
#pragma once

#include <optional>

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/request_loop.h"
#include "engine/text_stream.h"

namespace quantspec {

class Engine::Generation {
 public:
  // most: tokens that the context has room for.
  Generation(const Engine& engine, std::size_t prompt_tokens, int most,
             const GenerateOptions& options, Listener listener);

  // What the loop calls back.
  void read(const PromptProgress& progress) const;
  bool take(const Step& step);
  void end(const Request::Ended& ended);

 private:
  void report(const Request::Ended& ended, GenerateResult& result);

  const Engine& engine_;
  int prompt_tokens_;
  ProgressCallback progress_;
  Listener listener_;
  TextStream stream_;
  std::vector<float> log_probs_;
  std::vector<TokenLogProb> top_log_probs_;
  PromptLogProbs prompt_log_probs_;
  StopReason stop_reason_;
  bool stopped_ = false;  // by one of its tokens
  Stopwatch clock_;
  double first_token_ms_ = 0;
};

}  // namespace quantspec
