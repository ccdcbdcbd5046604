// Answers of generation as OpenAI has them: objects, and the chunks of streams. Private to api/.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/api.h"
#include "base/token.h"
#include "engine/engine.h"

namespace quantspec::api {

inline constexpr std::string_view kDone = "data: [DONE]\n\n";
inline constexpr std::string_view kPing = ":\n\n";

std::string event_of(std::string_view json);  // "data: ...\n\n"

struct Usage {
  int prompt_tokens = 0;
  int cached_tokens = 0;
  int completion_tokens = 0;
  // Of looked-up drafts, where the request has a prediction.
  struct Predicted {
    int accepted = 0;
    int rejected = 0;
  };
  std::optional<Predicted> predicted = {};
};
OrderedJson to_json(const Usage& usage);

// llama.cpp's times of an answer, or of several that are made at once.
struct AnswerTimes {
  std::int64_t prompt = 0, cached = 0, predicted = 0, drafted = 0, accepted = 0;  // tokens
  double prompt_ms = 0, predicted_ms = 0;

  static AnswerTimes of(const GenerateResult& result);
  AnswerTimes& operator+=(const AnswerTimes& other);
};
OrderedJson to_json(const AnswerTimes& times);
// What speculation did for all answers to a request.
OrderedJson speculation_of(const std::vector<const GenerateResult*>& results);

// "stop" or "length".
std::string_view finish_of(StopReason reason);

// Log-probabilities of an answer's tokens, or of one of them.
class ShownLogProbs {
 public:
  // top: so many of the likeliest at a token's place come with it.
  ShownLogProbs(const Tokenizer& tokenizer, bool chat, int top)
      : tokenizer_(tokenizer), chat_(chat), top_(top) {}
  // Of a token; of a prompt's first there is none.
  void add(TokenId id, std::optional<float> log_prob, std::span<const TokenLogProb> top);
  // Before the first: these tokens come first, as this text, which may lack what a tokenizer puts
  // before a text.
  void begin(std::span<const TokenId> tokens, std::string_view text);
  OrderedJson take();

 private:
  const Tokenizer& tokenizer_;
  bool chat_;
  int top_;
  OrderedJson content_ = OrderedJson::array();  // of a chat
  std::vector<std::string> tokens_;
  OrderedJson log_probs_ = OrderedJson::array();
  OrderedJson tops_ = OrderedJson::array();  // of each, by text
  std::vector<std::size_t> offsets_;         // of their texts, in characters
  std::ptrdiff_t characters_ = 0;  // where the next token's text begins; below 0: before the text
};

class Frames {
 public:
  Frames(bool chat, const std::string& model, const std::string& fingerprint);

  const std::string& id() const { return id_; }

  // --- of a stream: events that are ready to send ---
  // usage: null is written as null, which a stream with usage has in all but one; absent: none.
  std::string role(int index, bool has_usage) const;
  // more: members that a choice has beside OpenAI's; ends: that the event has, or null.
  std::string text(int index, std::string_view text, const OrderedJson& log_probs,
                   const OrderedJson& more, const std::optional<OrderedJson>& usage,
                   const OrderedJson* ends = nullptr) const;
  std::string finish(int index, std::string_view reason, const std::optional<OrderedJson>& usage,
                     const OrderedJson* ends) const;
  std::string usage(const OrderedJson& usage, const OrderedJson& ends) const;

  // --- of an answer that is whole ---
  OrderedJson choice(int index, std::string_view text, std::string_view reason,
                     OrderedJson log_probs, const OrderedJson& more) const;
  // ends: members that the answer, or the last event of a stream, has beside OpenAI's.
  OrderedJson whole(OrderedJson choices, OrderedJson usage, const OrderedJson& ends) const;

 private:
  std::string chunk(const OrderedJson& choices, const std::optional<OrderedJson>& usage,
                    const OrderedJson* ends) const;

  bool chat_;
  std::string id_;
  std::int64_t created_;
  std::string model_;
  std::string fingerprint_;
  std::string head_;  // of every chunk, up to its choices
};

}  // namespace quantspec::api
