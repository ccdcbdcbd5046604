#include "net/answer_text.h"

#include <gtest/gtest.h>

namespace quantspec::net {
namespace {

constexpr std::time_t kThen = 784111777;

TEST(AnswerText, WritesAnswers) {
  EXPECT_EQ(date(kThen), "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(answer_text({200, {{"A", "b"}}, "xyz"}, {}, kThen),
            "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nA: b\r\n"
            "Content-Length: 3\r\n\r\nxyz");
  EXPECT_EQ(answer_text({429, {}, "x"}, {11, true, true}, kThen),
            "HTTP/1.1 429 Too Many Requests\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
            "Connection: close\r\nContent-Length: 1\r\n\r\n");
  EXPECT_TRUE(answer_text({599, {}, ""}, {}, kThen).starts_with("HTTP/1.1 599 Other\r\n"));
  EXPECT_EQ(chunk(std::string(26, 'x')), "1a\r\n" + std::string(26, 'x') + "\r\n");
}

TEST(AnswerText, AStreamHasEachHeaderOnce) {
  const std::string usual = stream_head({{"A", "b"}}, {}, kThen);
  EXPECT_TRUE(
      usual.ends_with("A: b\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n"
                      "X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n"))
      << usual;
  const std::string given = stream_head({{"content-type", "text/event-stream; charset=utf-8"},
                                         {"Cache-Control", "no-cache"},
                                         {"X-ACCEL-BUFFERING", "yes"}},
                                        {}, kThen);
  EXPECT_TRUE(
      given.ends_with("content-type: text/event-stream; charset=utf-8\r\nCache-Control: "
                      "no-cache\r\nX-ACCEL-BUFFERING: yes\r\nTransfer-Encoding: "
                      "chunked\r\n\r\n"))
      << given;
}

TEST(AnswerText, KnowsWhatCanBeSent) {
  EXPECT_TRUE(are_sendable({{"X-Request-Id", "a b\t\xc3\xa9"}, {"Retry-After", ""}}));
  for (const Header& header : std::initializer_list<Header>{{"", "a"},
                                                            {"a b", "a"},
                                                            {"a:", "a"},
                                                            {"a", "b\r\nc"},
                                                            {"a", "\x7f"},
                                                            {"CONNECTION", "close"},
                                                            {"date", "x"}}) {
    EXPECT_FALSE(are_sendable({header})) << header.name;
  }
}

}  // namespace
}  // namespace quantspec::net
