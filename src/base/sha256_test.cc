#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string>

namespace quantspec {
namespace {

// The examples of FIPS 180-4 that NIST published.
TEST(Sha256, GivesThePublishedDigests) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Where the padding needs another block, and where it does not.
TEST(Sha256, PadsEveryLength) {
  std::string digests;
  for (std::size_t size = 0; size < 130; ++size) digests += hex(sha256(std::string(size, 'x')));
  // hashlib.sha256("".join(hashlib.sha256(b"x" * n).hexdigest() for n in range(130)).encode())
  EXPECT_EQ(hex(sha256(digests)),
            "199af942eba7fa5d1e16d475169eb24018b14e69339c93d26a9ea6d873b4ace6");
}

TEST(Sha256, ComparesAllBytes) {
  const Sha256 one = sha256("one");
  EXPECT_TRUE(equal_in_constant_time(one, sha256("one")));
  for (std::size_t i = 0; i < one.size(); ++i) {
    Sha256 other = one;
    other[i] ^= 1;
    EXPECT_FALSE(equal_in_constant_time(one, other));
  }
}

}  // namespace
}  // namespace quantspec
