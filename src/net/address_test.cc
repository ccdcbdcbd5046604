#include "net/address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <string>

namespace quantspec::net {
namespace {

struct Address {
  explicit Address(const std::string& text) {
    if (text.find(':') == text.npos) {
      v4.sin_family = AF_INET;
      v4.sin_port = htons(80);
      inet_pton(AF_INET, text.c_str(), &v4.sin_addr);
    } else {
      v6.sin6_family = AF_INET6;
      v6.sin6_port = htons(80);
      inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr);
    }
  }
  const sockaddr* get() const { return &any; }
  union {
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6{};
  };
};

TEST(Address, IsWrittenAsUrlsHaveIt) {
  EXPECT_EQ(address_text(Address("127.0.0.1").get()), "127.0.0.1:80");
  EXPECT_EQ(address_text(Address("2001:db8::1").get()), "[2001:db8::1]:80");
  sockaddr unnamed{};
  unnamed.sa_family = AF_UNIX;
  EXPECT_EQ(address_text(&unnamed), "unix");
  EXPECT_EQ(client_key(&unnamed), "");
}

TEST(Address, OfANetworkIsOneClient) {
  const auto key = [](const char* text) { return client_key(Address(text).get()); };
  EXPECT_EQ(key("10.0.0.1"), "10.0.0.1");
  EXPECT_NE(key("10.0.0.1"), key("10.0.0.2"));
  EXPECT_EQ(key("2001:db8::1"), key("2001:db8::ffff:2"));
  EXPECT_NE(key("2001:db8::1"), key("2001:db8:0:1::1"));
  EXPECT_EQ(key("::ffff:10.0.0.1"), key("10.0.0.1"));
}

TEST(Address, KnowsThisMachine) {
  for (const char* text : {"127.0.0.1", "127.1.2.3", "::1"}) {
    EXPECT_TRUE(is_loopback(Address(text).get())) << text;
  }
  for (const char* text : {"0.0.0.0", "128.0.0.1", "::", "::2"}) {
    EXPECT_FALSE(is_loopback(Address(text).get())) << text;
  }
}

}  // namespace
}  // namespace quantspec::net
