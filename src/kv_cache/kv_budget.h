// How much of a sequence a draft reads where it reads a part: a number of tokens, or a share of the
// sequence as long as it is when it is read. A share is a plan's for sequences of any length. A
// value; pure.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

namespace quantspec {

class KvBudget {
 public:
  static constexpr int kMost = 1 << 30;

  // So many tokens; 0: none is given. Throws kInvalidRequest for less, and for more than kMost.
  constexpr KvBudget(int tokens = 0) : tokens_(tokens) {
    if (tokens < 0 || tokens > kMost) fail_tokens(tokens);
  }
  // One in so many. REQUIRES: parts >= 2.
  static constexpr KvBudget one_in(int parts) {
    KvBudget budget;
    budget.parts_ = parts;
    return budget;
  }
  // "2048" or "1/4", of up to kMost; as text() writes it. nullopt: it is neither.
  static std::optional<KvBudget> parse(std::string_view text);
  std::string text() const;

  constexpr bool given() const { return tokens_ > 0 || parts_ > 0; }
  constexpr bool is_share() const { return parts_ > 0; }
  int parts() const { return parts_; }  // n of 1/n; 0: it is no share
  // Of a text of so many tokens.
  int tokens(int text) const { return is_share() ? text / parts_ : tokens_; }
  // So many of a sequence's pages are read: whole ones, and one at least. The one place that says
  // so, for caches and for what counts their bytes.
  int pages(int num_pages, int page_size) const {
    const int pages = is_share() ? num_pages / parts_ : tokens_ / page_size;
    return std::min(num_pages, std::max(1, pages));
  }
  bool operator==(const KvBudget&) const = default;

 private:
  [[noreturn]] static void fail_tokens(int tokens);

  int tokens_;
  int parts_ = 0;  // 0: tokens_ counts
};

}  // namespace quantspec
