#include "comm/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/tree_sum.h"

namespace quantspec {
namespace {

// Calls f(begin, count) of parts of so many at most.
void for_parts(std::size_t all, std::size_t most, const auto& f) {
  for (std::size_t begin = 0; begin < all; begin += most) f(begin, std::min(most, all - begin));
}

}  // namespace

void RanksInSteps::reduce_add(std::span<float> x, std::span<const float> partial, int alike) {
  check(x.size() == partial.size(), "a partial sum is as long as the sum");
  check(alike >= 1 && size() % alike == 0, "ranks that are alike are among all");
  for_parts(x.size(), most_ / sizeof(float), [&](std::size_t begin, std::size_t count) {
    tell_all({Call::kReduce, alike, count * sizeof(float)},
             std::as_bytes(partial.subspan(begin, count)));
    add_ranks([&](int i) { return given(i * alike); }, size() / alike, x.subspan(begin, count));
  });
}

void RanksInSteps::all_gather(std::span<std::byte> out, std::span<const std::byte> own) {
  check(out.size() == own.size() * size(), "what is gathered has room for all ranks");
  for_parts(own.size(), most_, [&](std::size_t begin, std::size_t count) {
    tell_all({Call::kGather, 1, count}, own.subspan(begin, count));
    for (int rank = 0; rank < size(); ++rank) {
      std::memcpy(out.data() + rank * own.size() + begin, given(rank), count);
    }
  });
}

void RanksInSteps::all_to_all(std::span<std::byte> out, std::span<const std::byte> own, int group) {
  check(group >= 1 && size() % group == 0 && out.size() == own.size() && own.size() % group == 0,
        "ranks of a group give each other pieces");
  for_parts(own.size() / group, most_ / group, [&](std::size_t begin, std::size_t count) {
    tell_each({Call::kAllToAll, group, group * count}, out, own, begin);
  });
}

void RanksInSteps::broadcast(std::span<std::byte> data, int root) {
  check(root >= 0 && root < size(), "the root is a rank");
  for_parts(data.size(), most_, [&](std::size_t begin, std::size_t count) {
    const auto part = data.subspan(begin, count);
    tell_from_root({Call::kBroadcast, root, count}, part, part.data(), 0);
  });
}

void RanksInSteps::scatter(std::span<std::byte> out, std::span<const std::byte> pieces, int root) {
  check(root >= 0 && root < size(), "the root is a rank");
  check(rank() != root || pieces.size() == size() * out.size(), "there is a piece for each rank");
  for_parts(out.size(), most_ / size(), [&](std::size_t begin, std::size_t count) {
    const std::byte* const at = rank() == root ? pieces.data() + begin : nullptr;
    tell_from_root({Call::kScatter, root, count * size()}, out.subspan(begin, count), at,
                   out.size());
  });
  if (rank() == root) std::ranges::copy(pieces.subspan(root * out.size(), out.size()), out.begin());
}

void RanksInSteps::barrier() { meet({Call::kBarrier, 1, 0}, kNobody); }
void RanksInSteps::wait_for_all() { meet({Call::kBarrier, 1, 0}, kAll); }

void RanksInSteps::stop(const std::string& why) {
  give_up_and_throw(why);
  check(false, "who gave up says so");
  __builtin_unreachable();
}

void RanksInSteps::stop_unlike(int other) {
  stop(fmt::format("rank {} and rank {} do not do the same", std::min(rank(), other),
                   std::max(rank(), other)));
}

void RanksInSteps::stop_without(int other, bool has_left) {
  stop(fmt::format("rank {} has {}", other, has_left ? "left" : "ended"));
}

void RanksInSteps::stop_late(int other) {
  stop(fmt::format("rank {} did not come within {} ms", other, patience_.count()));
}

void RanksInSteps::fail_given_up(const char* why) {
  fail(ErrorKind::kDevice, "the ranks of this model stopped: {}", why);
}

double RanksInSteps::counted(const Stopwatch& nap) {
  return std::min(nap.milliseconds(), 2.0 * static_cast<double>(kNap.count()));
}

}  // namespace quantspec
