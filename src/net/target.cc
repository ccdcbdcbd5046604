#include "net/target.h"

#include <algorithm>

#include "base/utf8.h"

namespace quantspec::net {

namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_plain(std::string_view text) {
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7F; };
  if (std::any_of(text.begin(), text.end(), is_control)) return false;
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    if (step.state != Utf8State::kValid) return false;
    text.remove_prefix(step.length);
  }
  return true;
}

// plus_is_space: as forms write a query.
std::optional<std::string> decode(std::string_view text, bool plus_is_space) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += plus_is_space && text[i] == '+' ? ' ' : text[i];
      continue;
    }
    if (text.size() - i < 3) return std::nullopt;
    const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    decoded += static_cast<char>(high << 4 | low);
    i += 2;
  }
  if (!is_plain(decoded)) return std::nullopt;
  return decoded;
}

}  // namespace

std::optional<Target> parse_target(std::string_view target) {
  const auto is_allowed = [](unsigned char c) { return c > 0x20 && c < 0x7F && c != '#'; };
  if (!target.starts_with('/') || !std::all_of(target.begin(), target.end(), is_allowed)) {
    return std::nullopt;
  }
  const std::size_t mark = target.find('?');
  auto path = decode(target.substr(0, mark), /*plus_is_space=*/false);
  if (!path) return std::nullopt;
  Target parsed{std::move(*path), {}};
  std::string_view rest = mark == target.npos ? std::string_view() : target.substr(mark + 1);
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find('&'), rest.size());
    const std::string_view pair = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (pair.empty()) continue;
    const std::size_t equals = std::min(pair.find('='), pair.size());
    auto name = decode(pair.substr(0, equals), /*plus_is_space=*/true);
    auto value = decode(pair.substr(std::min(equals + 1, pair.size())), /*plus_is_space=*/true);
    if (!name || !value) return std::nullopt;
    parsed.query.emplace_back(std::move(*name), std::move(*value));
  }
  return parsed;
}

}  // namespace quantspec::net
