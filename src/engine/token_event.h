// What a request's tokens are told as, and why its text ended.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "base/token.h"
#include "sampler/sampling_params.h"

namespace quantspec {

enum class StopReason : std::uint8_t {
  kEos,        // the model's end of text
  kStop,       // a stop string, or a token that stops
  kLength,     // as many tokens as were asked for
  kContext,    // the context is full
  kCancelled,  // by the caller
};
std::string_view name_of(StopReason reason);

// One generated token. `text` is what can be shown now: it may be empty (half a character, or what
// could be the beginning of a stop string) and belong to earlier tokens.
struct TokenEvent {
  TokenId id = 0;
  std::string_view text = {};  // for as long as the call lasts
  bool drafted = false;        // proposed by the draft and accepted; else the target's own
  bool looked_up = false;      // by finding it in the text (Plan::lookup)
  // Of the target's own: what was drafted for its place and behind it; for as long as the call
  // lasts.
  std::span<const TokenId> rejected = {};
  // By the target, before temperature, penalties and truncation; where it is asked for.
  std::optional<float> log_prob = {};
  std::span<const TokenLogProb> top_log_probs =
      {};  // of the likeliest; for as long as the call lasts, and not of sessions
  bool more_text =
      false;  // no further token: text of the last one, which was held back until the end
};
// Return false to cancel.
using TokenCallback = std::function<bool(const TokenEvent&)>;

}  // namespace quantspec
