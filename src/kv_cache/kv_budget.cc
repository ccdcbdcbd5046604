#include "kv_cache/kv_budget.h"

#include <charconv>

#include "base/error.h"
#include "base/fields.h"

namespace quantspec {

void KvBudget::fail_tokens(int tokens) {
  fail(ErrorKind::kInvalidRequest, "{} {}: supported are 0, which is none, to {} tokens",
       field::kDraftBudget, tokens, kMost);
}

std::optional<KvBudget> KvBudget::parse(std::string_view text) {
  constexpr std::string_view kOneIn = "1/";
  const bool is_share = text.starts_with(kOneIn);
  if (is_share) text.remove_prefix(kOneIn.size());
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  const int least = is_share ? 2 : 1;
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  if (number < least || number > kMost) return std::nullopt;
  return is_share ? one_in(number) : KvBudget(number);
}

std::string KvBudget::text() const {
  return is_share() ? "1/" + std::to_string(parts_) : std::to_string(tokens_);
}

}  // namespace quantspec
