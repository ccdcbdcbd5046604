#include "api/keys.h"

#include <cstring>

#include "api/head.h"

namespace quantspec::api {

void Keys::set(const std::vector<std::string>& keys) {
  auto hashes = std::make_shared<Hashes>();
  for (const std::string& key : keys) hashes->push_back(sha256(key));
  const std::lock_guard lock(mutex_);
  hashes_ = std::move(hashes);
}

std::shared_ptr<const Keys::Hashes> Keys::hashes() const {
  const std::lock_guard lock(mutex_);
  return hashes_;
}

bool Keys::open() const { return hashes()->empty(); }

namespace {

std::string_view key_in(const HttpRequest& request) {
  constexpr std::string_view kBearer = "bearer ";
  if (const std::string* value = request.header("Authorization")) {
    const std::string_view text = *value;
    if (is_same_ignoring_case(text.substr(0, kBearer.size()), kBearer)) {
      std::string_view key = text.substr(kBearer.size());
      while (key.starts_with(' ')) key.remove_prefix(1);
      return key;
    }
  }
  const std::string* value = request.header("X-Api-Key");
  return value == nullptr ? std::string_view() : std::string_view(*value);
}

}  // namespace

std::optional<Caller> Keys::caller_of(const HttpRequest& request) const {
  const auto known = hashes();
  if (known->empty()) return Caller{};
  const Sha256 asked = sha256(key_in(request));
  bool found = false;
  for (const Sha256& one : *known) found |= equal_in_constant_time(one, asked);
  if (!found) return std::nullopt;
  Caller caller;
  std::memcpy(&caller.owner, asked.data(), sizeof(caller.owner));
  caller.salt = hex(asked);
  caller.name = caller.salt.substr(0, 8);
  return caller;
}

}  // namespace quantspec::api
