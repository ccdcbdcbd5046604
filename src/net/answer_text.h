// Answers as bytes. Thread-safe: pure functions.
#pragma once

#include <ctime>
#include <string>
#include <string_view>

#include "net/message.h"

namespace quantspec::net {

// Names are tokens and none that the server writes itself; values cannot end a line.
bool are_sendable(const Headers& headers);

struct Framing {
  int version = 11;      // of the request
  bool closes = false;   // the connection is closed afterwards
  bool is_head = false;  // the method was HEAD: no body
};

// Head and body.
std::string answer_text(const Answer& answer, const Framing& framing, std::time_t now);
// The head of a stream of events; `headers` beside those that it needs.
std::string stream_head(const Headers& headers, const Framing& framing, std::time_t now);
// Bytes of a stream as a chunk. REQUIRES: not empty.
std::string chunk(std::string_view bytes);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";
inline constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

std::string_view reason(int status);
std::string date(std::time_t now);  // "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110, section 5.6.7)

}  // namespace quantspec::net
