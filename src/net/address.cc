#include "net/address.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>

#include <cstring>

namespace quantspec::net {

namespace {

// Copies, since the bytes of a generic address need not be aligned.
template <typename Address>
Address as(const sockaddr* address) {
  Address copy;
  std::memcpy(&copy, address, sizeof copy);
  return copy;
}

std::string text_of(int family, const void* bytes) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(family, bytes, text, sizeof text);
  return text;
}

}  // namespace

std::string address_text(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto v4 = as<sockaddr_in>(address);
    return fmt::format("{}:{}", text_of(AF_INET, &v4.sin_addr), ntohs(v4.sin_port));
  }
  if (address->sa_family == AF_INET6) {
    const auto v6 = as<sockaddr_in6>(address);
    return fmt::format("[{}]:{}", text_of(AF_INET6, &v6.sin6_addr), ntohs(v6.sin6_port));
  }
  return "unix";
}

std::string client_key(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto v4 = as<sockaddr_in>(address);
    return text_of(AF_INET, &v4.sin_addr);
  }
  if (address->sa_family == AF_INET6) {
    auto v6 = as<sockaddr_in6>(address);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return text_of(AF_INET, v6.sin6_addr.s6_addr + 12);
    std::memset(v6.sin6_addr.s6_addr + 8, 0, 8);
    return text_of(AF_INET6, &v6.sin6_addr);
  }
  return {};
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return (ntohl(as<sockaddr_in>(address).sin_addr.s_addr) >> 24) == 127;
  }
  if (address->sa_family == AF_INET6) {
    const auto v6 = as<sockaddr_in6>(address);
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) != 0;
  }
  return false;
}

}  // namespace quantspec::net
