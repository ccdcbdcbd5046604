// How the ranks of one model tell each other what they computed. Each has a part of the weights, or
// of the cache, and all go through the same passes in step.
//
// Every function is called by all ranks, in the same order and with the same sizes. What comes out
// is a function of what was given, to the bit: sums are added as a balanced tree over the ranks,
// ((0 + 1) + (2 + 3)), never as they come.
//
// A rank that fails calls give_up(). Then, and where a rank's process ended, a rank left, or one
// did not come within the patience, every call of every rank throws Error(kDevice) from then on,
// with the message of the first, or, over a network, of one of the first. So nothing hangs, and
// everybody can tell why. A root may take its time, as long as it lives: it may have nothing to
// say.
//
// A communicator is of one thread at a time.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace quantspec {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // How many of them are on this machine, this one included.
  virtual int num_here() const { return size(); }

  // x += the sum of all ranks' partials; of every `alike` ranks that follow each other, who gave
  // the same, one counts. REQUIRES: as long as x, and apart from it; size() is a multiple of alike.
  virtual void reduce_add(std::span<float> x, std::span<const float> partial, int alike) = 0;
  void reduce_add(std::span<float> x, std::span<const float> partial) { reduce_add(x, partial, 1); }
  // out = what all ranks gave, by rank. REQUIRES: out is size() times as long as own.
  virtual void all_gather(std::span<std::byte> out, std::span<const std::byte> own) = 0;
  // Of every `group` ranks that follow each other, a group by itself: each gives each of them a
  // piece, all as long. own: the pieces by who gets them; out: by who gave them. REQUIRES: groups
  // are equal, out is as long as own.
  virtual void all_to_all(std::span<std::byte> out, std::span<const std::byte> own, int group) = 0;
  // Of the root's data all get a copy.
  virtual void broadcast(std::span<std::byte> data, int root) = 0;
  // Of the root's pieces, by rank, each gets its own. REQUIRES: the root gives size() times as much
  // as out; what others give is not looked at.
  virtual void scatter(std::span<std::byte> out, std::span<const std::byte> pieces, int root) = 0;
  // Returns when all have come.
  virtual void barrier() = 0;
  // The same, however long they take, as long as they live.
  virtual void wait_for_all() = 0;

  // For a rank that cannot go on: one line that says why, of which the first one counts. From any
  // thread.
  virtual void give_up(std::string_view why) noexcept = 0;
};

// The only rank: nothing is told to anybody.
std::unique_ptr<Communicator> only_rank();

// Ranks that share memory: threads, or processes. Made before they begin; each rank joins once.
// Thread-safe.
class SharedRanks {
 public:
  static constexpr std::chrono::milliseconds kPatience{8000};

  // REQUIRES: size >= 1. Throws kOutOfMemory.
  explicit SharedRanks(int size, std::chrono::milliseconds patience = kPatience);
  // Those of another process, which passed on its memory_file(), to be closed at the end. Throws
  // kDevice where it has another size.
  SharedRanks(int size, int memory_file, std::chrono::milliseconds patience = kPatience);
  ~SharedRanks();
  SharedRanks(const SharedRanks&) = delete;
  SharedRanks& operator=(const SharedRanks&) = delete;

  // REQUIRES: nobody joined as this rank. This outlives what comes back.
  std::unique_ptr<Communicator> join(int rank);
  int memory_file() const { return file_; }

 private:
  class Rank;
  struct Memory;

  int size_;
  std::chrono::milliseconds patience_;
  std::size_t bytes_;
  int file_;
  Memory* memory_;
};

// A rank of processes on several machines.
struct NetworkPlace {
  int rank, size;
  std::string address;  // of rank 0, which listens at this port
  int port;
  std::string job;  // the same in all processes, and in no other job
};
// Ranks that tell each other over TCP, from each to each. NOTE: nothing is encrypted, and whoever
// knows the job's name can be a rank: for networks of trust. Throws kDevice where not all come
// within to_meet.
std::unique_ptr<Communicator> network_ranks(
    const NetworkPlace& place, std::chrono::milliseconds to_meet,
    std::chrono::milliseconds patience = SharedRanks::kPatience);

// Whether a process of this machine has ended, also where nobody has waited for it yet. Takes no
// memory.
bool has_ended(pid_t process);

// One of the processes that a launcher made, which know their ranks by its variables: torchrun's
// RANK, WORLD_SIZE and LOCAL_WORLD_SIZE, mpirun's OMPI_COMM_WORLD_RANK, _SIZE and _LOCAL_SIZE,
// srun's SLURM_PROCID, SLURM_NTASKS and SLURM_NNODES, or LeaderWorkerSet's LWS_WORKER_INDEX and
// LWS_GROUP_SIZE.
struct LaunchedRank {
  int rank, size;
  bool on_one_machine;  // all of them
};
// Throws kInvalidRequest where there are none of these, or they make no sense.
LaunchedRank launched_rank();
// Where they meet. Those of one machine share memory. Others meet at the port after MASTER_PORT of
// MASTER_ADDR, or where srun and LeaderWorkerSet say that rank 0 is. All call this. Throws as
// launched_rank(); kDevice where the others do not come within the patience.
std::shared_ptr<Communicator> launched_ranks(
    std::chrono::milliseconds patience = std::chrono::minutes(1));

// What ranks that go through the same program cannot compute each for itself: what a clock says,
// what callers want. Rank 0 leads: what it has, all have. A value; as thread-safe as what it uses.
class Agreement {
 public:
  // Among nobody: one has what it has, and nothing is told.
  Agreement() = default;
  explicit Agreement(Communicator* ranks) : ranks_(ranks) {}

  bool shared() const { return ranks_ != nullptr; }
  int rank() const { return shared() ? ranks_->rank() : 0; }
  int size() const { return shared() ? ranks_->size() : 1; }
  bool leads() const { return rank() == 0; }
  // Returns what the one who leads has given.
  template <typename T>
  T on(T value) const {
    static_assert(std::is_trivially_copyable_v<T>);
    on_each(std::span(&value, 1));
    return value;
  }
  // The same, in place. REQUIRES: all give as many.
  template <typename T>
  void on_each(std::span<T> values) const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (shared()) ranks_->broadcast(std::as_writable_bytes(values), 0);
  }
  std::vector<std::byte> on(std::vector<std::byte> bytes) const;
  // What all give, by rank; what this one gives where there is nobody. REQUIRES: as long of all.
  std::vector<std::byte> gather(std::span<const std::byte> own) const;
  // Of what all give the least: what each of them has.
  std::uint64_t least(std::uint64_t own) const;
  // Of the lines that all give the first that is not empty, or as much of it as is told.
  std::string first_line(std::string_view own) const;
  // Of the pieces of the one who leads, by rank, each gets its own; `out` is as long as a piece.
  void scatter(std::span<std::byte> out, std::span<const std::byte> pieces) const;
  // As Communicator's; nothing where there is nobody.
  void give_up(std::string_view why) const noexcept;

 private:
  Communicator* ranks_ = nullptr;
};

// Calls f(communicator) as a rank that joins. What it throws all ranks hear of, and then the
// caller.
template <typename Ranks, typename F>
void as_rank(Ranks& ranks, int rank, const F& f) {
  const std::unique_ptr<Communicator> all = ranks.join(rank);
  try {
    f(*all);
  } catch (...) {
    all->give_up(current_error("a rank").what());
    throw;
  }
}

}  // namespace quantspec
