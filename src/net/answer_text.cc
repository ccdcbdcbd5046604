#include "net/answer_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace quantspec::net {

namespace {

bool is_token(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("!#$%&'*+-.^_`|~").find(char(c)) != std::string_view::npos;
  });
}

bool is_value(std::string_view value) {
  return std::all_of(value.begin(), value.end(),
                     [](unsigned char c) { return (c >= 0x20 && c != 0x7F) || c == '\t'; });
}

bool is_framing(std::string_view name) {
  constexpr std::array<std::string_view, 7> kFraming = {
      "Content-Length", "Transfer-Encoding", "Connection", "Date",
      "Keep-Alive",     "Trailer",           "Upgrade"};
  return std::any_of(kFraming.begin(), kFraming.end(),
                     [&](std::string_view framing) { return equal_ignoring_case(name, framing); });
}

// Up to the blank line, which is left out.
std::string head(int status, const Headers& headers, const Framing& framing, std::time_t now) {
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\n", status, reason(status), date(now));
  for (const Header& header : headers) {
    text += fmt::format("{}: {}\r\n", header.name, header.value);
  }
  if (framing.closes) text += "Connection: close\r\n";
  return text;
}

}  // namespace

bool are_sendable(const Headers& headers) {
  return std::all_of(headers.begin(), headers.end(), [](const Header& header) {
    return is_token(header.name) && is_value(header.value) && !is_framing(header.name);
  });
}

std::string answer_text(const Answer& answer, const Framing& framing, std::time_t now) {
  std::string text = head(answer.status, answer.headers, framing, now);
  const bool may_have_body = answer.status != 204 && answer.status != 304;
  if (may_have_body) {
    text += fmt::format("Content-Length: {}\r\n", answer.body.size());
  }
  text += "\r\n";
  if (may_have_body && !framing.is_head) text += answer.body;
  return text;
}

std::string stream_head(const Headers& headers, const Framing& framing, std::time_t now) {
  static constexpr std::pair<std::string_view, std::string_view> kUsual[] = {
      {"Content-Type", "text/event-stream"},
      {"Cache-Control", "no-store"},
      {"X-Accel-Buffering", "no"}};
  std::string text = head(200, headers, framing, now);
  for (const auto& [name, value] : kUsual) {
    const bool is_given = std::any_of(
        headers.begin(), headers.end(),
        [name = name](const Header& header) { return equal_ignoring_case(header.name, name); });
    if (!is_given) text += fmt::format("{}: {}\r\n", name, value);
  }
  if (framing.version >= 11)
    text += "Transfer-Encoding: chunked\r\n";  // else its end is the connection's
  return text + "\r\n";
}

std::string chunk(std::string_view bytes) {
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

std::string_view reason(int status) {
  static constexpr std::pair<int, std::string_view> kReasons[] = {
      {200, "OK"},
      {201, "Created"},
      {202, "Accepted"},
      {204, "No Content"},
      {304, "Not Modified"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {408, "Request Timeout"},
      {409, "Conflict"},
      {413, "Content Too Large"},
      {415, "Unsupported Media Type"},
      {417, "Expectation Failed"},
      {422, "Unprocessable Content"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {503, "Service Unavailable"},
      {505, "HTTP Version Not Supported"},
  };
  for (const auto& [known, text] : kReasons) {
    if (known == status) return text;
  }
  return "Other";
}

// NOTE: strftime() would write the names of another language where the process speaks one.
std::string date(std::time_t now) {
  constexpr std::array kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                  "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm time{};
  gmtime_r(&now, &time);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[time.tm_wday], time.tm_mday,
                     kMonths[time.tm_mon], time.tm_year + 1900, time.tm_hour, time.tm_min,
                     time.tm_sec);
}

}  // namespace quantspec::net
