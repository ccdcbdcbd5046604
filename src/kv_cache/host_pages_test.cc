#include "kv_cache/host_pages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/error.h"
#include "base/expect_error.h"

namespace quantspec {
namespace {

using Bytes = std::vector<std::byte>;

class HostPagesTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() == std::string("cuda") && !cuda_unavailable().empty()) {
      GTEST_SKIP() << "no GPU: " << cuda_unavailable();
    }
    backend_ = make_backend({GetParam(), 1});
    pool_.emplace(*backend_, kShape);
    host_.emplace(*backend_, kShape, 10 * pool_->page_bytes() + 1);
  }

  static Bytes random(std::size_t count, unsigned seed) {
    Bytes bytes(count);
    for (std::byte& byte : bytes) byte = std::byte((seed = seed * 1664525 + 1013904223) >> 24);
    return bytes;
  }
  void write(const PageRef& page, unsigned seed) {
    const Bytes bytes = random(pool_->page_bytes(), seed);
    backend_->upload(page.planes().upper, bytes.data(), kUpper);
    backend_->upload(page.planes().lower, bytes.data() + kUpper, bytes.size() - kUpper);
  }
  Bytes read(const PageRef& page) {
    Bytes bytes(pool_->page_bytes());
    backend_->download(bytes.data(), page.planes().upper, kUpper);
    backend_->download(bytes.data() + kUpper, page.planes().lower, bytes.size() - kUpper);
    return bytes;
  }

  static constexpr KvShape kShape{3, 2, 64, 64};
  const std::size_t kUpper = kShape.units() * kShape.upper_unit_bytes();
  std::unique_ptr<Backend> backend_;
  std::optional<PagePool> pool_;
  std::optional<HostPages> host_;
};

TEST_P(HostPagesTest, PagesComeBackAsTheyWentToOtherPages) {
  std::vector<PageRef> pages, others;
  for (unsigned i = 0; i < 4; ++i) {
    write(pages.emplace_back(pool_->allocate()), i);
    write(others.emplace_back(pool_->allocate()), 100 + i);
  }
  const HostPages::Copy copy = host_->save(pages);
  for (unsigned i = 0; i < 4; ++i) write(pages[i], 200 + i);  // they serve somebody else
  host_->restore(copy, others);
  for (unsigned i = 0; i < 4; ++i) EXPECT_EQ(read(others[i]), random(pool_->page_bytes(), i)) << i;
}

TEST_P(HostPagesTest, OtherMemoryComesBackInAnySize) {
  for (const std::size_t bytes :
       {std::size_t{1}, pool_->page_bytes(), 3 * pool_->page_bytes() + 5}) {
    const Bytes expected = random(bytes, 7), other = random(bytes, 8);
    Buffer memory = backend_->allocate(bytes);
    backend_->upload(memory.data(), expected.data(), bytes);
    const HostPages::Copy copy = host_->save(std::span<const std::byte>(memory.data(), bytes));
    EXPECT_EQ(copy.slots(), host_->slots_for(bytes));
    backend_->upload(memory.data(), other.data(), bytes);
    host_->restore(copy, std::span(memory.data(), bytes));
    Bytes back(bytes);
    backend_->download(back.data(), memory.data(), bytes);
    EXPECT_EQ(back, expected);
  }
}

TEST_P(HostPagesTest, SlotsAreCountedAndGoBack) {
  EXPECT_EQ(host_->capacity(), 10u);
  const std::vector<PageRef> pages(6, pool_->allocate());
  {
    HostPages::Copy copy = host_->save(pages);
    HostPages::Copy moved = std::move(copy);
    EXPECT_EQ(host_->used(), 6u);
    EXPECT_THROW(host_->save(pages), Error);
    expect_error(ErrorKind::kInternal, {"has a page to go to"},
                 [&] { host_->restore(moved, std::span(pages).first(5)); });
  }
  EXPECT_EQ(host_->free(), 10u);
  const std::int64_t allocations = backend_->counts().allocations;
  for (int i = 0; i < 100; ++i) host_->restore(host_->save(pages), pages);
  EXPECT_EQ(backend_->counts().allocations, allocations);
  EXPECT_EQ(host_->used(), 0u);
}

TEST_P(HostPagesTest, WithoutMemoryItHasNoSlots) {
  HostPages none(*backend_, kShape, pool_->page_bytes() - 1);
  EXPECT_EQ(none.capacity(), 0u);
  EXPECT_EQ(none.save(std::span<const PageRef>()).slots(), 0u);
  expect_error(ErrorKind::kOutOfMemory, {"could not allocate"},
               [&] { HostPages(*backend_, kShape, std::size_t{1} << 50); });
}

INSTANTIATE_TEST_SUITE_P(Backends, HostPagesTest, testing::Values("reference", "cpu", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace quantspec
