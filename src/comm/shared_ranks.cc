// Ranks that share memory. In a step each writes what it has to a place of its own, says that it
// has come, waits for the others, and reads what they wrote. Places are used by turns: who comes to
// a step has read all of the step before, so that nobody writes over what is still read.

#include <fcntl.h>
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
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/pause_cpu.h"
#include "comm/comm.h"
#include "comm/descriptor.h"
#include "comm/steps.h"

namespace quantspec {
namespace {

constexpr std::size_t kPlaceBytes = 256 * 1024;  // of a rank in a step
#if defined(__SANITIZE_THREAD__)
constexpr int kSpins = 100;  // each takes 20 times as long
#else
constexpr int kSpins = 2000;  // some 20 us, before a rank sleeps
#endif

using Word = std::atomic<std::uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(std::uint32_t));

long futex(const Word& word, int operation, std::uint32_t value, const timespec* time) {
  return syscall(SYS_futex, reinterpret_cast<const std::uint32_t*>(&word), operation, value, time,
                 nullptr, 0);
}

}  // namespace

// One that was not waited for is still there, as a zombie. Takes no memory: others are waited for
// where there may be none.
bool has_ended(pid_t process) {
  if (kill(process, 0) != 0 && errno == ESRCH) return true;
  std::array<char, 32> path{};
  fmt::format_to_n(path.data(), path.size() - 1, "/proc/{}/stat", process);
  const Descriptor file(open(path.data(), O_RDONLY | O_CLOEXEC));
  std::array<char, 256> text;  // a number, a name of 64 characters at most, a state
  const ssize_t size = file.there() ? read(file.number(), text.data(), text.size()) : 0;
  if (size <= 0) return false;
  const std::string_view line(text.data(), size);
  const std::size_t name_end = line.rfind(')');
  return name_end != line.npos && name_end + 2 < line.size() &&
         (line[name_end + 2] == 'Z' || line[name_end + 2] == 'X');
}

struct SharedRanks::Memory {
  static constexpr std::int32_t kNotYet = 0, kLeft = -1;

  struct alignas(64) State {
    Word steps;     // that it has come to
    Word sleepers;  // who wait for it
    std::atomic<std::int32_t> process;
    Step does[2];  // by turns as the places
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

class SharedRanks::Rank final : public RanksInSteps {
 public:
  Rank(const SharedRanks& ranks, int rank)
      : RanksInSteps(kPlaceBytes, ranks.patience_),
        ranks_(ranks),
        memory_(*ranks.memory_),
        rank_(rank) {
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

  void give_up(std::string_view why) noexcept override { memory_.give_up(size(), why); }

 private:
  void tell_all(const Step& step, std::span<const std::byte> own) override {
    if (rank_ % step.ranks == 0) write(own);
    meet(step, kNobody);
  }
  const std::byte* given(int rank) const override { return place(rank, step_); }

  void tell_each(const Step& step, std::span<std::byte> out, std::span<const std::byte> own,
                 std::size_t begin) override {
    const std::size_t group = step.ranks, piece = own.size() / group, count = step.bytes / group;
    const std::size_t in_group = rank_ % group, first = rank_ - in_group;
    for (std::size_t to = 0; to < group; ++to) {
      write(own.subspan(to * piece + begin, count), to * count);
    }
    meet(step, kNobody);
    for (std::size_t from = 0; from < group; ++from) {
      std::memcpy(out.data() + from * piece + begin, given(first + from) + in_group * count, count);
    }
  }

  void tell_from_root(const Step& step, std::span<std::byte> out, const std::byte* pieces,
                      std::size_t stride) override {
    const int count = step.call == Call::kScatter ? size() : 1;  // of pieces
    const std::size_t each = count > 1 ? out.size() : 0;         // from one to the next
    for (int piece = 0; rank_ == step.ranks && piece < count; ++piece) {
      write({pieces + piece * stride, out.size()}, piece * each);
    }
    meet(step, step.ranks);
    if (rank_ == step.ranks) return;
    std::memcpy(out.data(), given(step.ranks) + rank_ * each, out.size());
  }

  std::byte* place(int rank, std::uint32_t step) const { return memory_.place(size(), rank, step); }

  // To its own place, of the step to come. Not after a step that it did not come out of: then what
  // others still read of the one before lies there.
  void write(std::span<const std::byte> data, std::size_t at = 0) {
    throw_if_given_up();
    std::memcpy(place(rank_, step_ + 1) + at, data.data(), data.size());
  }

  // Comes to the next step, and waits for all.
  void meet(const Step& step, int slow) override {
    throw_if_given_up();
    Memory::State& own = memory_.state(rank_);
    ++step_;
    own.does[step_ % 2] = step;
    own.steps.store(step_);
    if (own.sleepers.load() > 0) futex(own.steps, FUTEX_WAKE, INT_MAX, nullptr);
    if (slow >= 0 && slow != rank_) wait_for(slow, false);
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == rank_) continue;
      wait_for(rank, slow != kAll);
      if (memory_.state(rank).does[step_ % 2] != step) stop_unlike(rank);
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
        stop_without(rank, has_left);
      }
      if (is_late(waited) && (impatient || process == Memory::kNotYet)) stop_late(rank);
      other.sleepers.fetch_add(1);
      const std::uint32_t steps = other.steps.load();
      if (static_cast<std::int32_t>(steps - step_) < 0 && memory_.given_up.load() == 0) {
        const timespec nap{0, std::chrono::nanoseconds(kNap).count()};
        const Stopwatch clock;
        futex(other.steps, FUTEX_WAIT, steps, &nap);
        waited += counted(clock);
      }
      other.sleepers.fetch_sub(1);
    }
  }

  void give_up_and_throw(const std::string& why) override {
    give_up(why);
    throw_if_given_up();
  }

  void throw_if_given_up() const {
    if (memory_.given_up.load() == 0) return;
    const Stopwatch clock;
    while (memory_.given_up.load() == 1 && clock.milliseconds() < 1000) pause_cpu();
    fail_given_up(memory_.given_up.load() == 2 ? memory_.why.data() : "one of them ended");
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
