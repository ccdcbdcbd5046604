// What is wrong with the head of a request, beside what the parser refuses: where a server and what
// stands before it could disagree on where a request ends, the request is refused. Thread-safe:
// pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "net/message.h"

namespace quantspec::net {

struct Refusal {
  int status;
  std::string text;  // what was wrong, and what would work
};

struct Head {
  int version;  // 10 or 11
  std::string_view method;
  std::string_view target;
  const Headers& headers;
};

// The bytes of a head, of which more may come: `text` ends at most where its blank line does. Of
// what comes before the first `checked` bytes has been looked at. Line ends are CR LF, no line goes
// on in the next one, and there is no zero.
std::optional<Refusal> check_head_bytes(std::string_view text, std::size_t checked);

// A whole head. `allowed_hosts`: as in Options; empty: any.
std::optional<Refusal> check_head(const Head& head, const std::vector<std::string>& allowed_hosts);

}  // namespace quantspec::net
