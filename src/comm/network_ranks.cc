// Ranks that reach each other over TCP. In a step each sends all others what it has, behind a
// header that says which step it is and what it does, and takes theirs. Notices have a connection
// of their own, so that one that gives up is heard in the middle of a step.

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/pause_cpu.h"
#include "comm/comm.h"
#include "comm/network_meeting.h"
#include "comm/steps.h"

namespace quantspec {
namespace {

constexpr std::size_t kPartBytes = 1 << 20;  // of a rank in a step
constexpr int kSpins = 200;                  // looks before a rank sleeps

struct Header {
  std::uint64_t number;
  Step step;
  bool operator==(const Header&) const = default;
};

// The first counts. A notice without a text: who sends it leaves.
struct Notice {
  std::array<char, 512> why{};
};

class NetworkRank final : public RanksInSteps {
 public:
  NetworkRank(const NetworkPlace& place, Met met, std::chrono::milliseconds patience)
      : RanksInSteps(kPartBytes, patience),
        rank_(place.rank),
        num_here_(met.num_here),
        peers_(std::move(met.peers)),
        transfers_(place.size),
        ends_(place.size) {}
  // Whoever sees it go hears why, if it has heard that, or that it leaves.
  ~NetworkRank() override { notify(why_); }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  int num_here() const override { return num_here_; }

  void give_up(std::string_view why) noexcept override {
    Notice notice;
    std::memcpy(notice.why.data(), why.data(), std::min(why.size(), notice.why.size() - 1));
    if (hear(notice)) notify(notice);
  }

 private:
  // What goes to another rank in a step and comes from it, each behind a header.
  struct Transfer {
    std::span<const std::byte> out;
    std::span<std::byte> in;
    std::size_t sent = 0, taken = 0;
    Header header{};  // theirs

    bool all_sent() const { return sent == sizeof(Header) + out.size(); }
    bool all_taken() const { return taken == sizeof(Header) + in.size(); }
  };

  // All, or of the ranks of each group the first, give the same to all.
  void tell_all(const Step& step, std::span<const std::byte> own) override {
    begin_step();
    received_.resize(size() * own.size());
    for (int rank = 0; rank < size(); ++rank) {
      if (rank_ % step.ranks == 0) transfers_[rank].out = own;
      if (rank % step.ranks != 0) continue;
      transfers_[rank].in = std::span(received_).subspan(rank * own.size(), own.size());
    }
    std::ranges::copy(transfers_[rank_].out, transfers_[rank_].in.begin());
    exchange(step);
  }
  const std::byte* given(int rank) const override { return transfers_[rank].in.data(); }

  void tell_each(const Step& step, std::span<std::byte> out, std::span<const std::byte> own,
                 std::size_t begin) override {
    const std::size_t group = step.ranks, piece = own.size() / group, count = step.bytes / group;
    const std::size_t first = rank_ / group * group;
    begin_step();
    for (std::size_t i = 0; i < group; ++i) {
      transfers_[first + i].out = own.subspan(i * piece + begin, count);
      transfers_[first + i].in = out.subspan(i * piece + begin, count);
    }
    std::ranges::copy(transfers_[rank_].out, transfers_[rank_].in.begin());
    exchange(step);
  }

  void tell_from_root(const Step& step, std::span<std::byte> out, const std::byte* pieces,
                      std::size_t stride) override {
    begin_step();
    if (rank_ != step.ranks) transfers_[step.ranks].in = out;
    for (int rank = 0; rank_ == step.ranks && rank < size(); ++rank) {
      transfers_[rank].out = {pieces + rank * stride, out.size()};
    }
    exchange(step, step.ranks);
  }

  void meet(const Step& step, int slow) override {
    begin_step();
    exchange(step, slow);
  }

  void begin_step() { std::ranges::fill(transfers_, Transfer{}); }

  // slow: for whom there is no patience, one or all, while it lives.
  void exchange(const Step& step, int slow = kNobody) {
    look_at_notices();
    throw_if_given_up();
    const Header header{++step_, step};
    double waited = 0;  // milliseconds in which others could have come
    for (int looks = 0;; ++looks) {
      bool moved = false;
      int missing = kNobody;
      for (int rank = 0; rank < size(); ++rank) {
        if (rank == rank_) continue;
        moved |= send_some(rank, header);
        moved |= take_some(rank, header);
        const bool done = transfers_[rank].all_taken() && transfers_[rank].all_sent();
        // A root is waited for first.
        if (!done && (missing == kNobody || rank == slow)) missing = rank;
      }
      if (missing == kNobody) return;
      if (moved) {
        looks = 0;
        continue;
      }
      throw_if_given_up();
      if (looks < kSpins) {
        pause_cpu();
        continue;
      }
      waited += sleep();
      if (slow == kAll || missing == slow) waited = 0;
      if (is_late(waited)) stop_late(missing);
    }
  }

  bool send_some(int rank, const Header& header) {
    Transfer& transfer = transfers_[rank];
    std::size_t& sent = transfer.sent;
    bool moved = false;
    while (!transfer.all_sent()) {
      iovec parts[2];
      msghdr message{};
      message.msg_iov = parts;
      if (sent < sizeof(header)) {
        auto* const bytes = reinterpret_cast<std::byte*>(const_cast<Header*>(&header));
        parts[message.msg_iovlen++] = {bytes + sent, sizeof(header) - sent};
      }
      const auto left = transfer.out.subspan(std::max(sent, sizeof(header)) - sizeof(header));
      if (!left.empty()) {
        parts[message.msg_iovlen++] = {const_cast<std::byte*>(left.data()), left.size()};
      }
      const ssize_t count =
          sendmsg(peers_[rank].data.number(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (count < 0) {  // it has ended; what it sent before is still taken
        sent = sizeof(header) + transfer.out.size();
        break;
      }
      sent += count;
      moved = true;
    }
    return moved;
  }

  bool take_some(int rank, const Header& header) {
    Transfer& transfer = transfers_[rank];
    bool moved = false;
    while (!transfer.all_taken()) {
      const bool in_header = transfer.taken < sizeof(Header);
      std::byte* const to = in_header
                                ? reinterpret_cast<std::byte*>(&transfer.header) + transfer.taken
                                : transfer.in.data() + (transfer.taken - sizeof(Header));
      const std::size_t left =
          (in_header ? sizeof(Header) : sizeof(Header) + transfer.in.size()) - transfer.taken;
      const ssize_t count = recv(peers_[rank].data.number(), to, left, MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (count <= 0) stop_after_the_end_of(rank);
      transfer.taken += count;
      moved = true;
      if (transfer.taken == sizeof(Header) && transfer.header != header) stop_unlike(rank);
    }
    return moved;
  }

  // Until something can be taken, or sent, or is noticed. Returns the milliseconds.
  double sleep() {
    polled_.clear();
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == rank_) continue;
      const Transfer& transfer = transfers_[rank];
      const int events = (transfer.all_taken() ? 0 : POLLIN) | (transfer.all_sent() ? 0 : POLLOUT);
      if (events != 0) {
        polled_.push_back({peers_[rank].data.number(), static_cast<short>(events), 0});
      }
      if (!ends_[rank]) polled_.push_back({peers_[rank].notices.number(), POLLIN, 0});
    }
    const Stopwatch clock;
    poll(polled_.data(), polled_.size(), static_cast<int>(kNap.count()));
    look_at_notices();
    return counted(clock);
  }

  void look_at_notices() {
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == rank_ || ends_[rank]) continue;
      const Heard heard = read_notices(rank);
      ends_[rank] = heard == Heard::kLeaves || heard == Heard::kEnd;
    }
  }

  enum class Heard { kNothing, kWhy, kLeaves, kEnd };

  Heard read_notices(int rank) {
    Notice notice;
    const ssize_t count =
        recv(peers_[rank].notices.number(), &notice, sizeof(notice), MSG_DONTWAIT | MSG_PEEK);
    if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return Heard::kEnd;
    if (count < static_cast<ssize_t>(sizeof(notice))) return Heard::kNothing;
    notice.why.back() = '\0';
    if (notice.why[0] == '\0') return Heard::kLeaves;
    hear(notice);
    return Heard::kWhy;
  }

  // Its last notice comes over another connection: perhaps later.
  [[noreturn]] void stop_after_the_end_of(int rank) {
    constexpr double kMost = 500;
    const Stopwatch clock;
    Heard heard = Heard::kNothing;
    while (heard == Heard::kNothing && clock.milliseconds() < kMost) {
      pollfd at{peers_[rank].notices.number(), POLLIN, 0};
      poll(&at, 1, static_cast<int>(kNap.count()));
      heard = read_notices(rank);
    }
    stop_without(rank, heard == Heard::kLeaves);
  }

  void give_up_and_throw(const std::string& why) override {
    look_at_notices();  // others may have said before
    give_up(why);
    throw_if_given_up();
  }

  // Whether it is the first.
  bool hear(const Notice& notice) noexcept {
    const std::lock_guard lock(mutex_);
    if (has_given_up_) return false;
    why_ = notice;
    has_given_up_ = true;
    return true;
  }

  void notify(const Notice& notice) noexcept {
    const std::lock_guard lock(notices_);
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == rank_) continue;
      send(peers_[rank].notices.number(), &notice, sizeof(notice), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }

  void throw_if_given_up() {
    if (!has_given_up_) return;
    const std::lock_guard lock(mutex_);
    fail_given_up(why_.why.data());
  }

  const int rank_;
  const int num_here_;
  std::vector<Peer> peers_;  // by rank
  std::uint64_t step_ = 0;
  std::vector<Transfer> transfers_;  // by rank, of this step
  std::vector<std::byte> received_;  // by rank
  std::vector<bool> ends_;           // by rank: it says nothing more
  std::vector<pollfd> polled_;
  std::mutex mutex_, notices_;
  std::atomic<bool> has_given_up_ = false;
  Notice why_;  // nothing: nobody has given up
};

}  // namespace

std::unique_ptr<Communicator> network_ranks(const NetworkPlace& place,
                                            std::chrono::milliseconds to_meet,
                                            std::chrono::milliseconds patience) {
  check(place.size >= 1 && place.rank >= 0 && place.rank < place.size, "a rank is one of all");
  return std::make_unique<NetworkRank>(place, meet_over_network(place, to_meet), patience);
}

}  // namespace quantspec
