// Ranks meet in steps. In a step each writes what it has to a place of its own, says that it has
// come, waits for the others, and reads what they wrote. Places are used by turns: who comes to a
// step has read all of the step before, so that nobody writes over what is still read.

#include <fmt/format.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/pause_cpu.h"
#include "comm/comm.h"
#include "comm/tree_sum.h"

namespace quantspec {
namespace {

constexpr std::size_t kPlaceBytes = 256 * 1024;  // of a rank in a step
constexpr int kNobody = -1, kAll = -2;           // where a rank is named
constexpr int kSpins = 2000;                     // some 20 us, before a rank sleeps
constexpr std::chrono::milliseconds kNap{50};    // after which it looks whether the others live

using Word = std::atomic<std::uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(std::uint32_t));

long futex(const Word& word, int operation, std::uint32_t value, const timespec* time) {
  return syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(&word), operation, value, time,
                 nullptr, 0);
}

enum class Step : std::uint32_t { kReduce = 1, kGather, kAllToAll, kBroadcast, kBarrier };

// A process that ended and was not waited for is still there, as a zombie.
bool has_ended(pid_t process) {
  if (kill(process, 0) != 0 && errno == ESRCH) return true;
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  const std::size_t name_end = line.rfind(')');
  return name_end != line.npos && name_end + 2 < line.size() &&
         (line[name_end + 2] == 'Z' || line[name_end + 2] == 'X');
}

}  // namespace

struct SharedRanks::Memory {
  static constexpr std::int32_t kNotYet = 0, kLeft = -1;

  struct alignas(64) State {
    Word steps;     // that it has come to
    Word sleepers;  // who wait for it
    std::atomic<std::int32_t> process;
    struct {
      Step kind;
      std::uint64_t bytes;
    } does[2];  // in a step, by turns as the places
  };
  // 0, then 1 while why is written, then 2.
  alignas(64) Word given_up;
  std::array<char, 512> why;

  State& state(int rank) {
    return reinterpret_cast<State*>(reinterpret_cast<std::byte*>(this) + kHeader)[rank];
  }
  std::byte* place(int size, int rank, std::uint32_t step) {
    std::byte* places = reinterpret_cast<std::byte*>(this) + kHeader + size * sizeof(State);
    return places + (2 * static_cast<std::size_t>(rank) + step % 2) * kPlaceBytes;
  }
  static std::size_t bytes(int size) { return kHeader + size * (sizeof(State) + 2 * kPlaceBytes); }

  void give_up(int size, std::string_view text) noexcept {
    std::uint32_t none = 0;
    if (!given_up.compare_exchange_strong(none, 1)) return;
    const std::size_t count = std::min(text.size(), why.size() - 1);
    std::memcpy(why.data(), text.data(), count);
    why[count] = '\0';
    given_up.store(2);
    for (int rank = 0; rank < size; ++rank) futex(state(rank).steps, FUTEX_WAKE, INT_MAX, nullptr);
  }

  static constexpr std::size_t kHeader = 640;
};

class SharedRanks::Rank final : public Communicator {
 public:
  Rank(const SharedRanks& ranks, int rank) : ranks_(ranks), memory_(*ranks.memory_), rank_(rank) {
    std::int32_t nobody = Memory::kNotYet;
    const bool first = memory_.state(rank).process.compare_exchange_strong(nobody, getpid());
    check(first, "a rank joins once");
  }
  ~Rank() override {
    Memory::State& own = memory_.state(rank_);
    own.process = Memory::kLeft;
    futex(own.steps, FUTEX_WAKE, INT_MAX, nullptr);
  }

  int rank() const override { return rank_; }
  int size() const override { return ranks_.size_; }

  using Communicator::reduce_add;
  void reduce_add(std::span<float> x, std::span<const float> partial, int alike) override {
    check(x.size() == partial.size(), "a partial sum is as long as the sum");
    check(alike >= 1 && size() % alike == 0, "ranks that are alike are among all");
    constexpr std::size_t kMost = kPlaceBytes / sizeof(float);
    for (std::size_t begin = 0; begin < x.size(); begin += kMost) {
      const std::size_t count = std::min(kMost, x.size() - begin);
      write(std::as_bytes(partial.subspan(begin, count)));
      meet(Step::kReduce, count * sizeof(float));
      add_ranks([&](int i) { return place(i * alike); }, size() / alike, x.subspan(begin, count));
    }
  }

  void all_gather(std::span<std::byte> out, std::span<const std::byte> own) override {
    check(out.size() == own.size() * size(), "what is gathered has room for all ranks");
    for (std::size_t begin = 0; begin < own.size(); begin += kPlaceBytes) {
      const std::size_t count = std::min(kPlaceBytes, own.size() - begin);
      write(own.subspan(begin, count));
      meet(Step::kGather, count);
      for (int rank = 0; rank < size(); ++rank) {
        std::memcpy(out.data() + rank * own.size() + begin, place(rank), count);
      }
    }
  }

  void all_to_all(std::span<std::byte> out, std::span<const std::byte> own, int group) override {
    check(group >= 1 && size() % group == 0 && out.size() == own.size() && own.size() % group == 0,
          "ranks of a group give each other pieces");
    const std::size_t piece = own.size() / group, most = kPlaceBytes / group;
    const int first = rank_ / group * group;
    for (std::size_t begin = 0; begin < piece; begin += most) {
      const std::size_t count = std::min(most, piece - begin);
      for (int to = 0; to < group; ++to) {
        write(own.subspan(to * piece + begin, count), to * count);
      }
      meet(Step::kAllToAll, group * count);
      for (int from = 0; from < group; ++from) {
        std::memcpy(out.data() + from * piece + begin,
                    place(first + from) + (rank_ - first) * count, count);
      }
    }
  }

  void broadcast(std::span<std::byte> data, int root) override {
    check(root >= 0 && root < size(), "the root is a rank");
    for (std::size_t begin = 0; begin < data.size(); begin += kPlaceBytes) {
      const auto part = data.subspan(begin, std::min(kPlaceBytes, data.size() - begin));
      if (rank_ == root) write(part);
      meet(Step::kBroadcast, part.size(), root);
      if (rank_ != root) std::memcpy(part.data(), place(root), part.size());
    }
  }

  void barrier() override { meet(Step::kBarrier, 0); }
  void wait_for_all() override { meet(Step::kBarrier, 0, kAll); }

  void give_up(std::string_view why) noexcept override { memory_.give_up(size(), why); }

 private:
  std::byte* place(int rank) { return memory_.place(size(), rank, step_); }

  // To its own place, of the step to come.
  void write(std::span<const std::byte> data, std::size_t at = 0) {
    std::memcpy(memory_.place(size(), rank_, step_ + 1) + at, data.data(), data.size());
  }

  // Comes to the next step, and waits for all: for one of them, or all, as long as they live.
  void meet(Step kind, std::size_t bytes, int slow = kNobody) {
    throw_if_given_up();
    Memory::State& own = memory_.state(rank_);
    ++step_;
    own.does[step_ % 2] = {kind, bytes};
    own.steps.store(step_);
    if (own.sleepers.load() > 0) futex(own.steps, FUTEX_WAKE, INT_MAX, nullptr);
    if (slow >= 0 && slow != rank_) wait_for(slow, false);
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == rank_) continue;
      wait_for(rank, slow != kAll);
      const auto& does = memory_.state(rank).does[step_ % 2];
      if (does.kind != kind || does.bytes != bytes) {
        stop(fmt::format("rank {} and rank {} do not do the same", std::min(rank, rank_),
                         std::max(rank, rank_)));
      }
    }
  }

  bool has_come(int rank) const {
    const std::uint32_t steps = memory_.state(rank).steps.load();
    return static_cast<std::int32_t>(steps - step_) >= 0;
  }

  void wait_for(int rank, bool impatient) {
    for (int i = 0; i < kSpins; ++i) {
      if (has_come(rank)) return;
      if (memory_.given_up.load() != 0) throw_if_given_up();
      pause_cpu();
    }
    Memory::State& other = memory_.state(rank);
    double waited = 0;  // milliseconds in which the other could have come
    while (!has_come(rank)) {
      throw_if_given_up();
      const std::int32_t process = other.process.load();
      // Who came and then went is looked for once more.
      const bool has_left = process == Memory::kLeft;
      if ((has_left || (process > 0 && has_ended(process))) && !has_come(rank)) {
        stop(fmt::format("rank {} has {}", rank, has_left ? "left" : "ended"));
      }
      const bool is_late = waited > static_cast<double>(ranks_.patience_.count());
      if (is_late && (impatient || process == Memory::kNotYet)) {
        stop(fmt::format("rank {} did not come within {} ms", rank, ranks_.patience_.count()));
      }
      other.sleepers.fetch_add(1);
      const std::uint32_t steps = other.steps.load();
      if (static_cast<std::int32_t>(steps - step_) < 0 && memory_.given_up.load() == 0) {
        const timespec nap{0, std::chrono::nanoseconds(kNap).count()};
        const Stopwatch clock;
        futex(other.steps, FUTEX_WAIT, steps, &nap);
        // Longer naps are of a machine, or a job, that stood still: nobody could have come.
        waited += std::min(clock.milliseconds(), 2.0 * static_cast<double>(kNap.count()));
      }
      other.sleepers.fetch_sub(1);
    }
  }

  [[noreturn]] void stop(const std::string& why) {
    give_up(why);
    throw_if_given_up();
    check(false, "who gave up says so");
    __builtin_unreachable();
  }

  void throw_if_given_up() const {
    if (memory_.given_up.load() == 0) return;
    const Stopwatch clock;
    while (memory_.given_up.load() == 1 && clock.milliseconds() < 1000) pause_cpu();
    const char* why = memory_.given_up.load() == 2 ? memory_.why.data() : "one of them ended";
    fail(ErrorKind::kDevice, "the ranks of this model stopped: {}", why);
  }

  const SharedRanks& ranks_;
  Memory& memory_;
  const int rank_;
  std::uint32_t step_ = 0;
};

namespace {

// Of zeros, which is how it begins.
int make_memory_file(int size, std::size_t bytes) {
  check(size >= 1, "there is a rank");
  const int file = memfd_create("quantspec ranks", MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0) return file;
  if (file >= 0) close(file);
  fail(ErrorKind::kOutOfMemory, "no {} bytes of shared memory for {} ranks", bytes, size);
}

}  // namespace

SharedRanks::SharedRanks(int size, std::chrono::milliseconds patience)
    : SharedRanks(size, make_memory_file(size, Memory::bytes(size)), patience) {}

SharedRanks::SharedRanks(int size, int memory_file, std::chrono::milliseconds patience)
    : size_(size), patience_(patience), bytes_(Memory::bytes(size)), file_(memory_file) {
  static_assert(offsetof(Memory, why) + sizeof(Memory::why) <= Memory::kHeader);
  struct stat about {};
  const bool fits = fstat(file_, &about) == 0 && std::cmp_equal(about.st_size, bytes_);
  void* memory =
      fits ? mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0) : MAP_FAILED;
  if (memory == MAP_FAILED) {
    close(file_);
    fail(fits ? ErrorKind::kOutOfMemory : ErrorKind::kDevice,
         "no shared memory of {} bytes for {} ranks", bytes_, size);
  }
  memory_ = static_cast<Memory*>(memory);
}

SharedRanks::~SharedRanks() {
  munmap(memory_, bytes_);
  close(file_);
}

std::unique_ptr<Communicator> SharedRanks::join(int rank) {
  check(rank >= 0 && rank < size_, "a rank is one of all");
  return std::make_unique<Rank>(*this, rank);
}

}  // namespace quantspec
