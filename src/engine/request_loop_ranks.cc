// What the loops of ranks that share a model agree on (comm/comm.h): who comes and what is wished,
// by what a round drafts, what callers want. Times are agreed on where they are read. All else is
// the same program with the same values, thus the same.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "engine/request_bytes.h"
#include "engine/request_loop_impl.h"

namespace quantspec {

// One stays at the door until all have heard of it.
std::unique_ptr<RequestLoop::Live> RequestLoop::Impl::agreed_arrival(RequestId last) {
  if (!agreement.shared()) return next_arrival(last);
  const Live* first = nullptr;
  if (agreement.leads()) {
    const std::lock_guard lock(inbox_mutex);
    if (!arrivals.empty() && arrivals.front()->id <= last) first = arrivals.front().get();
  }
  const RequestId id = agreement.on(first != nullptr ? first->id : 0);
  if (id == 0) return nullptr;
  const auto told =
      agreement.on(first != nullptr ? bytes_of(first->request) : std::vector<std::byte>());
  if (first != nullptr) return next_arrival(last);
  auto next = std::make_unique<Live>();
  next->id = id;
  next->request = request_of(told);
  next->queued = false;  // at the door of another
  return next;
}

std::optional<std::pair<RequestId, RequestLoop::Impl::Wish>> RequestLoop::Impl::agreed_wish(
    RequestId after, RequestId last) {
  if (!agreement.shared()) return next_wish(after, last);
  std::optional<std::pair<RequestId, Wish>> next;
  if (agreement.leads()) next = next_wish(after, last);
  struct Told {
    RequestId id;
    Wish wish;
  };
  const Told told = agreement.on(next ? Told{next->first, next->second} : Told{0, Wish::kNone});
  if (told.id == 0) return std::nullopt;
  return std::pair(told.id, told.wish);
}

std::optional<Request> RequestLoop::Impl::agreed_ahead() {
  if (!agreement.shared()) return next_ahead();
  std::optional<Request> next;
  if (agreement.leads()) next = next_ahead();
  const auto told = agreement.on(next ? bytes_of(*next) : std::vector<std::byte>());
  if (told.empty()) return std::nullopt;
  return request_of(told);
}

// Who leads has chosen. Others see here whether they would do the same round.
void RequestLoop::Impl::agree_on_turns() {
  if (!agreement.shared()) return;
  struct Told {
    RequestId id;
    int tokens;  // in its cache
    DraftChoice choice;
    bool records_masses;
    std::uint64_t found;  // a hash of what was looked up for it
  };
  std::array<Told, RequestLoopOptions::kMostSequences> told;
  const auto turn_of = [&](std::size_t i) {
    return Told{requests[i]->id, turns[i].tokens, turns[i].choice, turns[i].records_masses,
                hash_bytes(std::as_bytes(turns[i].found.tokens))};
  };
  for (std::size_t i = 0; i < turns.size(); ++i) told[i] = turn_of(i);
  agreement.on_each(std::span(told).first(turns.size()));
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const Told own = turn_of(i);
    if (own.id != told[i].id || own.tokens != told[i].tokens || own.found != told[i].found) {
      fail(ErrorKind::kInternal, "rank 0 does something else in request {} than in {} a rank",
           told[i].id, own.id);
    }
    turns[i].choice = told[i].choice;
    turns[i].records_masses = told[i].records_masses;
  }
}

// What the caller said to the one who leads: it alone has callers.
std::optional<RequestLoop::Impl::Ending> RequestLoop::Impl::agreed(
    std::optional<Ending> ending) const {
  if (!agreement.shared()) return ending;
  constexpr int kNone = -1;
  const int how = agreement.on(ending ? static_cast<int>(ending->how) : kNone);
  if (agreement.leads() || how == kNone) return ending;
  return Ending{static_cast<RequestEnd>(how)};
}

// Nobody knows what others have done by now: all requests end by it, at all ranks, and those that
// would come. Throws nothing: what arrives now fails by itself.
void RequestLoop::Impl::break_down() noexcept {
  Ending ending{RequestEnd::kFailed, memory_ran_out()};
  try {
    ending = failure();
  } catch (...) {  // then it did
  }
  {
    const std::lock_guard lock(inbox_mutex);
    broken.emplace(*ending.error);
    stopped = true;
  }
  end_visits(*ending.error);
  while (auto arrived = next_arrival(std::numeric_limits<RequestId>::max())) {
    arrive(std::move(arrived));
  }
  end_all(ending);
}

}  // namespace quantspec
