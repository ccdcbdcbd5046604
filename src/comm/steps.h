// Communicators that go through steps, in each of which ranks tell each other some bytes: how calls
// are cut into steps, what all must do alike, and what is said where they do not. How bytes get
// from one to another is the others' (shared_ranks.cc, network_ranks.cc). Private to comm/.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "comm/comm.h"

namespace quantspec {

enum class Call : std::uint32_t { kReduce = 1, kGather, kAllToAll, kBroadcast, kScatter, kBarrier };
// In it all ranks do the same.
struct Step {
  Call call;
  std::int32_t ranks;   // those of a group; of kBroadcast and kScatter the root
  std::uint64_t bytes;  // that a rank gives
  bool operator==(const Step&) const = default;
};

class RanksInSteps : public Communicator {
 public:
  using Communicator::reduce_add;
  void reduce_add(std::span<float> x, std::span<const float> partial, int alike) final;
  void all_gather(std::span<std::byte> out, std::span<const std::byte> own) final;
  void all_to_all(std::span<std::byte> out, std::span<const std::byte> own, int group) final;
  void broadcast(std::span<std::byte> data, int root) final;
  void scatter(std::span<std::byte> out, std::span<const std::byte> pieces, int root) final;
  void barrier() final;
  void wait_for_all() final;

 protected:
  static constexpr int kNobody = -1, kAll = -2;         // where a rank is named
  static constexpr std::chrono::milliseconds kNap{50};  // after which one looks for the others' end

  // most: bytes that a rank gives in a step.
  RanksInSteps(std::size_t most, std::chrono::milliseconds patience)
      : most_(most), patience_(patience) {}

  // Of every step.ranks ranks the first gives the same to all. Then given() has what a rank gave,
  // of those who did, until the next step.
  virtual void tell_all(const Step& step, std::span<const std::byte> own) = 0;
  virtual const std::byte* given(int rank) const = 0;
  // As all_to_all(), of what is from `begin` on in each piece.
  virtual void tell_each(const Step& step, std::span<std::byte> out, std::span<const std::byte> own,
                         std::size_t begin) = 0;
  // The root gives each the bytes of `out` there, from pieces + rank * stride: of stride 0 all get
  // the same. What is the root's own it has.
  virtual void tell_from_root(const Step& step, std::span<std::byte> out, const std::byte* pieces,
                              std::size_t stride) = 0;
  // Nothing is told. slow: for whom there is no patience while it lives, one or all.
  virtual void meet(const Step& step, int slow) = 0;
  // As give_up(), and throws; but where others have given up before, their reason counts.
  virtual void give_up_and_throw(const std::string& why) = 0;
  [[noreturn]] void stop(const std::string& why);

  [[noreturn]] void stop_unlike(int other);
  [[noreturn]] void stop_without(int other, bool has_left);
  // Where that time, in milliseconds, was too long to wait for another.
  bool is_late(double waited) const { return waited > static_cast<double>(patience_.count()); }
  [[noreturn]] void stop_late(int other);
  // Why ranks have given up, to the caller.
  [[noreturn]] static void fail_given_up(const char* why);
  // Milliseconds of a nap in which another could have come: longer ones are of a machine, or a job,
  // that stood still.
  static double counted(const Stopwatch& nap);

 private:
  std::size_t most_;
  std::chrono::milliseconds patience_;
};

}  // namespace quantspec
