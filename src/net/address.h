// Addresses of sockets as text. Thread-safe: pure functions.
#pragma once

#include <sys/socket.h>

#include <string>

namespace quantspec::net {

std::string address_text(const sockaddr* address);  // "127.0.0.1:80", "[::1]:80", "unix"
// Whom limits per client are kept for: an address of IPv4, a /64 network of IPv6; "": nobody.
std::string client_key(const sockaddr* address);
bool is_loopback(const sockaddr* address);

}  // namespace quantspec::net
