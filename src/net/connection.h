// One connection: reads a request, has it handled, writes the answer, and so on until it is closed.
// Of the I/O thread alone.
//
// NOTE: g++ 12 destroys a braced argument of a coroutine that is awaited twice. So coroutines here
// take references and plain values, and what they write is made by functions that are none.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "net/answer_text.h"
#include "net/channel.h"
#include "net/hub.h"
#include "net/request_reader.h"

namespace quantspec::net {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;

  // REQUIRES: the hub outlives it. `key`: client_key() of the peer.
  Connection(Hub& hub, Socket socket, std::string peer, std::string key);

  // Serves until it is closed; then it has left the hub.
  void serve();
  // Answers that, without reading anything, and closes.
  void serve_refusal(int status, std::string text);

  void sweep(Clock::time_point now);  // ends what took too long
  void retire();                      // closes when no request is under way
  void cut(Gone why);                 // closes, whatever is under way

  const std::string& key() const { return key_; }
  bool is_refused() const { return is_refused_; }
  std::size_t index = 0;  // in the hub's list

 private:
  enum class Phase { kIdle, kReading, kHandling, kAnswering, kClosing };
  enum class Read {  // kAnswered: text_ is the answer
    kRequest,
    kAnswered,
    kEnd
  };
  template <typename T = void>
  using Awaitable = boost::asio::awaitable<T>;

  void spawn(Awaitable<> work);
  Awaitable<> run();
  Awaitable<> run_refusal();
  Awaitable<Read> read_request();
  Awaitable<bool> handle_request();
  Awaitable<bool> write_output();
  Awaitable<bool> write_text();
  Awaitable<> wait_for_output();
  Awaitable<> close_gently();

  // They make text_, which is written next.
  void answer(const Answer& answer);
  void refuse(int status, std::string text);
  bool admit();
  struct Piece {
    bool is_last = false;
    bool is_broken = false;
  };
  Piece next_piece();
  void add_events(const Channel::Output& output);

  void skip_request();
  bool count_body(std::size_t n);
  void uncount_body() { hub_.body_bytes -= std::exchange(counted_, 0); }
  void call_handler();
  Framing framing();
  void enter(Phase phase, Milliseconds time);
  void expire();
  void wake();
  void watch();
  void look_at_peer();
  void hang_up();

  Hub& hub_;
  const Limits& limits_;
  Socket socket_;
  const std::string key_;
  RequestReader reader_;
  std::string text_;                  // that is written
  std::shared_ptr<Channel> channel_;  // of the request that is handled
  boost::asio::steady_timer output_comes_;
  std::size_t counted_ = 0;  // bytes in Hub::body_bytes
  Phase phase_ = Phase::kIdle;
  Clock::time_point deadline_{};  // of the phase; kHandling has none
  Clock::time_point progress_{};  // when the client last took something
  bool is_refused_ = false;
  bool has_expired_ = false;
  bool is_cut_ = false;
  bool is_writing_ = false;
  bool is_awake_ = false;      // there may be output
  bool is_watching_ = false;   // for the client to hang up
  bool is_pipelined_ = false;  // its next request hides whether it has
  bool is_stream_ = false;
  bool is_ping_due_ = false;
  bool is_head_ = false;  // the method is HEAD
  bool closes_ = false;   // after the answer
  int version_ = 11;
};

}  // namespace quantspec::net
