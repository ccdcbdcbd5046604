#include "base/buffer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <utility>

#include "base/error.h"

namespace quantspec {
namespace {

TEST(Buffer, IsZeroedAndAligned) {
  for (const std::size_t bytes : {1u, 63u, 64u, 4097u, 2u << 20, (2u << 20) + 5}) {
    const Buffer buffer(bytes);
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64, 0u);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + bytes,
                            [](std::byte b) { return b == std::byte{0}; }));
  }
}

// Kilobytes of this process that are resident.
long resident_kilobytes() {
  std::ifstream file("/proc/self/statm");
  long total = 0, resident = 0;
  file >> total >> resident;
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

TEST(Buffer, IsResidentWhereItWasTouched) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  const long before = resident_kilobytes();
  {
    Buffer buffer(kBytes);
    EXPECT_LT(resident_kilobytes() - before, 8 * 1024);
    buffer.data()[kBytes / 2] = std::byte{1};
    EXPECT_LT(resident_kilobytes() - before, 8 * 1024);  // a huge page, at most
    std::fill_n(buffer.data(), kBytes / 2, std::byte{1});
    EXPECT_GT(resident_kilobytes() - before, 120 * 1024);
  }
  EXPECT_LT(resident_kilobytes() - before, 8 * 1024);
}

TEST(Buffer, WithoutHugePagesIsTheSame) {
  constexpr std::size_t kBytes = (std::size_t{4} << 20) + 5;
  Buffer buffer(kBytes, HugePages::kNever);
  advise_huge_pages(buffer.data() + 1, kBytes - 1);
  EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + kBytes,
                          [](std::byte b) { return b == std::byte{0}; }));
  buffer.data()[kBytes - 1] = std::byte{3};
  advise_huge_pages(buffer.data(), kBytes);
  EXPECT_EQ(buffer.data()[kBytes - 1], std::byte{3});
  advise_huge_pages(buffer.data(), 100);  // holds no whole huge page
}

TEST(Buffer, EmptyHasNoData) {
  EXPECT_EQ(Buffer(0).data(), nullptr);
  EXPECT_EQ(Buffer().size(), 0u);
}

TEST(Buffer, MovesItsMemory) {
  Buffer a(100);
  a.as<int>()[3] = 42;
  const std::byte* data = a.data();
  Buffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(std::as_const(b).as<int>()[3], 42);
  a = Buffer(10);
  EXPECT_EQ(a.size(), 10u);
}

TEST(Buffer, MovedFromIsEmpty) {
  Buffer a(100);
  const Buffer b = std::move(a);
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(a.size(), 0u);
}

TEST(Buffer, ImpossibleSizesAreRefused) {
  for (const std::size_t bytes :
       {std::numeric_limits<std::size_t>::max(), std::numeric_limits<std::size_t>::max() / 2}) {
    try {
      Buffer buffer(bytes);
      FAIL() << "allocated " << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    }
  }
}

}  // namespace
}  // namespace quantspec
