// What a client sends and what it gets, as plain values.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quantspec::net {

struct Header {
  std::string name;
  std::string value;

  bool operator==(const Header&) const = default;
};
using Headers = std::vector<Header>;

struct Request {
  std::string method;  // as it was sent: "GET"
  std::string path;    // decoded: valid UTF-8 without control characters, begins with '/'
  std::vector<std::pair<std::string, std::string>> query;  // decoded, in the order of the client
  Headers headers;                                         // of the head; trailers are dropped
  std::string body;
  std::string peer;  // "127.0.0.1:53422", "[::1]:53422" or "unix"

  // The first header of this name, of which case does not matter; nullptr: there is none.
  const std::string* header(std::string_view name) const;
};

// The framing (length, connection, date) is the server's, and no header may say it.
struct Answer {
  int status = 200;
  Headers headers;
  std::string body;
};

// ASCII alone: names of headers, hosts.
bool equal_ignoring_case(std::string_view a, std::string_view b);

}  // namespace quantspec::net
