// Requests and answers over sockets.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/expect_error.h"
#include "base/test_folder.h"
#include "net/hostile_requests.h"
#include "net/test_support.h"

namespace quantspec::net {
namespace {

TEST(Server, AnswersAndKeepsTheConnection) {
  TestServer server;
  Client client = server.connect();
  for (int i = 0; i < 3; ++i) {
    client.send(get("/"));
    const Client::Reply reply = client.read();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, "hello\n");
    EXPECT_EQ(reply.header("Content-Type"), "text/plain");
    EXPECT_EQ(reply.header("Connection"), "");
    EXPECT_TRUE(reply.header("Date").ends_with(" GMT"));
  }
  client.send(get("/", "Connection: close\r\n"));
  EXPECT_EQ(client.read().header("Connection"), "close");
  EXPECT_EQ(client.read_all(), "");
  EXPECT_FALSE(client.is_reset());
  const Stats stats = server.server().stats();
  EXPECT_EQ(stats.accepted, 1u);
  EXPECT_EQ(stats.requests, 4u);
  EXPECT_EQ(stats.refused, 0u);
  client.close();
  server.expect_idle();
}

TEST(Server, AnswersHeadAndOldVersions) {
  TestServer server;
  Client client = server.connect();
  client.send("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const Client::Reply reply = client.read(/*to_head=*/true);
  EXPECT_EQ(reply.header("Content-Length"), "6");
  client.send(get("/"));
  EXPECT_EQ(client.read().body, "hello\n");
  client.send("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.read(/*to_head=*/true).status, 200);
  client.send("no request\r\n\r\n");
  const Client::Reply refused = client.read();
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body, "");  // the request before it was a HEAD, this is none
  const std::string old = server.answer_to("GET / HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(old.starts_with("HTTP/1.1 403")) << old;  // without a Host, on this machine
  EXPECT_TRUE(server.answer_to("GET / HTTP/1.0\r\nHost: localhost\r\n\r\n").ends_with("hello\n"));
}

TEST(Server, AnswersPipelinedRequestsInOrder) {
  TestServer server;
  Client client = server.connect();
  client.send(get("/hold") + post("/echo", "two") + get("/hold") + get("/"));
  const auto first = server.held();
  std::this_thread::sleep_for(Milliseconds(50));
  EXPECT_EQ(server.server().stats().requests, 1u);  // one at a time
  EXPECT_FALSE(first->is_gone());
  first->respond({200, {}, "one"});
  EXPECT_EQ(client.read().body, "one");
  EXPECT_EQ(client.read().body, "two");
  server.held()->respond({200, {}, "three"});
  EXPECT_EQ(client.read().body, "three");
  EXPECT_EQ(client.read().body, "hello\n");
  EXPECT_TRUE(server.gone().empty());
}

TEST(Server, ReadsBodiesHoweverTheyCome) {
  TestServer server;
  Client client = server.connect();
  client.send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5\r\nhello\r\n");
  client.send("7\r\n, world\r\n0\r\n\r\n");
  EXPECT_EQ(client.read().body, "hello, world");
  std::string large(7 << 20, 'x');
  for (std::size_t i = 0; i < large.size(); i += 997) large[i] = static_cast<char>('a' + i % 26);
  std::thread sender([&] { client.send(post("/echo", large)); });
  EXPECT_TRUE(client.read().body == large);
  sender.join();
  const std::string request = post("/echo", "slowly");
  for (const char& byte : request) client.send({&byte, 1});
  EXPECT_EQ(client.read().body, "slowly");
}

TEST(Server, RefusesHostileRequestsAndCloses) {
  TestServer server([](Options& options) { options.allowed_hosts = {"*"}; });
  std::uint64_t refused = 0;
  for (const auto& [what, bytes, status] : hostile_requests()) {
    SCOPED_TRACE(what);
    const std::string answer = server.answer_to(bytes);
    EXPECT_TRUE(answer.starts_with(fmt::format("HTTP/1.1 {} ", status))) << answer;
    EXPECT_NE(answer.find("Connection: close\r\n"), answer.npos);
    EXPECT_EQ(answer.find("\nHTTP/1.1 "), answer.npos) << "a second answer";
    ++refused;
  }
  EXPECT_EQ(server.server().stats().refused, refused);
  EXPECT_EQ(server.server().stats().requests, 0u);
  server.expect_idle();
}

TEST(Server, RefusesALongBodyThatIsUnderWay) {
  TestServer server([](Options& options) { options.limits.body_bytes = 1000; });
  Client client = server.connect();
  client.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n");
  client.send(std::string(2'000'000, 'x'));  // nobody reads it, and the answer is not lost
  const Client::Reply reply = client.read();
  EXPECT_EQ(reply.status, 413);
  EXPECT_EQ(reply.body, "the body of a request is too long\n");
}

TEST(Server, ReadsSoManyBodiesAtOnce) {
  TestServer server([](Options& options) { options.limits.all_bodies_bytes = 1000; });
  const auto begin = [&](Client& client) {
    client.send("POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n");
    std::this_thread::sleep_for(Milliseconds(20));
    client.send(std::string(600, 'x'));
  };
  Client first = server.connect(), second = server.connect();
  begin(first);
  std::this_thread::sleep_for(Milliseconds(20));
  begin(second);
  EXPECT_EQ(second.read().status, 503);
  first.send(std::string(300, 'x'));
  EXPECT_EQ(first.read().body.size(), 900u);
  for (int i = 0; i < 10; ++i) {  // what was counted is counted off, whatever became of it
    Client other = server.connect();
    begin(other);
    if (i % 2 == 0) continue;
    other.send(std::string(300, 'x'));
    EXPECT_EQ(other.read().status, 200);
  }
}

TEST(Server, MakesRefusalsAsItIsTold) {
  TestServer server([](Options& options) {
    options.refuse = [](int status, std::string_view text) -> Answer {
      if (status == 501) throw std::runtime_error("a refusal that throws");
      if (status == 505) return {500, {{"X", "a\r\nb"}}, ""};
      return {
          500, {{"Content-Type", "application/json"}}, fmt::format("[{}, \"{}\"]", status, text)};
    };
  });
  const std::string answer = server.answer_to("GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 400 ")) << answer;
  EXPECT_TRUE(answer.ends_with("\r\n\r\n[400, \"a request has exactly one Host header\"]"))
      << answer;
  EXPECT_TRUE(server.answer_to("TRACE / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 501 "));
  EXPECT_TRUE(server.answer_to("GET / HTTP/2.0\r\n\r\n").starts_with("HTTP/1.1 505 "));
}

TEST(Server, AdmitsBeforeTheBody) {
  TestServer server([](Options& options) {
    options.admit = [](const Request& request) -> std::optional<Answer> {
      if (request.path == "/throw") throw std::runtime_error("an admission that throws");
      if (request.header("X-Key") != nullptr) return std::nullopt;
      return Answer{401, {}, "no key\n"};
    };
  });
  Client client = server.connect();
  client.send(get("/") + get("/", "X-Key: 1\r\n"));
  EXPECT_EQ(client.read().status, 401);  // without a body, the connection goes on
  EXPECT_EQ(client.read().status, 200);
  client.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n");
  const Client::Reply reply = client.read();
  EXPECT_EQ(reply.status, 401);
  EXPECT_EQ(reply.header("Connection"), "close");
  client.close();
  EXPECT_TRUE(
      server.answer_to(get("/throw", "Connection: close\r\n")).starts_with("HTTP/1.1 500 "));
}

TEST(Server, AsksForABodyThatIsExpected) {
  TestServer server;
  Client client = server.connect();
  client.send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: "
      "2\r\n\r\n");
  EXPECT_EQ(client.read().status, 100);
  client.send("ab");
  EXPECT_EQ(client.read().body, "ab");
}

TEST(Server, AnswersWhatHandlersDoNot) {
  TestServer server;
  Client client = server.connect();
  client.send(get("/throw") + get("/forget") + get("/"));
  EXPECT_EQ(client.read().status, 500);
  EXPECT_EQ(client.read().status, 500);
  EXPECT_EQ(client.read().status, 200);
}

TEST(Server, TakesNoAnswerThatBreaksTheProtocol) {
  TestServer server;
  Client client = server.connect();
  client.send(get("/hold"));
  const auto exchange = server.held();
  const auto respond = [&](int status, Headers headers) {
    return [&exchange, status, headers] { exchange->respond({status, headers, ""}); };
  };
  for (const Headers& headers :
       {Headers{{"X", "a\r\nY: b"}}, Headers{{"X Y", "a"}}, Headers{{"", "a"}},
        Headers{{"content-length", "3"}}, Headers{{"X", std::string("\0", 1)}}}) {
    expect_error(ErrorKind::kInternal, {"headers"}, respond(200, headers));
  }
  expect_error(ErrorKind::kInternal, {"status"}, respond(101, {}));
  EXPECT_TRUE(exchange->respond({204, {}, "no body"}));
  expect_error(ErrorKind::kInternal, {"once"}, respond(200, {}));
  EXPECT_EQ(client.read(/*to_head=*/true).status, 204);
}

TEST(Server, KeepsTimes) {
  TestServer server([](Options& options) {
    options.limits.header_time = options.limits.body_time = Milliseconds(60);
    options.limits.idle_time = Milliseconds(150);
  });
  const auto after = [](const Stopwatch& watch) { return watch.milliseconds(); };
  Stopwatch watch;
  EXPECT_TRUE(server.answer_to("GET / HT").starts_with("HTTP/1.1 408 "));
  EXPECT_GE(after(watch), 55);
  EXPECT_TRUE(server.answer_to(get("/").substr(0, 30)).starts_with("HTTP/1.1 408 "));
  EXPECT_TRUE(server.answer_to("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nab")
                  .starts_with("HTTP/1.1 408 "));
  watch.restart();
  EXPECT_EQ(server.answer_to(""), "");  // nothing was asked
  EXPECT_GE(after(watch), 140);
  // A byte now and then is no excuse.
  Client client = server.connect();
  watch.restart();
  const std::string request = get("/", "X: " + std::string(200, 'x') + "\r\n");
  for (std::size_t i = 0; i < request.size() && client.send(request.substr(i, 1)); ++i) {
    std::this_thread::sleep_for(Milliseconds(5));
  }
  EXPECT_EQ(client.read().status, 408);
  server.expect_idle();
}

TEST(Server, CountsRequestsOfAConnection) {
  TestServer server([](Options& options) { options.limits.requests_per_connection = 2; });
  Client client = server.connect();
  client.send(get("/") + get("/") + get("/"));
  EXPECT_EQ(client.read().header("Connection"), "");
  EXPECT_EQ(client.read().header("Connection"), "close");
  EXPECT_EQ(client.read_all(), "");
  EXPECT_FALSE(client.is_reset());
}

TEST(Server, CountsConnections) {
  TestServer server([](Options& options) {
    options.limits.connections = 3;
    options.limits.connections_per_address = 2;
  });
  Client first = server.connect(), second = server.connect();
  for (Client* client : {&first, &second}) {
    client->send(get("/"));
    EXPECT_EQ(client->read().status, 200);
  }
  EXPECT_TRUE(server.answer_to("").starts_with("HTTP/1.1 429 "));
  first.close();
  EXPECT_TRUE(soon([&] { return server.server().stats().connections <= 1; }));
  EXPECT_TRUE(server.answer_to(get("/", "Connection: close\r\n")).starts_with("HTTP/1.1 200 "));
  EXPECT_EQ(server.server().stats().refused, 1u);

  TestServer small([](Options& options) { options.limits.connections = 1; });
  Client only = small.connect();
  only.send(get("/"));
  EXPECT_EQ(only.read().status, 200);
  EXPECT_TRUE(small.answer_to("").starts_with("HTTP/1.1 503 "));
}

TEST(Server, TakesHostsOfThisMachineOnly) {
  TestServer server;
  const auto ask = [&](const std::string& host) {
    return server.answer_to("GET / HTTP/1.1\r\nConnection: close\r\nHost: " + host + "\r\n\r\n");
  };
  EXPECT_TRUE(ask("localhost").starts_with("HTTP/1.1 200 "));
  EXPECT_TRUE(ask(server.server().address()).starts_with("HTTP/1.1 200 "));
  EXPECT_TRUE(ask("evil.example").starts_with("HTTP/1.1 403 "));
  TestServer any([](Options& options) { options.allowed_hosts = {"*"}; });
  EXPECT_TRUE(any.answer_to("GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
  TestServer open([](Options& options) { options.host = "0.0.0.0"; });
  EXPECT_TRUE(
      open.answer_to("GET / HTTP/1.0\r\nHost: a.example\r\n\r\n").starts_with("HTTP/1.1 200 "));
}

TEST(Server, SaysWhereItCannotListen) {
  TestServer server;
  EXPECT_EQ(server.server().address(), fmt::format("127.0.0.1:{}", server.port()));
  const auto listen = [](const std::string& host, std::uint16_t port,
                         const std::string& path = "") {
    return [=] {
      TestServer([&](Options& options) {
        options.host = host;
        options.port = port;
        options.unix_path = path;
      });
    };
  };
  expect_error(ErrorKind::kInvalidRequest,
               {"cannot listen on", std::to_string(server.port()), "taken"},
               listen("127.0.0.1", server.port()));
  expect_error(ErrorKind::kInvalidRequest, {"192.0.2.1", "does not have"}, listen("192.0.2.1", 0));
  expect_error(ErrorKind::kInvalidRequest, {"no such\\nhost"}, listen("no such\nhost", 0));
  expect_error(ErrorKind::kInvalidRequest, {"107 bytes"}, listen("", 0, std::string(108, 'x')));
  expect_error(ErrorKind::kInvalidRequest, {"/no/such"}, listen("", 0, "/no/such/folder/x.sock"));
}

TEST(Server, ListensOnAUnixSocket) {
  const TestFolder folder;
  const std::string path = (folder / "x.sock").string();
  const auto at_path = [&](Options& options) { options.unix_path = path; };
  {
    TestServer server(at_path);
    EXPECT_EQ(server.server().address(), "unix:" + path);
    EXPECT_EQ(server.port(), 0);
    Client client(path);
    client.send("GET /hold HTTP/1.1\r\nHost: any.example\r\n\r\n");
    const auto exchange = server.held();
    EXPECT_EQ(exchange->request().peer, "unix");
    exchange->respond({200, {}, "x"});
    EXPECT_EQ(client.read().body, "x");
    client.send("GET /hold HTTP/1.1\r\nHost: any.example\r\n\r\n");
    const auto second = server.held();
    client.close();
    EXPECT_TRUE(soon([&] { return second->is_gone(); }));
    expect_error(ErrorKind::kInvalidRequest, {"another server listens"},
                 [&] { TestServer twice(at_path); });
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  std::ofstream(path) << "a file";
  expect_error(ErrorKind::kInvalidRequest, {"no socket"}, [&] { TestServer over(at_path); });
}

TEST(Server, GoesOnWhereAKilledOneLeftItsSocket) {
  const TestFolder folder;
  const std::string path = (folder / "x.sock").string();
  {
    TestServer killed([&](Options& options) { options.unix_path = path; });
    std::filesystem::create_hard_link(path, folder / "kept");
  }
  std::filesystem::rename(folder / "kept", path);
  TestServer server([&](Options& options) { options.unix_path = path; });
  Client client(path);
  client.send(get("/"));
  EXPECT_EQ(client.read().status, 200);
}

TEST(Server, IsReachedByIpv6) {
  std::unique_ptr<TestServer> server;
  try {
    server = std::make_unique<TestServer>([](Options& options) { options.host = "::1"; });
  } catch (const Error&) {
    GTEST_SKIP() << "this machine has no IPv6";
  }
  EXPECT_EQ(server->server().address(), fmt::format("[::1]:{}", server->port()));
}

}  // namespace
}  // namespace quantspec::net
