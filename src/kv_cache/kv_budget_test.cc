#include "kv_cache/kv_budget.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/expect_error.h"
#include "base/fields.h"

namespace quantspec {
namespace {

TEST(KvBudget, IsTokensOrAShare) {
  EXPECT_EQ(KvBudget::parse("2048"), KvBudget(2048));
  EXPECT_EQ(KvBudget::parse("1/4"), KvBudget::one_in(4));
  EXPECT_NE(KvBudget(4), KvBudget::one_in(4));
  for (const char* text : {"1", "2048", "1/2", "1/16", "1/1073741824", "1073741824"}) {
    const auto budget = KvBudget::parse(text);
    ASSERT_TRUE(budget) << text;
    EXPECT_EQ(budget->text(), text);
    EXPECT_TRUE(budget->given());
  }
  EXPECT_FALSE(KvBudget().given());
}

TEST(KvBudget, NothingElseIsOne) {
  for (const char* text : {"",
                           "0",
                           "-1",
                           "+1",
                           "x",
                           "1x",
                           " 1",
                           "1 ",
                           "1/",
                           "1/0",
                           "1/1",
                           "1/-2",
                           "2/4",
                           "1/4/4",
                           "1/4.5",
                           "0.25",
                           "25%",
                           "1073741825",
                           "1/1073741825",
                           "99999999999999999999",
                           "1/99999999999999999999"}) {
    EXPECT_FALSE(KvBudget::parse(text)) << text;
  }
}

TEST(KvBudget, NumbersThatCannotBeAreRefusedWithTheirField) {
  for (const int tokens : {-1, KvBudget::kMost + 1, std::numeric_limits<int>::min(),
                           std::numeric_limits<int>::max()}) {
    const auto make = [&] { return KvBudget(tokens); };
    expect_error(ErrorKind::kInvalidRequest, {"draft budget " + std::to_string(tokens) + ":"},
                 [&] { make(); });
    try {
      make();
    } catch (const Error& error) {
      EXPECT_EQ(error.field(), field::kDraftBudget);
    }
  }
  static_assert(KvBudget(KvBudget::kMost).given());
}

TEST(KvBudget, OfTokensDoesNotDependOnTheText) {
  EXPECT_EQ(KvBudget(100).tokens(50), 100);
  EXPECT_EQ(KvBudget::one_in(4).tokens(50), 12);
}

// Whole pages, one at least, and no more than there are.
TEST(KvBudget, OfPagesGrowsWithASequenceWhereItIsAShare) {
  constexpr int kPage = 32;
  const KvBudget tokens(100), quarter = KvBudget::one_in(4);
  for (int pages = 0; pages < 40; ++pages) {
    EXPECT_EQ(tokens.pages(pages, kPage), std::min(pages, 3));
    EXPECT_EQ(quarter.pages(pages, kPage), pages < 4 ? std::min(pages, 1) : pages / 4);
  }
  EXPECT_EQ(KvBudget(31).pages(9, kPage), 1);
  EXPECT_EQ(KvBudget::one_in(KvBudget::kMost).pages(1 << 20, kPage), 1);
}

}  // namespace
}  // namespace quantspec
