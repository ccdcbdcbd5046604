#include "net/request_reader.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "net/hostile_requests.h"

namespace quantspec::net {
namespace {

using State = RequestReader::State;

// What a reader makes of bytes: requests, one a line, and how it ended.
class Reading {
 public:
  explicit Reading(Limits limits = {}, std::vector<std::string> hosts = {})
      : limits_(limits), hosts_(std::move(hosts)), reader_(limits_, hosts_, "peer") {}

  void feed(std::string_view bytes) {
    while (!bytes.empty() && !is_over_) {
      const auto space = reader_.space();
      const std::size_t n = std::min(space.size(), bytes.size());
      std::memcpy(space.data(), bytes.data(), n);
      reader_.commit(n);
      bytes.remove_prefix(n);
      advance();
    }
  }
  std::string text() const { return text_; }
  RequestReader& reader() { return reader_; }

 private:
  void advance() {
    for (;;) {
      const State state = reader_.advance();
      if (state == State::kWantsMore) return;
      if (state == State::kHead) continue;
      if (state == State::kRefused) {
        text_ += std::to_string(reader_.refusal().status);
        is_over_ = true;
        return;
      }
      const bool keeps = reader_.keeps_alive();
      const Request request = reader_.take();
      text_ += fmt::format("{} {}", request.method, request.path);
      for (const auto& [name, value] : request.query) text_ += fmt::format(" {}={}", name, value);
      text_ += fmt::format(" [{}]{}\n", request.body, keeps ? "" : " closes");
    }
  }

  Limits limits_;
  std::vector<std::string> hosts_;
  RequestReader reader_;
  std::string text_;
  bool is_over_ = false;
};

std::string read(std::string_view bytes) {
  Reading reading;
  reading.feed(bytes);
  return reading.text();
}

// However the bytes are cut, the same is read.
void expect_reading(const std::string& bytes, const std::string& expected) {
  EXPECT_EQ(read(bytes), expected) << bytes.substr(0, 500);
  Reading single;
  for (const char& byte : bytes) single.feed({&byte, 1});
  EXPECT_EQ(single.text(), expected) << bytes.substr(0, 500);
  const std::size_t step = bytes.size() > 2000 ? bytes.size() / 50 : 1;
  for (std::size_t cut = 1; cut < bytes.size(); cut += step) {
    Reading halves;
    halves.feed(std::string_view(bytes).substr(0, cut));
    halves.feed(std::string_view(bytes).substr(cut));
    ASSERT_EQ(halves.text(), expected) << "cut at " << cut << " of " << bytes.substr(0, 500);
  }
}

TEST(RequestReader, ReadsRequestsHoweverTheyAreCut) {
  expect_reading("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / []\n");
  expect_reading(
      "POST /v1/x?a=1&b=%20+c&d HTTP/1.1\r\nHost: a:80\r\nContent-Length: 5\r\n\r\nhello",
      "POST /v1/x a=1 b=  c d= [hello]\n");
  expect_reading(
      "POST /a HTTP/1.1\r\nHost: [::1]:80\r\nTransfer-Encoding: CHUNKED\r\n\r\n"
      "5\r\nhello\r\n1;x=y\r\n!\r\n0\r\nHost: trailer\r\n\r\n",
      "POST /a [hello!]\n");
  expect_reading("GET /a%2Fb%C3%A9 HTTP/1.0\r\n\r\n", "GET /a/b\xc3\xa9 [] closes\n");
  expect_reading("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", "GET / [] closes\n");
  expect_reading("HEAD / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
                 "HEAD / []\n");
}

TEST(RequestReader, ReadsPipelinedRequestsOneAfterAnother) {
  expect_reading(
      "GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
      "POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx\r\n"
      "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
      "GET /d HTTP/1.1\r\nHost: a\r\n\r\n",
      "GET /a []\nPOST /b [x]\nPOST /c []\nGET /d []\n");
}

TEST(RequestReader, RefusesHostileRequestsHoweverTheyAreCut) {
  for (const auto& [what, bytes, status] : hostile_requests()) {
    SCOPED_TRACE(what);
    expect_reading(bytes, std::to_string(status));
  }
}

TEST(RequestReader, SaysWhatIsKnownOfAHead) {
  Reading reading;
  RequestReader& reader = reading.reader();
  const std::string_view head =
      "POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
  EXPECT_FALSE(reader.has_begun());
  std::memcpy(reader.space().data(), head.data(), head.size());
  reader.commit(head.size());
  EXPECT_TRUE(reader.has_begun());
  EXPECT_EQ(reader.advance(), State::kHead);
  EXPECT_TRUE(reader.expects_continue());
  EXPECT_TRUE(reader.has_body());
  EXPECT_TRUE(reader.keeps_alive());
  EXPECT_EQ(reader.request().peer, "peer");
  EXPECT_EQ(*reader.request().header("content-length"), "2");
  EXPECT_EQ(reader.request().header("Content"), nullptr);
  EXPECT_EQ(reader.advance(), State::kWantsMore);
}

TEST(RequestReader, KeepsToLimits) {
  Limits limits;
  limits.header_bytes = 100;
  limits.header_fields = 3;
  limits.body_bytes = 4;
  const auto read_limited = [&](const std::string& bytes) {
    Reading reading(limits);
    reading.feed(bytes);
    return reading.text();
  };
  const std::string start = "POST / HTTP/1.1\r\nHost: a\r\n";
  EXPECT_EQ(read_limited(start + "a: b\r\nc: d\r\n\r\n"), "POST / []\n");
  EXPECT_EQ(read_limited(start + "a: b\r\nc: d\r\ne: f\r\n\r\n"), "431");
  const std::string fill(100 - start.size() - 7, 'x');
  EXPECT_EQ(read_limited(start + "a: " + fill + "\r\n\r\n"), "POST / []\n");
  EXPECT_EQ(read_limited(start + "a: " + fill + "x\r\n\r\n"), "431");
  EXPECT_EQ(read_limited(start + "Content-Length: 4\r\n\r\nabcd"), "POST / [abcd]\n");
  EXPECT_EQ(read_limited(start + "Content-Length: 5\r\n\r\n"), "413");  // before any of it
  const std::string chunked = start + "Transfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(read_limited(chunked + "2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n"), "POST / [abcd]\n");
  EXPECT_EQ(read_limited(chunked + "2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"), "413");
}

TEST(RequestReader, TakesAllowedHostsOnly) {
  const auto read_from = [](const std::string& host) {
    Reading reading({}, {"localhost", "127.0.0.1", "[::1]"});
    reading.feed("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    return reading.text();
  };
  for (const char* host : {"localhost", "LocalHost:8080", "127.0.0.1:1", "[::1]", "[::1]:8080"}) {
    EXPECT_EQ(read_from(host), "GET / []\n") << host;
  }
  for (const char* host : {"evil.example", "localhost.evil.example", "127.0.0.11", "[::2]:80"}) {
    EXPECT_EQ(read_from(host), "403") << host;
  }
}

TEST(RequestReader, RefusesTargetsThatAreNoPath) {
  for (const char* target :
       {"*", "http://a/", "a", "", "/%", "/%2", "/%zz", "/%00", "/%0a", "/%7f", "/%c3", "/%ff",
        "/a?b=%", "/a#b", "/\xc3\xa9", "/a\x7f", "//a\\b%ed%a0%80", "/a b"}) {
    const std::string status = read(fmt::format("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", target));
    EXPECT_EQ(status, "400") << target;
  }
}

// Whatever comes, memory stays within limits, and nothing is thrown.
TEST(RequestReader, SurvivesChangedBytes) {
  std::mt19937 random(1);
  const std::string good =
      "POST /v1/x?a=1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n"
      "5\r\nhello\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good;
    for (unsigned n = random() % 3 + 1; n > 0; --n) {
      bytes[random() % bytes.size()] =
          static_cast<char>(random() % 3 == 0 ? random() : "\r\n :0,\t"[random() % 7]);
    }
    Reading reading;
    const std::size_t cut = random() % bytes.size();
    reading.feed(std::string_view(bytes).substr(0, cut));
    reading.feed(std::string_view(bytes).substr(cut));
    EXPECT_EQ(reading.text(), read(bytes));
  }
}

}  // namespace
}  // namespace quantspec::net
