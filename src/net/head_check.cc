#include "net/head_check.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace quantspec::net {

namespace {

bool is_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<std::string_view> values_of(const Headers& headers, std::string_view name) {
  std::vector<std::string_view> values;
  for (const Header& header : headers) {
    if (equal_ignoring_case(header.name, name)) values.push_back(header.value);
  }
  return values;
}

// Where the name of a host ends and ":port" begins. The colons of "[::1]" are no such end.
std::size_t end_of_name(std::string_view host) {
  const std::size_t bracket = host.starts_with('[') ? host.find(']') : 0;
  if (bracket == host.npos) return host.npos;
  return std::min(host.find(':', bracket), host.size());
}

bool is_host(std::string_view host) {
  const std::size_t end = end_of_name(host);
  if (end == host.npos || end == 0) return false;
  const auto is_allowed = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("-._~[]:%").find(char(c)) != std::string_view::npos;
  };
  const std::string_view name = host.substr(0, end),
                         port = host.substr(std::min(end + 1, host.size()));
  return std::all_of(name.begin(), name.end(), is_allowed) && (port.empty() || is_digits(port));
}

std::optional<Refusal> check_host(const Head& head, const std::vector<std::string>& allowed_hosts) {
  const auto hosts = values_of(head.headers, "Host");
  if (hosts.size() > 1 || (hosts.empty() && head.version >= 11)) {
    return Refusal{400, "a request has exactly one Host header"};
  }
  if (!hosts.empty() && !is_host(hosts[0])) return Refusal{400, "the Host header names no host"};
  if (allowed_hosts.empty()) return std::nullopt;
  const std::string_view name =
      hosts.empty() ? std::string_view() : hosts[0].substr(0, end_of_name(hosts[0]));
  for (const std::string& allowed : allowed_hosts) {
    if (allowed == "*" || equal_ignoring_case(name, allowed)) return std::nullopt;
  }
  return Refusal{403,
                 "this server is not reached by that Host; localhost works, or a name it is told"};
}

std::optional<Refusal> check_length(const Head& head) {
  const auto lengths = values_of(head.headers, "Content-Length");
  const auto codings = values_of(head.headers, "Transfer-Encoding");
  if (lengths.size() > 1 || (lengths.size() == 1 && !is_digits(lengths[0]))) {
    return Refusal{400, "Content-Length is one number"};
  }
  if (codings.empty()) return std::nullopt;
  if (!lengths.empty()) {
    return Refusal{400, "a request has Content-Length or Transfer-Encoding, not both"};
  }
  if (codings.size() > 1 || !equal_ignoring_case(codings[0], "chunked")) {
    return Refusal{400, "the only Transfer-Encoding that works is chunked"};
  }
  if (head.version < 11) return Refusal{400, "HTTP/1.0 has no Transfer-Encoding"};
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> check_head_bytes(std::string_view text, std::size_t checked) {
  for (std::size_t i = checked; i < text.size(); ++i) {
    const char c = text[i], before = i == 0 ? '\0' : text[i - 1];
    if (c == '\0') return Refusal{400, "a head has no zero byte"};
    if ((c == '\n') != (before == '\r')) return Refusal{400, "lines of a head end with CR LF"};
    if (before == '\n' && (c == ' ' || c == '\t')) {
      return Refusal{400, "a header is one line; folded ones are obsolete"};
    }
  }
  return std::nullopt;
}

std::optional<Refusal> check_head(const Head& head, const std::vector<std::string>& allowed_hosts) {
  constexpr std::array<std::string_view, 7> kMethods = {"GET",    "HEAD",    "POST", "PUT",
                                                        "DELETE", "OPTIONS", "PATCH"};
  if (std::find(kMethods.begin(), kMethods.end(), head.method) == kMethods.end()) {
    return Refusal{501, "this server does not know that method"};
  }
  if (auto refusal = check_length(head)) return refusal;
  if (auto refusal = check_host(head, allowed_hosts)) return refusal;
  if (!head.target.starts_with('/')) return Refusal{400, "the target of a request is a path"};
  // NOTE: Java's client asks for h2c in its first request, and is content with HTTP/1.1.
  for (const std::string_view upgrade : values_of(head.headers, "Upgrade")) {
    if (!equal_ignoring_case(upgrade, "h2c")) {
      return Refusal{501, "this server speaks HTTP/1.1 only, and upgrades to nothing"};
    }
  }
  for (const std::string_view expected : values_of(head.headers, "Expect")) {
    if (!equal_ignoring_case(expected, "100-continue")) {
      return Refusal{417, "the only Expect that works is 100-continue"};
    }
  }
  return std::nullopt;
}

}  // namespace quantspec::net
