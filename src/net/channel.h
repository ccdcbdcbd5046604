// Between an exchange, which any thread may hold, and the connection that writes its answer. The
// half that exchanges use is thread-safe and never blocks for longer than a copy; the other is the
// I/O thread's. Callbacks are called, and released, without the lock.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "net/net.h"

namespace quantspec::net {

using Clock = std::chrono::steady_clock;

class Channel {
 public:
  // `wake` has the connection call take(), some time later; it must be thread-safe. REQUIRES:
  // limits outlive the connection.
  Channel(const Limits& limits, std::function<void()> wake);

  // --- any thread

  bool respond(Answer answer);
  bool begin_stream(Headers headers, Milliseconds ping);
  Room send(std::string_view event);
  void finish();
  void drop_exchange();  // an open one is answered by 500
  void drop_stream();    // an unfinished one breaks
  bool has_room() const;
  bool is_gone() const;
  void on_room(std::function<void()> f);
  void on_gone(std::function<void(Gone)> f);

  // --- the I/O thread

  struct Output {
    std::optional<Answer> answer;
    std::optional<Headers> head;  // of a stream
    std::string events;
    bool is_last = false;       // the stream has been finished
    bool is_forgotten = false;  // there is no answer, and will be none
    bool is_broken = false;     // the stream will not be finished
  };
  Output take();   // what is new
  void written();  // all that was taken is
  // The client is gone, unless all was given. Returns whether it had to be said.
  bool cut(Gone why);
  void close();            // the connection is done with it
  bool is_given() const;   // the answer, or the end of the stream
  bool overflows() const;  // the stream's sender did not heed kFull
  Milliseconds ping() const;
  std::optional<Clock::time_point> full_since() const;

 private:
  enum class Phase { kOpen, kAnswered, kForgotten, kStreaming, kFinished, kBroken };
  bool is_given_locked() const;
  void wake_locked();

  mutable std::mutex mutex_;
  const std::size_t outbox_bytes_, outbox_events_;
  std::function<void()> wake_;  // none: the connection is done
  bool is_awake_ = false;
  Phase phase_ = Phase::kOpen;
  std::optional<Gone> gone_;
  std::optional<Answer> answer_;
  std::optional<Headers> head_;
  Milliseconds ping_;
  std::string pending_;
  std::size_t bytes_ = 0, events_ = 0;  // pending and taken
  std::size_t taken_bytes_ = 0, taken_events_ = 0;
  std::size_t over_bytes_ = 0, over_events_ = 0;  // sent since it is full
  std::optional<Clock::time_point> full_since_;
  bool overflows_ = false;
  std::function<void()> on_room_;
  std::function<void(Gone)> on_gone_;
};

}  // namespace quantspec::net
