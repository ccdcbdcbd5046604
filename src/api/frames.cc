#include "api/frames.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "api/core.h"
#include "api/head.h"
#include "base/json.h"
#include "base/utf8.h"

namespace quantspec::api {

namespace {

OrderedJson list_of(OrderedJson one) {
  OrderedJson list = OrderedJson::array();
  list.push_back(std::move(one));
  return list;
}

double per(double count, double amount) { return amount > 0 ? count / amount : 0.0; }

}  // namespace

std::string event_of(std::string_view json) { return fmt::format("data: {}\n\n", json); }

OrderedJson to_json(const Usage& usage) {
  OrderedJson json = {{"prompt_tokens", usage.prompt_tokens},
                      {"completion_tokens", usage.completion_tokens},
                      {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
                      {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (usage.predicted) {
    json["completion_tokens_details"] = {{"accepted_prediction_tokens", usage.predicted->accepted},
                                         {"rejected_prediction_tokens", usage.predicted->rejected}};
  }
  return json;
}

AnswerTimes AnswerTimes::of(const GenerateResult& result) {
  return {.prompt = result.prompt_tokens - result.cached_tokens,
          .cached = result.cached_tokens,
          .predicted = std::ssize(result.tokens),
          .drafted = result.speculation.drafted,
          .accepted = result.speculation.accepted,
          .prompt_ms = result.timings.prefill_ms,
          .predicted_ms = result.timings.decode_ms};
}

AnswerTimes& AnswerTimes::operator+=(const AnswerTimes& other) {
  prompt += other.prompt;
  cached += other.cached;
  predicted += other.predicted;
  drafted += other.drafted;
  accepted += other.accepted;
  prompt_ms = std::max(prompt_ms, other.prompt_ms);
  predicted_ms = std::max(predicted_ms, other.predicted_ms);
  return *this;
}

OrderedJson to_json(const AnswerTimes& times) {
  const auto n = static_cast<double>(times.prompt), m = static_cast<double>(times.predicted);
  return {{"cache_n", times.cached},
          {"prompt_n", times.prompt},
          {"prompt_ms", times.prompt_ms},
          {"prompt_per_token_ms", per(times.prompt_ms, n)},
          {"prompt_per_second", per(1e3 * n, times.prompt_ms)},
          {"predicted_n", times.predicted},
          {"predicted_ms", times.predicted_ms},
          {"predicted_per_token_ms", per(times.predicted_ms, m)},
          {"predicted_per_second", per(1e3 * m, times.predicted_ms)},
          {"draft_n", times.drafted},
          {"draft_n_accepted", times.accepted}};
}

OrderedJson speculation_of(const std::vector<const GenerateResult*>& results) {
  RoundStats all;
  for (const GenerateResult* result : results) all += result->speculation;
  return {
      {"rounds", all.rounds},
      {"drafted", all.drafted},
      {"accepted", all.accepted},
      {"looked_up", all.looked_up},
      {"looked_up_accepted", all.looked_up_accepted},
      {"acceptance_rate", per(static_cast<double>(all.accepted), static_cast<double>(all.drafted))},
      {"accepted_per_position", all.accepted_per_position()}};
}

std::string_view finish_of(StopReason reason) {
  const bool stopped = reason == StopReason::kEos || reason == StopReason::kStop;
  return stopped ? "stop" : "length";
}

namespace {

// JSON has no infinity: what OpenAI says of a token that cannot be.
float shown(float log_prob) { return std::max(log_prob, -9999.0f); }

std::ptrdiff_t characters_of(std::string_view text) {
  return std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

OrderedJson bytes_of(std::string_view text) {
  OrderedJson numbers = OrderedJson::array();
  for (const char byte : text) numbers.push_back(static_cast<unsigned char>(byte));
  return numbers;
}

}  // namespace

void ShownLogProbs::add(TokenId id, std::optional<float> log_prob,
                        std::span<const TokenLogProb> top) {
  const OrderedJson number = log_prob ? OrderedJson(shown(*log_prob)) : OrderedJson(nullptr);
  const std::string bytes = tokenizer_.token_bytes(id);
  std::string text = repair_utf8(bytes);
  if (chat_) {
    OrderedJson likeliest = OrderedJson::array();
    for (const TokenLogProb& one : top) {
      const std::string its = tokenizer_.token_bytes(one.id);
      likeliest.push_back({{"token", repair_utf8(its)},
                           {"logprob", shown(one.log_prob)},
                           {"bytes", bytes_of(its)}});
    }
    content_.push_back({{"token", std::move(text)},
                        {"logprob", number},
                        {"bytes", bytes_of(bytes)},
                        {"top_logprobs", std::move(likeliest)}});
    return;
  }
  // By text, of which several tokens may have the same (bytes that are no characters): the
  // likeliest of them. The one that is there is among them in any case.
  OrderedJson likeliest = top.empty() ? OrderedJson(nullptr) : OrderedJson::object();
  for (const TokenLogProb& one : top) {
    likeliest.emplace(repair_utf8(tokenizer_.token_bytes(one.id)), shown(one.log_prob));
  }
  if (!top.empty()) likeliest.emplace(text, shown(*log_prob));
  tops_.push_back(std::move(likeliest));
  log_probs_.push_back(number);
  tokens_.push_back(std::move(text));
  offsets_.push_back(std::max<std::ptrdiff_t>(characters_, 0));
  characters_ += characters_of(bytes);
}

void ShownLogProbs::begin(std::span<const TokenId> tokens, std::string_view text) {
  characters_ = characters_of(text);
  for (const TokenId id : tokens) characters_ -= characters_of(tokenizer_.token_bytes(id));
}

// NOTE: JSON is made of copies of vectors, whether they are moved or not.
OrderedJson ShownLogProbs::take() {
  if (chat_) {
    return {{"content", std::exchange(content_, OrderedJson::array())}, {"refusal", nullptr}};
  }
  OrderedJson top = std::exchange(tops_, OrderedJson::array());
  return {{"tokens", std::exchange(tokens_, {})},
          {"token_logprobs", std::exchange(log_probs_, OrderedJson::array())},
          {"top_logprobs", top_ > 0 ? std::move(top) : OrderedJson(nullptr)},
          {"text_offset", std::exchange(offsets_, {})}};
}

Frames::Frames(bool chat, const std::string& model, const std::string& fingerprint)
    : chat_(chat),
      id_((chat ? "chatcmpl-" : "cmpl-") + random_hex(128)),
      created_(seconds_of_epoch()),
      model_(model),
      fingerprint_(fingerprint) {
  const OrderedJson head = {{"id", id_},
                            {"object", chat ? "chat.completion.chunk" : "text_completion"},
                            {"created", created_},
                            {"model", model_},
                            {"system_fingerprint", fingerprint_}};
  head_ = dump_json(head);
  head_.back() = ',';
}

std::string Frames::chunk(const OrderedJson& choices, const std::optional<OrderedJson>& usage,
                          const OrderedJson* ends) const {
  std::string text = head_ + "\"choices\":" + dump_json(choices);
  if (usage) text += ",\"usage\":" + dump_json(*usage);
  if (ends != nullptr) {
    for (const auto& [name, value] : ends->items()) {
      text += fmt::format(",\"{}\":{}", name, dump_json(value));
    }
  }
  return event_of(text + "}");
}

std::string Frames::role(int index, bool has_usage) const {
  const OrderedJson delta = {{"role", "assistant"}, {"content", nullptr}};
  const OrderedJson choice = {
      {"index", index}, {"delta", delta}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  return chunk(list_of(choice), has_usage ? std::optional<OrderedJson>(nullptr) : std::nullopt,
               nullptr);
}

std::string Frames::text(int index, std::string_view text, const OrderedJson& log_probs,
                         const OrderedJson& more, const std::optional<OrderedJson>& usage,
                         const OrderedJson* ends) const {
  OrderedJson choice = {{"index", index}};
  if (chat_) {
    choice["delta"] = {{"content", text}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = log_probs;
  choice["finish_reason"] = nullptr;
  choice.update(more);
  return chunk(list_of(std::move(choice)), usage, ends);
}

std::string Frames::finish(int index, std::string_view reason,
                           const std::optional<OrderedJson>& usage, const OrderedJson* ends) const {
  OrderedJson choice = {{"index", index}};
  if (chat_) {
    choice["delta"] = OrderedJson::object();
  } else {
    choice["text"] = "";
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = reason;
  return chunk(list_of(std::move(choice)), usage, ends);
}

std::string Frames::usage(const OrderedJson& usage, const OrderedJson& ends) const {
  return chunk(OrderedJson::array(), usage, &ends);
}

OrderedJson Frames::choice(int index, std::string_view text, std::string_view reason,
                           OrderedJson log_probs, const OrderedJson& more) const {
  OrderedJson choice = {{"index", index}};
  if (chat_) {
    choice["message"] = {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = std::move(log_probs);
  choice["finish_reason"] = reason;
  choice.update(more);
  return choice;
}

OrderedJson Frames::whole(OrderedJson choices, OrderedJson usage, const OrderedJson& ends) const {
  OrderedJson answer = {{"id", id_},
                        {"object", chat_ ? "chat.completion" : "text_completion"},
                        {"created", created_},
                        {"model", model_},
                        {"system_fingerprint", fingerprint_},
                        {"choices", std::move(choices)},
                        {"usage", std::move(usage)}};
  for (const auto& [name, value] : ends.items()) answer[name] = value;
  return answer;
}

}  // namespace quantspec::api
