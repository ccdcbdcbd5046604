// For tests: requests on whose end servers and proxies have disagreed, and others that are refused.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

namespace quantspec::net {

struct HostileRequest {
  std::string what;
  std::string bytes;
  int status;
};

inline std::vector<HostileRequest> hostile_requests() {
  using std::string;
  const string hosted = "POST / HTTP/1.1\r\nHost: a\r\n",
               chunked = "Transfer-Encoding: chunked\r\n";
  const string chunks = "2\r\nab\r\n0\r\n\r\n", next = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
  const auto with = [&](const string& headers, const string& body = "ab") {
    return hosted + headers + "\r\n" + body + next;
  };
  const auto in_chunks = [&](const string& body) { return hosted + chunked + "\r\n" + body; };
  string many;
  for (int i = 0; i < 1500; ++i) many += "a: b\r\n";
  std::vector<HostileRequest> all = {
      {"chunked, then a length", with(chunked + "Content-Length: 2\r\n", chunks), 400},
      {"a length, then chunked", with("Content-Length: 2\r\n" + chunked, chunks), 400},
      {"gzip, then a length", with("Transfer-Encoding: gzip\r\nContent-Length: 2\r\n"), 400},
      {"a length, then gzip", with("Content-Length: 2\r\nTransfer-Encoding: gzip\r\n"), 400},
      {"gzip, chunked", with("Transfer-Encoding: gzip, chunked\r\n", chunks), 400},
      {"xchunked", with("Transfer-Encoding: xchunked\r\n", chunks), 400},
      {"chunked, chunked", with("Transfer-Encoding: chunked, chunked\r\n", chunks), 400},
      {"chunked twice", with(chunked + chunked, chunks), 400},
      {"identity", with("Transfer-Encoding: identity\r\nContent-Length: 2\r\n"), 400},
      {"chunked of HTTP/1.0", "POST / HTTP/1.0\r\n" + chunked + "\r\n" + chunks, 400},
      {"two lengths", with("Content-Length: 2\r\nContent-Length: 3\r\n"), 400},
      {"a length twice", with("Content-Length: 2\r\nContent-Length: 2\r\n"), 400},
      {"a list of lengths", with("Content-Length: 2, 2\r\n"), 400},
      {"a signed length", with("Content-Length: +2\r\n"), 400},
      {"a negative length", with("Content-Length: -2\r\n"), 400},
      {"a length in hexadecimal", with("Content-Length: 0x2\r\n"), 400},
      {"an empty length", with("Content-Length:\r\n"), 400},
      {"a length beyond 64 bits", with("Content-Length: 18446744073709551618\r\n"), 400},
      {"a long body, declared", with("Content-Length: 8388609\r\n"), 413},
      {"two hosts", with("Host: b\r\n"), 400},
      {"no host", "GET / HTTP/1.1\r\n\r\n", 400},
      {"an empty host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", 400},
      {"a list of hosts", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400},
      {"a user at a host", "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", 400},
      {"a host with a path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
      {"a zero in a value", with("X: a" + string(1, '\0') + "b\r\n"), 400},
      {"CR in a value", with("X: a\rContent-Length: 2\r\n"), 400},
      {"LF in a value", with("X: a\nContent-Length: 2\r\n"), 400},
      {"a folded header", with("X: a\r\n b\r\n"), 400},
      {"a space before the colon", with("Content-Length : 2\r\n"), 400},
      {"a space before a name", with(" Content-Length: 2\r\n"), 400},
      {"a header without a name", with(": 2\r\n"), 400},
      {"a header without a colon", with("Content-Length 2\r\n"), 400},
      {"lines that end with LF", "GET / HTTP/1.1\nHost: a\n\n", 400},
      {"1 MB of headers", with("X: " + string(1 << 20, 'a') + "\r\n"), 431},
      {"CR in a head that is too long", with("X: a\rb" + string(20'000, 'a') + "\r\n"), 400},
      {"1,500 fields", with(many), 431},
      {"a long target", "GET /" + string(20'000, 'a') + " HTTP/1.1\r\nHost: a\r\n\r\n", 431},
      {"an absolute target", "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"the whole server", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"a tunnel", "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 501},
      {"TRACE", "TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", 501},
      {"a method in lower case", "get / HTTP/1.1\r\nHost: a\r\n\r\n", 501},
      {"a web socket", with("Connection: Upgrade\r\nUpgrade: websocket\r\n"), 501},
      {"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"HTTP/1.2", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", 505},
      {"HTTP/0.9", "GET /\r\n\r\n", 400},
      {"a name that is none", "GET / HTTQ/1.1\r\nHost: a\r\n\r\n", 400},
      {"a tab in the first line", "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"TLS", string("\x16\x03\x01\x02\x00\x01", 6), 400},
      {"an expectation", with("Expect: 200-ok\r\nContent-Length: 2\r\n"), 417},
      {"a chunk's size that is none", in_chunks("zz\r\nab\r\n0\r\n\r\n"), 400},
      {"a chunk's size with 0x", in_chunks("0x2\r\nab\r\n0\r\n\r\n"), 400},
      {"a chunk's size with a sign", in_chunks("+2\r\nab\r\n0\r\n\r\n"), 400},
      {"a chunk's size beyond 64 bits", in_chunks("10000000000000002\r\nab\r\n0\r\n\r\n"), 400},
      {"a chunk without its end", in_chunks("2\r\nabc\r\n0\r\n\r\n"), 400},
      {"a long extension of a chunk", in_chunks("2;" + string(40'000, 'x') + "\r\nab\r\n0\r\n\r\n"),
       431},
      {"long trailers", in_chunks("0\r\nX: " + string(40'000, 'x') + "\r\n\r\n"), 431},
  };
  return all;
}

}  // namespace quantspec::net
