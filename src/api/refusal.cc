#include "api/refusal.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/shown.h"
#include "engine/fields.h"

namespace quantspec::api {

namespace {

constexpr std::pair<Field, std::string_view> kNames[] = {
    {field::kTemperature, "temperature"},
    {field::kTopK, "top_k"},
    {field::kTopP, "top_p"},
    {field::kMinP, "min_p"},
    {field::kRepeatPenalty, "repetition_penalty"},
    {field::kRepeatLastN, "repeat_last_n"},
    {field::kPresencePenalty, "presence_penalty"},
    {field::kFrequencyPenalty, "frequency_penalty"},
    {field::kSeed, "seed"},
    {field::kLogitBias, "logit_bias"},
    {field::kMinTokens, "min_tokens"},
    {field::kPredict, "max_tokens"},
    {field::kDraftLen, "draft_len"},
};

}  // namespace

std::string_view json_name(Field field) {
  const auto* row = std::ranges::find(kNames, field, &std::pair<Field, std::string_view>::first);
  return row != std::end(kNames) ? row->second : field.plain_name;
}

std::string_view type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 405:
      return "method_not_allowed";
    case 429:
      return "rate_limit_error";
    case 500:
      return "server_error";
    case 501:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    default:
      return "invalid_request_error";
  }
}

// llama.cpp's clients read the status from `code`, OpenAI's a word: the word, where there is one.
OrderedJson Refusal::json() const {
  OrderedJson error = {{"message", message}, {"type", type_of(status)}};
  error["param"] = param.empty() ? OrderedJson(nullptr) : OrderedJson(param);
  error["code"] = code.empty() ? OrderedJson(status) : OrderedJson(code);
  if (more.is_object()) error.update(more);
  return {{"error", std::move(error)}};
}

Refusal refusal_of(const Error& error, std::string_view request_id) {
  Refusal refusal;
  switch (error.kind()) {
    case ErrorKind::kInvalidRequest:
      refusal.message = one_line(error.what(json_name));
      if (const auto field = error.field()) refusal.param = json_name(*field);
      return refusal;
    case ErrorKind::kOutOfMemory:
      return unavailable(one_line(error.what(json_name)));
    case ErrorKind::kUnsupportedModel:
      refusal.status = 501;
      refusal.message = one_line(error.what(json_name));
      return refusal;
    case ErrorKind::kCorruptFile:
    case ErrorKind::kDevice:
    case ErrorKind::kInternal:
      break;
  }
  refusal.status = 500;
  refusal.message = fmt::format(
      "the engine failed in this request; the server's log says why, at request {}", request_id);
  return refusal;
}

Refusal context_exceeded(std::string message, int prompt_tokens, int context) {
  return {.status = 400,
          .message = std::move(message),
          .code = "context_length_exceeded",
          .more = {{"n_prompt_tokens", prompt_tokens}, {"n_ctx", context}}};
}

Refusal too_many(std::string message, int retry_after) {
  return {.status = 429,
          .message = std::move(message),
          .headers = {{"Retry-After", std::to_string(retry_after)}}};
}

Refusal unavailable(std::string message) { return {.status = 503, .message = std::move(message)}; }

}  // namespace quantspec::api
