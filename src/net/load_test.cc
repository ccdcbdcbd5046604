// Many at once, and what they leave behind.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "net/test_support.h"

namespace quantspec::net {
namespace {

double cpu_seconds(int of) {
  rusage usage{};
  getrusage(of, &usage);
  const auto seconds = [](timeval time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double resident_mb() {
  std::ifstream file("/proc/self/statm");
  double pages = 0;
  file >> pages >> pages;
  return pages * static_cast<double>(getpagesize()) / 1e6;
}

// Many streams, each fed by one of four threads, while health is asked.
void stream_at_once(int num_streams, int num_events) {
  TestServer server([&](Options& options) {
    options.limits.connections_per_address = options.limits.connections = num_streams + 10;
  });
  std::vector<Client> clients;
  std::vector<std::shared_ptr<SseStream>> streams;
  for (int i = 0; i < num_streams; ++i) {
    clients.push_back(server.connect());
    clients.back().send(get("/stream"));
    streams.push_back(server.streaming());
  }
  std::vector<std::thread> senders;
  for (int t = 0; t < 4; ++t) {
    senders.emplace_back([&, t] {
      for (int e = 0; e < num_events; ++e) {
        for (std::size_t i = t; i < streams.size(); i += 4) {
          EXPECT_EQ(streams[i]->send(fmt::format("data: {} {}\n\n", i, e)), Room::kRoom);
        }
      }
      for (std::size_t i = t; i < streams.size(); i += 4) streams[i]->finish();
    });
  }
  for (int i = 0; i < 20; ++i) {
    Client health = server.connect();
    health.send(get("/"));
    EXPECT_EQ(health.read().status, 200);
  }
  for (std::size_t i = 0; i < clients.size(); ++i) {
    std::string expected;
    for (int e = 0; e < num_events; ++e) expected += fmt::format("data: {} {}\n\n", i, e);
    EXPECT_EQ(clients[i].read().body, expected);
  }
  for (std::thread& sender : senders) sender.join();
  clients.clear();
  server.expect_idle();
}

TEST(Load, TwoHundredAtOnce) { stream_at_once(200, 50); }
TEST(Load, DISABLED_ThousandAtOnce) { stream_at_once(1000, 200); }

// What 1,000 streams cost, with clients of another process. Prints it.
TEST(Load, DISABLED_ThousandCost) {
  constexpr int kStreams = 1000;
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    std::uint16_t port = 0;
    if (read(pipe_ends[0], &port, sizeof port) != sizeof port) _exit(1);
    std::vector<Client> clients;
    for (int i = 0; i < kStreams; ++i) {
      clients.emplace_back(port);
      clients.back().send(get("/stream"));
    }
    for (Client& client : clients) client.read_all();
    _exit(0);
  }
  TestServer server([](Options& options) { options.limits.connections_per_address = kStreams; });
  const double before = resident_mb();
  const std::uint16_t port = server.port();
  ASSERT_EQ(write(pipe_ends[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  std::vector<std::shared_ptr<SseStream>> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(server.streaming());
  std::printf("%d streams: %.1f MB\n", kStreams, resident_mb() - before);
  const std::string event = "data: " + std::string(250, 'x') + "\n\n";
  for (const int in_a_row : {1, 4}) {
    constexpr int kRounds = 100;
    const double process = cpu_seconds(RUSAGE_SELF), sender = cpu_seconds(RUSAGE_THREAD);
    const Stopwatch watch;
    for (int round = 0; round < kRounds; ++round) {
      for (const auto& stream : streams) {
        for (int i = 0; i < in_a_row; ++i) EXPECT_NE(stream->send(event), Room::kGone);
      }
      std::this_thread::sleep_for(Milliseconds(20));
    }
    const double sent = cpu_seconds(RUSAGE_THREAD) - sender;
    const double all = cpu_seconds(RUSAGE_SELF) - process;
    constexpr double kSends = 1e-6 * kRounds * kStreams;
    std::printf(
        "%d events in a row: %.1f us of the I/O thread and %.1f us of the sender, for each row; "
        "%.1f s\n",
        in_a_row, (all - sent) / kSends, sent / kSends, watch.seconds());
  }
  std::printf("after them: %.1f MB\n", resident_mb() - before);
  streams.clear();
  server.expect_idle();
  std::printf("without streams: %.1f MB\n", resident_mb() - before);
}

// Where no file can be opened for a connection, it waits, and the server does not spin.
TEST(Load, GoesOnWhenThereAreFilesAgain) {
  TestServer server;
  Client first = server.connect();
  first.send(get("/"));
  EXPECT_EQ(first.read().status, 200);
  rlimit usual{};
  getrlimit(RLIMIT_NOFILE, &usual);
  const int next = dup(0);  // the lowest number that is free
  close(next);
  const rlimit few{static_cast<rlim_t>(next) + 1, usual.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  Client second = server.connect();
  second.send(get("/"));
  const double before = cpu_seconds(RUSAGE_SELF);
  std::this_thread::sleep_for(Milliseconds(300));
  EXPECT_LT(cpu_seconds(RUSAGE_SELF) - before, 0.1);
  first.send(get("/"));
  EXPECT_EQ(first.read().status, 200);
  EXPECT_EQ(server.server().stats().accepted, 1u);
  setrlimit(RLIMIT_NOFILE, &usual);
  EXPECT_EQ(second.read().status, 200);
}

// Clients that go at any byte of a request or an answer leave nothing behind.
TEST(Load, AbortsLeaveNothingBehind) {
  TestServer server;
  {
    Client client = server.connect();
    client.send(get("/"));
    client.read();
  }
  server.expect_idle();
  const int files = open_files();
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    Client client = server.connect();
    const char* paths[] = {"/", "/stream", "/echo", "/forget", "/none"};
    const std::string request = random() % 2 == 0
                                    ? post(paths[random() % 5], std::string(random() % 3000, 'x'))
                                    : get(paths[random() % 5]);
    client.send(request.substr(0, random() % (request.size() + 1)));
    if (random() % 4 == 0) client.send(request);
    if (random() % 8 == 0) client.end();
    if (random() % 2 == 0) client.reset();
  }
  server.expect_idle();
  EXPECT_TRUE(soon([&] { return open_files() == files; }));
}

}  // namespace
}  // namespace quantspec::net
