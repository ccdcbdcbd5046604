// Streams, clients that go, and a server that stops.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "net/test_support.h"

namespace quantspec::net {
namespace {

TEST(Stream, SendsItsHeadAtOnceAndEventsAsTheyCome) {
  TestServer server;
  Client client = server.connect();
  client.send(get("/stream"));
  const std::string head = client.read_until("\r\n\r\n");
  for (const char* header :
       {"HTTP/1.1 200 OK\r\n", "Content-Type: text/event-stream\r\n", "Cache-Control: no-store\r\n",
        "X-Accel-Buffering: no\r\n", "Transfer-Encoding: chunked\r\n"}) {
    EXPECT_NE(head.find(header), head.npos) << header;
  }
  const auto stream = server.streaming();
  EXPECT_EQ(stream->send("data: 1\n\n"), Room::kRoom);
  EXPECT_EQ(client.read_until("1\n\n\r\n"), "9\r\ndata: 1\n\n\r\n");
  stream->send("data: 2\n\n");
  stream->finish();
  EXPECT_TRUE(client.read_until("0\r\n\r\n").ends_with("data: 2\n\n\r\n0\r\n\r\n"));
  EXPECT_EQ(stream->send("data: 3\n\n"), Room::kGone);
  client.send(get("/"));  // the connection goes on
  EXPECT_EQ(client.read().body, "hello\n");
  EXPECT_TRUE(server.gone().empty());
}

TEST(Stream, IsPlainInHttp10AndEmptyForHead) {
  TestServer server;
  Client old = server.connect();
  old.send("GET /stream HTTP/1.0\r\nHost: localhost\r\n\r\n");
  const auto stream = server.streaming();
  stream->send("data: 1\n\n");
  stream->finish();
  const std::string answer = old.read_all();
  EXPECT_TRUE(answer.ends_with("\r\n\r\ndata: 1\n\n")) << answer;
  EXPECT_EQ(answer.find("chunked"), answer.npos);

  Client client = server.connect();
  client.send("HEAD /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.read(/*to_head=*/true).header("Content-Type"), "text/event-stream");
  const auto nobody = server.streaming();
  EXPECT_TRUE(soon([&] { return nobody->send("data: 1\n\n") == Room::kGone; }));
  client.send(get("/"));
  EXPECT_EQ(client.read().body, "hello\n");
}

TEST(Stream, SaysSomethingInSilence) {
  TestServer server([](Options& options) { options.limits.ping_time = Milliseconds(50); });
  Client client = server.connect();
  client.send(get("/stream"));
  const auto stream = server.streaming();
  client.read_until("\r\n\r\n");
  EXPECT_EQ(client.read_until(":\n\n\r\n"), "3\r\n:\n\n\r\n");
  EXPECT_EQ(client.read_until(":\n\n\r\n"), "3\r\n:\n\n\r\n");
  stream->finish();
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "0\r\n\r\n");
}

TEST(Stream, ThatIsNotFinishedBreaksTheConnection) {
  TestServer server;
  Client client = server.connect();
  client.send(get("/stream"));
  server.streaming()->send("data: 1\n\n");  // and destroyed
  const std::string all = client.read_all();
  EXPECT_EQ(all.find("0\r\n\r\n"), all.npos) << all;
  server.expect_idle();
}

// Every client that goes is noticed within 100 ms: by FIN or RST, during streams and while an
// answer is awaited, with a pipelined request before it and without.
TEST(Stream, NoticesClientsThatGo) {
  TestServer server;
  int in_time = 0;
  for (int i = 0; i < 100; ++i) {
    Client client = server.connect();
    const bool is_stream = i % 2 == 0;
    client.send(get(is_stream ? "/stream" : "/hold"));
    std::shared_ptr<SseStream> stream;
    std::shared_ptr<Exchange> exchange;
    if (is_stream) {
      stream = server.streaming();
      stream->send("data: 1\n\n");
      client.read_until("1\n\n");
    } else {
      exchange = server.held();
    }
    const Stopwatch watch;
    if (i % 4 < 2) {
      client.close();
    } else {
      client.reset();
    }
    const auto is_gone = [&] { return is_stream ? stream->is_gone() : exchange->is_gone(); };
    EXPECT_TRUE(soon(is_gone));
    in_time += watch.milliseconds() < 100;
    if (!is_stream) {
      EXPECT_FALSE(exchange->respond({200, {}, ""}));
    }
  }
  EXPECT_GE(in_time, 98);  // a machine that is busy may be late
  EXPECT_TRUE(soon([&] { return server.gone() == std::vector<Gone>(100, Gone::kHungUp); }));
  server.expect_idle();
}

TEST(Stream, NoticesClientsThatGoAfterAPipelinedRequest) {
  TestServer server(
      [](Options& options) { options.limits.ping_time = Milliseconds(500); });  // 50 ms
  for (int i = 0; i < 10; ++i) {
    Client client = server.connect();
    client.send(get("/hold"));
    const auto exchange = server.held();
    client.send(get("/"));
    std::this_thread::sleep_for(Milliseconds(20));
    EXPECT_FALSE(exchange->is_gone());
    if (i % 2 == 0) {
      client.close();
    } else {
      client.reset();
    }
    EXPECT_TRUE(soon([&] { return exchange->is_gone(); }));
  }
  server.expect_idle();
  EXPECT_EQ(server.server().stats().requests, 10u);
}

TEST(Stream, CallsBackAtOnceWhoComesLate) {
  TestServer server([](Options& options) {
    options.handle = [handle = options.handle](std::shared_ptr<Exchange> exchange) {
      std::thread([exchange] {
        EXPECT_TRUE(soon([&] { return exchange->is_gone(); }));
        bool is_called = false;
        exchange->on_gone([&](Gone why) { is_called = why == Gone::kHungUp; });
        EXPECT_TRUE(is_called);
      }).detach();
    };
  });
  {
    Client client = server.connect();
    client.send(get("/"));
    EXPECT_TRUE(soon([&] { return server.server().stats().exchanges == 1; }));
  }
  server.expect_idle();
}

TEST(Stream, HasABoundedOutboxAndPausesItsSender) {
  TestServer server([](Options& options) { options.limits.outbox_events = 100; });
  Client client(server.port(), /*receive_buffer=*/4096);
  client.send(get("/stream"));
  const auto stream = server.streaming();
  std::atomic<int> calls = 0;
  stream->on_room([&] { ++calls; });
  const std::string event = "data: " + std::string(1000, 'x') + "\n\n";
  int sent = 0;
  const auto is_stuck = [&] {
    for (; stream->has_room(); ++sent) stream->send(event);
    std::this_thread::sleep_for(Milliseconds(50));
    return !stream->has_room();
  };
  EXPECT_TRUE(soon(is_stuck));
  EXPECT_LT(sent, 10'000);
  const int calls_before = calls;
  std::string text;
  const auto count = [&] {
    int found = 0;
    for (std::size_t at = 0; (at = text.find("data: ", at)) != text.npos; ++at) ++found;
    return found;
  };
  while (count() < sent) text += client.read_until("x\n\n");
  EXPECT_TRUE(soon([&] { return calls == calls_before + 1 && stream->has_room(); }));
  EXPECT_EQ(stream->send(event), Room::kRoom);
  stream->finish();
  EXPECT_TRUE(client.read_until("\r\n0\r\n\r\n").ends_with("\r\n0\r\n\r\n"));
}

TEST(Stream, DropsAReaderThatIsStuck) {
  TestServer server([](Options& options) {
    options.limits.write_time = Milliseconds(200);
    options.limits.outbox_bytes = 4 << 10;
  });
  Client client(server.port(), /*receive_buffer=*/4096);
  client.send(get("/stream"));
  const auto stream = server.streaming();
  const std::string event = "data: " + std::string(1000, 'x') + "\n\n";
  EXPECT_TRUE(soon([&] {
    while (stream->has_room()) stream->send(event);
    return stream->is_gone();
  }));
  EXPECT_EQ(server.gone(), std::vector<Gone>{Gone::kTooSlow});
  EXPECT_EQ(stream->send(event), Room::kGone);
  server.expect_idle();

  // So is one of a plain answer.
  Client other(server.port(), /*receive_buffer=*/4096);
  other.send(get("/hold"));
  server.held()->respond({200, {}, std::string(20 << 20, 'x')});
  server.expect_idle();
}

TEST(Stream, CutsOffASenderThatHeedsNothing) {
  TestServer server;
  Client client(server.port(), /*receive_buffer=*/4096);
  client.send(get("/stream"));
  const auto stream = server.streaming();
  const std::string event = "data: " + std::string(10'000, 'x') + "\n\n";
  EXPECT_TRUE(soon([&] { return stream->send(event) == Room::kGone; }));
  EXPECT_TRUE(soon([&] { return server.gone() == std::vector<Gone>{Gone::kTooSlow}; }));
  server.expect_idle();
}

TEST(Server, StopsWhenExchangesHaveEnded) {
  TestServer server;
  Client idle = server.connect(), streaming = server.connect(), waiting = server.connect();
  idle.send(get("/"));
  idle.read();
  streaming.send(get("/stream"));
  waiting.send(get("/hold"));
  const auto stream = server.streaming();
  const auto exchange = server.held();
  std::thread stopper([&] { server.server().stop(Milliseconds(20'000)); });
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_THROW(server.connect(), std::runtime_error);
  EXPECT_FALSE(stream->is_gone());
  stream->send("data: 1\n\n");
  stream->finish();
  exchange->respond({200, {}, "late"});
  EXPECT_TRUE(streaming.read_all().ends_with("data: 1\n\n\r\n0\r\n\r\n"));
  const Client::Reply reply = waiting.read();
  EXPECT_EQ(reply.body, "late");
  EXPECT_EQ(reply.header("Connection"), "close");
  waiting.close();
  stopper.join();
  EXPECT_TRUE(server.gone().empty());
}

TEST(Server, StopsWhenItsPatienceEnds) {
  auto server = std::make_unique<TestServer>();
  Client streaming = server->connect(), waiting = server->connect(), half = server->connect();
  streaming.send(get("/stream"));
  waiting.send(get("/hold"));
  half.send("GET / HT");
  const auto stream = server->streaming();
  const auto exchange = server->held();
  const Stopwatch watch;
  server->server().stop(Milliseconds(100));
  EXPECT_GE(watch.milliseconds(), 95);
  EXPECT_LT(watch.milliseconds(), 5000);
  EXPECT_EQ(server->gone(), std::vector<Gone>(2, Gone::kStopped));
  server.reset();
  EXPECT_EQ(stream->send("data: 1\n\n"), Room::kGone);  // handles outlive the server
  EXPECT_FALSE(exchange->respond({200, {}, ""}));
}

}  // namespace
}  // namespace quantspec::net
