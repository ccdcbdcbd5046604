// What a request that is not done is answered: OpenAI's error, and its status.
#pragma once

#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "api/api.h"
#include "base/error.h"

namespace quantspec::api {

struct Refusal {
  int status = 400;
  std::string message;  // one line
  std::string param = {};
  std::string code = {};  // OpenAI's, where it has a word for it
  OrderedJson more = {};  // members beside those, or null
  Headers headers = {};

  OrderedJson json() const;  // {"error": {...}}
};

// What Refusal is thrown as inside this room, where no kind of Error says it.
class Refused : public std::exception {
 public:
  explicit Refused(Refusal refusal) : refusal_(std::move(refusal)) {}
  const Refusal& refusal() const { return refusal_; }
  const char* what() const noexcept override { return refusal_.message.c_str(); }

 private:
  Refusal refusal_;
};

std::string_view type_of(int status);  // "invalid_request_error"

// An error of the engine, or of a body. Of what is our fault the caller is told the request's id
// alone; the rest is for the log.
Refusal refusal_of(const Error& error, std::string_view request_id);

// What a request's JSON calls what the engine calls by a Field.
std::string_view json_name(Field field);

Refusal context_exceeded(std::string message, int prompt_tokens, int context);
// 429: other servers, or this one later, may take it.
Refusal too_many(std::string message, int retry_after);
Refusal unavailable(std::string message);  // 503

}  // namespace quantspec::api
