#include "api/head.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <random>

namespace quantspec::api {

namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool is_hex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace

bool is_same_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::string random_hex(int bits) {
  thread_local std::random_device random;
  std::string text;
  for (int at = 0; at < bits; at += 32) text += fmt::format("{:08x}", std::uint32_t{random()});
  return text;
}

std::string request_id_of(const HttpRequest& request) {
  constexpr std::size_t kMost = 128;
  const std::string* given = request.header("X-Request-Id");
  const auto is_plain = [](char c) {
    return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z') || c == '-' || c == '_' ||
           c == '.' || c == ':';
  };
  if (given != nullptr && !given->empty() && given->size() <= kMost &&
      std::ranges::all_of(*given, is_plain)) {
    return *given;
  }
  return random_hex(128);
}

// version-trace-parent-flags, of 2, 32, 16 and 2 digits.
std::string traceparent_of(const HttpRequest& request) {
  const std::string* given = request.header("traceparent");
  if (given == nullptr || given->size() != 55) return {};
  const std::string_view text = *given;
  const bool has_dashes = text[2] == '-' && text[35] == '-' && text[52] == '-';
  if (!has_dashes || !is_hex(text.substr(0, 2)) || !is_hex(text.substr(3, 32)) ||
      !is_hex(text.substr(36, 16)) || !is_hex(text.substr(53, 2))) {
    return {};
  }
  return *given;
}

bool says_json(const HttpRequest& request) {
  const std::string* type = request.header("Content-Type");
  if (type == nullptr) return false;
  std::string_view kind = std::string_view(*type).substr(0, type->find(';'));
  while (kind.ends_with(' ') || kind.ends_with('\t')) kind.remove_suffix(1);
  while (kind.starts_with(' ') || kind.starts_with('\t')) kind.remove_prefix(1);
  return is_same_ignoring_case(kind, "application/json");
}

const std::string* HttpRequest::header(std::string_view name) const {
  const auto found = std::ranges::find_if(
      headers, [&](const auto& one) { return is_same_ignoring_case(one.first, name); });
  return found == headers.end() ? nullptr : &found->second;
}

}  // namespace quantspec::api
