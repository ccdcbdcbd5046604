#include "net/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <ctime>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace quantspec::net {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::string_view kPing = ":\n\n";
constexpr std::size_t kKept = 4 << 10;  // bytes of memory for the next text

auto into(error_code& error) { return asio::redirect_error(asio::use_awaitable, error); }

}  // namespace

Connection::Connection(Hub& hub, Socket socket, std::string peer, std::string key)
    : hub_(hub),
      limits_(hub.options.limits),
      socket_(std::move(socket)),
      key_(std::move(key)),
      reader_(limits_, hub.allowed_hosts, std::move(peer)),
      output_comes_(socket_.get_executor()) {}

// --- what other parts of the I/O thread call -----------------------------------------------------

void Connection::spawn(Awaitable<> work) {
  asio::co_spawn(socket_.get_executor(), std::move(work),
                 [self = shared_from_this()](std::exception_ptr thrown) {
                   if (thrown) {
                     try {
                       std::rethrow_exception(thrown);
                     } catch (...) {
                       log_caught("a connection");
                     }
                   }
                   self->cut(Gone::kHungUp);
                   if (self->channel_ != nullptr) self->channel_->close();
                   self->channel_.reset();
                   error_code ignored;
                   self->socket_.close(ignored);
                   self->uncount_body();
                   self->hub_.remove(*self);
                 });
}

void Connection::serve() { spawn(run()); }

void Connection::serve_refusal(int status, std::string text) {
  is_refused_ = true;
  ++hub_.num_refused;
  refuse(status, std::move(text));
  spawn(run_refusal());
}

void Connection::sweep(Clock::time_point now) {
  const bool is_stuck = is_writing_ && now - progress_ >= limits_.write_time;
  if (phase_ == Phase::kHandling && channel_ != nullptr) {
    const auto full_since = channel_->full_since();
    if (is_stuck || (full_since && now - *full_since >= limits_.write_time)) {
      cut(Gone::kTooSlow);
    } else if (is_pipelined_) {
      look_at_peer();
    } else if (is_stream_ && !is_writing_ && channel_->ping().count() > 0 &&
               now - progress_ >= channel_->ping()) {
      is_ping_due_ = true;
      wake();
    }
  } else if (is_stuck || (phase_ == Phase::kAnswering && now >= deadline_)) {
    cut(Gone::kTooSlow);
  } else if (now >= deadline_) {
    expire();
  }
}

void Connection::retire() {
  if (phase_ == Phase::kIdle) expire();
}

void Connection::cut(Gone why) {
  if (std::exchange(is_cut_, true)) return;
  if (channel_ != nullptr) channel_->cut(why);
  error_code ignored;
  socket_.cancel(ignored);
  wake();
}

void Connection::expire() {
  has_expired_ = true;
  error_code ignored;
  socket_.cancel(ignored);
}

void Connection::enter(Phase phase, Milliseconds time) {
  phase_ = phase;
  deadline_ = Clock::now() + time;
}

// --- hanging up ----------------------------------------------------------------------------------

// Waits for bytes, or the end of them, without reading any: the next request is read in its turn.
void Connection::watch() {
  if (is_watching_) return;
  is_watching_ = true;
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](error_code error) {
    self->is_watching_ = false;
    if (!error && self->phase_ == Phase::kHandling) self->look_at_peer();
  });
}

void Connection::look_at_peer() {
  pollfd events{socket_.native_handle(), POLLRDHUP, 0};
  char byte;
  if (poll(&events, 1, 0) > 0 && (events.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
    hang_up();
  } else if (recv(events.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) {
    is_pipelined_ = true;  // looked at again by sweep(), since waiting would end at once
  } else {
    watch();
  }
}

void Connection::hang_up() {
  if (!channel_->is_given()) cut(Gone::kHungUp);
}

// --- requests ------------------------------------------------------------------------------------

Connection::Awaitable<> Connection::run_refusal() {
  const bool goes_on = co_await write_text();
  if (goes_on) co_await close_gently();
}

Connection::Awaitable<> Connection::run() {
  int left = limits_.requests_per_connection;
  for (;;) {
    const Read read = co_await read_request();
    if (read == Read::kEnd) co_return;
    bool goes_on = false;
    if (read == Read::kRequest) {
      if (--left <= 0) closes_ = true;
      goes_on = co_await handle_request();
    } else {
      goes_on = co_await write_text();
    }
    if (!goes_on) co_return;
    if (closes_ || hub_.is_stopping) break;
  }
  co_await close_gently();
}

Connection::Awaitable<Connection::Read> Connection::read_request() {
  enter(Phase::kIdle, limits_.idle_time);
  is_head_ = false;  // until it is known: what is refused before has a body
  if (hub_.is_stopping) co_return Read::kEnd;
  for (;;) {
    const RequestReader::State state = reader_.advance();
    if (state == RequestReader::State::kDone) co_return Read::kRequest;
    if (state == RequestReader::State::kRefused) {
      refuse(reader_.refusal().status, reader_.refusal().text);
      co_return Read::kAnswered;
    }
    if (state == RequestReader::State::kHead) {
      if (!admit()) co_return Read::kAnswered;
      enter(Phase::kReading, limits_.body_time);
      if (!reader_.expects_continue()) continue;
      text_ = kContinue;
      const bool goes_on = co_await write_text();
      if (!goes_on) co_return Read::kEnd;
      continue;
    }
    if (phase_ == Phase::kIdle && reader_.has_begun()) {
      enter(Phase::kReading, limits_.header_time);
    }
    error_code error;
    const auto space = reader_.space();
    const std::size_t n =
        co_await socket_.async_read_some(asio::buffer(space.data(), space.size()), into(error));
    if (is_cut_ || (error && !has_expired_)) co_return Read::kEnd;
    if (std::exchange(has_expired_, false)) {
      if (phase_ == Phase::kIdle && n == 0) co_return Read::kEnd;
      if (phase_ == Phase::kReading) {
        refuse(408, "the request took too long to come");
        co_return Read::kAnswered;
      }
    }
    reader_.commit(n);
    if (reader_.is_in_body() && !count_body(n)) {
      refuse(503, "the server reads too many bodies at once");
      co_return Read::kAnswered;
    }
  }
}

bool Connection::count_body(std::size_t n) {
  counted_ += n;
  hub_.body_bytes += n;
  return hub_.body_bytes <= limits_.all_bodies_bytes;
}

// Whether the request may have its body read.
bool Connection::admit() {
  closes_ = !reader_.keeps_alive();
  version_ = reader_.version();
  is_head_ = reader_.request().method == "HEAD";
  if (!hub_.options.admit) return true;
  std::optional<Answer> refusal;
  try {
    refusal = hub_.options.admit(reader_.request());
    if (refusal) check(are_sendable(refusal->headers), "headers of an answer are printable");
  } catch (...) {
    log_caught("admitting a request");
    refusal = hub_.refusal({500, "the server failed"});
  }
  if (!refusal) return true;
  closes_ = closes_ || reader_.has_body();
  if (!closes_) skip_request();
  answer(*refusal);
  return false;
}

// Of a request that has no body.
void Connection::skip_request() {
  reader_.advance();
  reader_.take();
}

Connection::Awaitable<bool> Connection::handle_request() {
  struct Count {
    explicit Count(std::atomic<std::size_t>& of) : of(of) { ++of; }
    ~Count() { --of; }
    std::atomic<std::size_t>& of;
  } const count(hub_.counters.exchanges);
  ++hub_.counters.requests;
  channel_ = std::make_shared<Channel>(limits_, [loop = hub_.loop, weak = weak_from_this()] {
    loop->post([weak] {
      if (const auto self = weak.lock()) self->wake();
    });
  });
  phase_ = Phase::kHandling;
  call_handler();
  uncount_body();
  reader_.release();
  if (!channel_->is_given()) watch();
  const bool is_whole = co_await write_output();
  is_stream_ = is_pipelined_ = is_ping_due_ = false;
  enter(Phase::kClosing, limits_.close_time);  // unless there is a next request
  if (!is_whole) cut(Gone::kHungUp);
  if (!channel_->is_given()) channel_->cut(Gone::kHungUp);  // a stream that nobody reads
  channel_->close();
  channel_.reset();
  co_return is_whole;
}

void Connection::call_handler() {
  try {
    hub_.options.handle(std::make_shared<Exchange>(reader_.take(), channel_));
  } catch (...) {
    log_caught("handling a request");
    channel_->drop_exchange();
  }
}

// --- answers -------------------------------------------------------------------------------------

Connection::Awaitable<bool> Connection::write_output() {
  for (;;) {
    const Piece piece = next_piece();
    if (is_cut_) co_return false;
    if (text_.empty()) {
      if (piece.is_broken) co_return false;
      if (piece.is_last) co_return true;
      co_await wait_for_output();
      continue;
    }
    const bool goes_on = co_await write_text();
    if (!goes_on) co_return false;
    channel_->written();
    if (piece.is_last || piece.is_broken) co_return piece.is_last;
  }
}

Connection::Piece Connection::next_piece() {
  const Channel::Output output = channel_->take();
  if (is_cut_) return {};
  if (output.answer) {
    answer(*output.answer);
    return {.is_last = true};
  }
  if (output.is_forgotten) {
    answer(hub_.refusal({500, "the request was not answered"}));
    return {.is_last = true};
  }
  if (output.head) {
    is_stream_ = true;
    closes_ = closes_ || version_ < 11;
    text_ = stream_head(*output.head, framing(), std::time(nullptr));
    if (is_head_) return {.is_last = true};
  }
  add_events(output);
  return {.is_last = output.is_last, .is_broken = output.is_broken};
}

void Connection::add_events(const Channel::Output& output) {
  const bool is_ping_due = std::exchange(is_ping_due_, false) && !output.is_last;
  const std::string_view events = !output.events.empty() || !is_ping_due ? output.events : kPing;
  if (version_ < 11) {
    text_ += events;
    return;
  }
  if (!events.empty()) text_ += chunk(events);
  if (output.is_last) text_ += kLastChunk;
}

void Connection::refuse(int status, std::string text) {
  ++hub_.counters.refused;
  closes_ = true;
  answer(hub_.refusal({status, std::move(text)}));
}

void Connection::answer(const Answer& answer) {
  uncount_body();
  text_ = answer_text(answer, framing(), std::time(nullptr));
  // A client that takes a byte at a time makes progress, too: it has a second for each KiB.
  enter(Phase::kAnswering, limits_.write_time + std::chrono::seconds(text_.size() >> 10));
}

Connection::Awaitable<bool> Connection::write_text() {
  is_writing_ = true;
  progress_ = Clock::now();
  std::size_t written = 0;
  while (written < text_.size() && !is_cut_) {
    error_code error;
    const std::size_t n = co_await socket_.async_write_some(
        asio::buffer(text_.data() + written, text_.size() - written), into(error));
    if (error) break;
    progress_ = Clock::now();
    written += n;
  }
  is_writing_ = false;
  const bool is_whole = written == text_.size() && !is_cut_;
  text_.clear();
  if (text_.capacity() > kKept) text_.shrink_to_fit();
  co_return is_whole;
}

Connection::Awaitable<> Connection::wait_for_output() {
  error_code ignored;
  if (!is_awake_) {
    output_comes_.expires_at(Clock::time_point::max());
    co_await output_comes_.async_wait(into(ignored));
  }
  is_awake_ = false;
}

void Connection::wake() {
  if (channel_ != nullptr && channel_->overflows()) cut(Gone::kTooSlow);
  is_awake_ = true;
  output_comes_.cancel();
}

Framing Connection::framing() {
  closes_ = closes_ || hub_.is_stopping;
  return {version_, closes_, is_head_};
}

// Lets the client read the answer before it closes: to close while bytes of it are unread would
// reset the connection, and the answer would be lost.
Connection::Awaitable<> Connection::close_gently() {
  enter(Phase::kClosing, limits_.close_time);
  error_code error;
  socket_.shutdown(Socket::shutdown_send, error);
  while (!error && !has_expired_ && !is_cut_) {
    co_await socket_.async_read_some(asio::buffer(hub_.discarded), into(error));
  }
}

}  // namespace quantspec::net
