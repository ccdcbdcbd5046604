// Turns at a model by which several loops of requests compute, one at a time, in the order in which
// they are asked for. No two loops may be inside a chunk of a prompt (Model::Prefill): who gets a
// turn for another loop steps the one that is until it is not, and gets what that
// throws. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace quantspec {

class RequestLoop;

class Turns {
 public:
  // Holds a turn, in which `loop` may be stepped; with nullptr for what reads no prompt.
  class Turn {
   public:
    Turn(Turns& turns, RequestLoop* loop);
    ~Turn() { end(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    void end();

    Turns& turns_;
    RequestLoop* loop_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t tickets_ = 0;  // that were given out
  std::uint64_t served_ = 0;
  RequestLoop* inside_chunk_ = nullptr;  // for whose turn it is
};

}  // namespace quantspec
