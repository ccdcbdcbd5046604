// An HTTP/1.1 server: requests in, answers and streams of events out. It knows no API: who is
// behind it gets an Exchange for each request.
//
//     net::Options options;
//     options.handle = [](std::shared_ptr<net::Exchange> exchange) {
//       exchange->respond({200, {{"Content-Type", "text/plain"}}, "hello\n"});
//     };
//     net::Server server(options);   // listens from here on
//     ... server.address() ...
//     server.stop(30s);
//
// Threads: one I/O thread of the server does all input and output and calls every function of
// `Options` and every callback, so none of them may block or take long: one that does stops all
// streams. A handler may keep its exchange and answer later, from any thread. Exchange and
// SseStream are thread-safe; they may outlive their server, and then do nothing.
//
// Errors: what a client does wrong is answered and logged nowhere. What `handle` throws is logged
// and answered by 500; what a callback throws is logged. Starting throws Error.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "net/message.h"

namespace quantspec::net {

using Milliseconds = std::chrono::milliseconds;

// What takes too long is noticed at most a tenth of the shortest of these times later, or 250 ms.
struct Limits {
  std::size_t header_bytes = std::size_t{16} << 10;
  std::size_t header_fields = 100;
  std::size_t body_bytes = std::size_t{8} << 20;
  std::size_t all_bodies_bytes = std::size_t{256} << 20;  // that are being read at once
  std::size_t outbox_bytes = std::size_t{64} << 10;       // of a stream
  std::size_t outbox_events = 512;
  int connections = 4096;
  int connections_per_address = 512;  // of a /64 network for IPv6; not for a Unix socket
  int requests_per_connection = 100;
  Milliseconds header_time{10'000};  // from the first byte of a request to its last header
  Milliseconds body_time{30'000};
  Milliseconds idle_time{60'000};   // between requests, and before the first one
  Milliseconds write_time{30'000};  // that a client may take nothing, or keep an outbox full
  Milliseconds ping_time{15'000};   // a comment is sent in a stream that says nothing for so long
  Milliseconds close_time{2'000};   // for a client to read an answer after which we close
};

// Why a request needs no answer any more.
enum class Gone {
  kHungUp,   // the client closed its connection, or its half of it
  kTooSlow,  // it took nothing for Limits::write_time
  kStopped,  // the server's patience ended
};

// What a stream can take.
enum class Room {
  kRoom,  // taken
  kFull,  // taken, and it should be the last until there is room again
  kGone,  // not taken: nobody reads any more
};

class Channel;

// A stream of server-sent events. One that is destroyed before finish() ends the connection in the
// middle, which the client sees.
class SseStream {
 public:
  explicit SseStream(std::shared_ptr<Channel> channel);
  ~SseStream();
  SseStream(const SseStream&) = delete;
  SseStream& operator=(const SseStream&) = delete;

  // Sends an event as it is, with its blank line: "data: {}\n\n". Never blocks. Who goes on after
  // kFull, until the outbox holds twice its limits, is cut off as too slow.
  Room send(std::string_view event);
  bool has_room() const;
  // `f` is called each time that a full outbox is half empty again. REQUIRES: called at most once.
  void on_room(std::function<void()> f);
  // All that was sent is written, and the next request of the connection is read.
  void finish();
  bool is_gone() const;

 private:
  std::shared_ptr<Channel> channel_;
};

// A request and the place for its answer. One that is destroyed without either is answered by 500.
class Exchange {
 public:
  Exchange(Request request, std::shared_ptr<Channel> channel);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const Request& request() const { return request_; }
  // Moves the body out, so that its memory is not held while the answer is made. Not thread-safe.
  std::string take_body();

  // Answers. Returns false if the client is gone. REQUIRES: neither respond() nor stream() was
  // called, the status is from 200 to 599, headers are printable and no framing.
  bool respond(Answer answer);
  // Sends the head of a stream at once: `headers`, and of what a stream of events needs those that
  // they lack. `ping`:
  // instead of Limits::ping_time; 0: never. REQUIRES: as of respond(). To HEAD only the head is
  // sent, and the stream is gone.
  std::shared_ptr<SseStream> stream(Headers headers = {}, std::optional<Milliseconds> ping = {});

  // `f` is called once if the client goes, or is cut off, before its answer or the end of its
  // stream was given; at once by the caller when that has happened. It is released when neither can
  // happen any more. It serves the stream, too. REQUIRES: called at most once.
  void on_gone(std::function<void(Gone)> f);
  bool is_gone() const;

 private:
  Request request_;
  std::shared_ptr<Channel> channel_;
};

struct Options {
  std::string host = "127.0.0.1";  // an address, or a name that has one
  std::uint16_t port = 0;          // 0: any that is free
  std::string unix_path;           // not empty: a Unix socket, instead of a host and a port
  // Names that a request's Host may have, without ports. None: those of this machine where the
  // server can be reached from nowhere else, so that no page of the web can use it by a name of its
  // own (DNS rebinding); any name elsewhere. {"*"}: any.
  std::vector<std::string> allowed_hosts;
  Limits limits;

  std::function<void(std::shared_ptr<Exchange>)> handle;
  // Looks at a request before its body is read; an answer refuses it, and the connection is closed
  // if there is a body. None: all are read.
  std::function<std::optional<Answer>(const Request&)> admit;
  // Makes the answer of what the server itself refuses. None: plain text.
  std::function<Answer(int status, std::string_view text)> refuse;
};

// Since the start, but for the first two.
struct Stats {
  std::size_t connections = 0;  // that are open
  std::size_t exchanges = 0;    // that wait for an answer, or stream
  std::uint64_t accepted = 0;   // connections
  std::uint64_t requests = 0;   // that were handled
  std::uint64_t refused = 0;    // requests and connections that the server itself refused
};

class Server {
 public:
  // Listens and serves. Raises the process's limit of open files if it is less than the connections
  // need. Throws kInvalidRequest if it cannot listen there.
  explicit Server(Options options);
  ~Server();  // stop(0)
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Where it listens: "127.0.0.1:8080", "[::1]:8080" or "unix:/run/x.sock".
  const std::string& address() const;
  std::uint16_t port() const;  // 0 of a Unix socket

  // Listens no longer, closes connections that wait for a request, and lets exchanges end; those
  // that have not after `patience` are gone (kStopped). Returns when nothing is open. A second call
  // waits with the first, and may shorten its patience. REQUIRES: not called on the I/O thread.
  void stop(Milliseconds patience);

  Stats stats() const;  // thread-safe

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quantspec::net
