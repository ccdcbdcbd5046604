#include "engine/turns.h"

#include "engine/request_loop.h"

namespace quantspec {

Turns::Turn::Turn(Turns& turns, RequestLoop* loop) : turns_(turns), loop_(loop) {
  {
    std::unique_lock lock(turns.mutex_);
    const std::uint64_t ticket = turns.tickets_++;
    turns.changed_.wait(lock, [&] { return turns.served_ == ticket; });
  }
  RequestLoop*& inside = turns.inside_chunk_;
  if (loop == nullptr || inside == loop) return;
  try {
    while (inside != nullptr) {
      inside->step();
      if (!inside->inside_chunk()) inside = nullptr;
    }
  } catch (...) {
    loop_ = inside;
    end();
    throw;
  }
}

void Turns::Turn::end() {
  if (loop_ != nullptr) turns_.inside_chunk_ = loop_->inside_chunk() ? loop_ : nullptr;
  {
    const std::lock_guard lock(turns_.mutex_);
    ++turns_.served_;
  }
  turns_.changed_.notify_all();
}

}  // namespace quantspec
