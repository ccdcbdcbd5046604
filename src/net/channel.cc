#include "net/channel.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace quantspec::net {

namespace {

// Calls what may throw, where nobody could catch it.
template <typename F, typename... Args>
void call(const F& f, const Args&... args) {
  if (!f) return;
  try {
    f(args...);
  } catch (...) {
    log_caught("a callback of an exchange");
  }
}

}  // namespace

Channel::Channel(const Limits& limits, std::function<void()> wake)
    : outbox_bytes_(limits.outbox_bytes),
      outbox_events_(limits.outbox_events),
      wake_(std::move(wake)),
      ping_(limits.ping_time) {}

void Channel::wake_locked() {
  if (wake_ && !std::exchange(is_awake_, true)) wake_();
}

bool Channel::respond(Answer answer) {
  std::lock_guard lock(mutex_);
  check(phase_ == Phase::kOpen, "an exchange is answered once");
  phase_ = Phase::kAnswered;
  if (gone_) return false;
  answer_ = std::move(answer);
  wake_locked();
  return true;
}

bool Channel::begin_stream(Headers headers, Milliseconds ping) {
  std::lock_guard lock(mutex_);
  check(phase_ == Phase::kOpen, "an exchange is answered once");
  phase_ = Phase::kStreaming;
  if (gone_) return false;
  head_ = std::move(headers);
  ping_ = ping;
  wake_locked();
  return true;
}

Room Channel::send(std::string_view event) {
  std::lock_guard lock(mutex_);
  if (gone_ || phase_ != Phase::kStreaming || overflows_) return Room::kGone;
  if (full_since_) {
    over_bytes_ += event.size();
    ++over_events_;
    if (over_bytes_ > outbox_bytes_ || over_events_ > outbox_events_) {
      overflows_ = true;
      is_awake_ = false;  // who writes takes nothing meanwhile
      wake_locked();
      return Room::kGone;
    }
  }
  pending_ += event;
  bytes_ += event.size();
  ++events_;
  if (!full_since_ && (bytes_ >= outbox_bytes_ || events_ >= outbox_events_)) {
    full_since_ = Clock::now();
    over_bytes_ = over_events_ = 0;
  }
  wake_locked();
  return full_since_ ? Room::kFull : Room::kRoom;
}

void Channel::finish() {
  std::lock_guard lock(mutex_);
  if (phase_ != Phase::kStreaming) return;
  phase_ = Phase::kFinished;
  wake_locked();
}

void Channel::drop_exchange() {
  std::lock_guard lock(mutex_);
  if (phase_ != Phase::kOpen) return;
  phase_ = Phase::kForgotten;
  wake_locked();
}

void Channel::drop_stream() {
  std::lock_guard lock(mutex_);
  if (phase_ != Phase::kStreaming) return;
  phase_ = Phase::kBroken;
  wake_locked();
}

bool Channel::has_room() const {
  std::lock_guard lock(mutex_);
  return !full_since_ && !gone_ && phase_ == Phase::kStreaming;
}

bool Channel::is_gone() const {
  std::lock_guard lock(mutex_);
  return gone_.has_value();
}

void Channel::on_room(std::function<void()> f) {
  std::lock_guard lock(mutex_);
  check(on_room_ == nullptr, "on_room() is called once");
  if (wake_) on_room_ = std::move(f);
}

void Channel::on_gone(std::function<void(Gone)> f) {
  std::optional<Gone> gone;
  {
    std::lock_guard lock(mutex_);
    check(on_gone_ == nullptr, "on_gone() is called once");
    gone = gone_;
    if (!gone && wake_) on_gone_.swap(f);
  }
  if (gone) call(f, *gone);
}

Channel::Output Channel::take() {
  std::lock_guard lock(mutex_);
  is_awake_ = false;
  Output output;
  output.answer = std::exchange(answer_, std::nullopt);
  output.head = std::exchange(head_, std::nullopt);
  output.events = std::exchange(pending_, {});
  taken_bytes_ = bytes_;
  taken_events_ = events_;
  output.is_last = phase_ == Phase::kFinished;
  output.is_forgotten = phase_ == Phase::kForgotten;
  output.is_broken = phase_ == Phase::kBroken;
  return output;
}

void Channel::written() {
  std::function<void()> f;
  {
    std::lock_guard lock(mutex_);
    bytes_ -= std::exchange(taken_bytes_, 0);
    events_ -= std::exchange(taken_events_, 0);
    if (!full_since_ || bytes_ > outbox_bytes_ / 2 || events_ > outbox_events_ / 2) return;
    full_since_.reset();
    f = on_room_;
  }
  call(f);
}

bool Channel::is_given_locked() const {
  return phase_ != Phase::kOpen && phase_ != Phase::kStreaming;
}

bool Channel::is_given() const {
  std::lock_guard lock(mutex_);
  return is_given_locked();
}

bool Channel::cut(Gone why) {
  std::function<void(Gone)> f;
  {
    std::lock_guard lock(mutex_);
    if (gone_ || !wake_) return false;
    if (!is_given_locked()) f = std::exchange(on_gone_, nullptr);
    gone_ = why;
  }
  call(f, why);
  return true;
}

void Channel::close() {
  std::function<void()> wake, on_room;
  std::function<void(Gone)> on_gone;
  std::lock_guard lock(mutex_);
  wake.swap(wake_);
  on_room.swap(on_room_);
  on_gone.swap(on_gone_);
}

bool Channel::overflows() const {
  std::lock_guard lock(mutex_);
  return overflows_;
}

Milliseconds Channel::ping() const {
  std::lock_guard lock(mutex_);
  return ping_;
}

std::optional<Clock::time_point> Channel::full_since() const {
  std::lock_guard lock(mutex_);
  return full_since_;
}

}  // namespace quantspec::net
