#include "kv_cache/page_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "backend/backend.h"
#include "base/expect_error.h"

namespace quantspec {
namespace {

struct PagePoolFixture : testing::Test {
  std::unique_ptr<Backend> backend = make_backend({"reference", 1});
  const KvShape shape{1, 1, 16, 32};
};

TEST_F(PagePoolFixture, WithoutABudgetItGrowsAndCounts) {
  PagePool pool(*backend, shape);
  std::vector<PageRef> pages;
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(pool.used(), i);
    EXPECT_EQ(pool.used() + pool.free(), pool.capacity());
    pages.push_back(pool.allocate());
  }
  EXPECT_GT(pool.free(), std::size_t{1} << 40);
  EXPECT_GE(pool.reserved(), 100u);
  pages.clear();
  EXPECT_EQ(pool.used(), 0u);
}

TEST_F(PagePoolFixture, NeverHandsOutOrTakesMoreThanItsBudget) {
  PagePool pool(*backend, shape, 5);
  std::vector<PageRef> pages;
  std::set<const void*> distinct;
  while (std::optional<PageRef> page = pool.try_allocate()) {
    distinct.insert(page->planes().upper);
    pages.push_back(*page);
  }
  EXPECT_EQ(pages.size(), 5u);
  EXPECT_EQ(distinct.size(), 5u);
  EXPECT_EQ(pool.used(), 5u);
  EXPECT_EQ(pool.free(), 0u);
  EXPECT_EQ(pool.capacity(), 5u);
  EXPECT_EQ(pool.reserved(), 5u);
}

TEST_F(PagePoolFixture, ASpentBudgetIsAnErrorThatSaysWhatWorks) {
  PagePool pool(*backend, shape, 1);
  const PageRef page = pool.allocate();
  expect_error(ErrorKind::kOutOfMemory, {"1 more pages of 32 tokens", "0 of its 1", "fewer"},
               [&] { pool.allocate(); });
  EXPECT_EQ(pool.used(), 1u);
}

TEST_F(PagePoolFixture, APageComesBackWithItsLastReference) {
  PagePool pool(*backend, shape, 1);
  std::optional<PageRef> page = pool.try_allocate();
  std::optional<PageRef> shared = page;
  page.reset();
  EXPECT_EQ(pool.free(), 0u);
  EXPECT_FALSE(pool.try_allocate());
  shared.reset();
  EXPECT_EQ(pool.free(), 1u);
  EXPECT_TRUE(pool.try_allocate());
}

TEST_F(PagePoolFixture, WhatIsReservedIsHandedOutWithoutAnotherSlab) {
  PagePool pool(*backend, shape, 40);
  const PageRef first = pool.allocate();
  pool.reserve(pool.free());
  EXPECT_EQ(pool.reserved(), 40u);
  std::vector<PageRef> pages;
  while (pool.free() > 0) pages.push_back(pool.allocate());
  EXPECT_EQ(pages.size(), 39u);
  EXPECT_EQ(pool.reserved(), 40u);
}

TEST_F(PagePoolFixture, ReservesForPagesThatAreNotYetInUse) {
  PagePool pool(*backend, shape);
  const PageRef first = pool.allocate();
  pool.reserve(7);
  const std::size_t reserved = pool.reserved();
  std::vector<PageRef> pages;
  for (int i = 0; i < 7; ++i) pages.push_back(pool.allocate());
  EXPECT_EQ(reserved, 8u);
  EXPECT_EQ(pool.reserved(), reserved);
}

TEST_F(PagePoolFixture, RefusesToReserveBeyondTheBudget) {
  PagePool pool(*backend, shape, 8);
  const PageRef page = pool.allocate();
  expect_error(ErrorKind::kOutOfMemory, {"8 more pages", "7 of its 8"}, [&] { pool.reserve(8); });
  EXPECT_EQ(pool.reserved(), 1u);
  pool.reserve(7);
}

}  // namespace
}  // namespace quantspec
