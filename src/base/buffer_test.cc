#include "base/buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
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
