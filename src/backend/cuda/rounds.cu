// What the rounds of a batch came to, for the host.
#include <algorithm>

#include "backend/cuda/ops.h"
#include "backend/params/round.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

// Rounds lie apart: each belongs to its sequence. Their places go by value.
constexpr int kGathered = 256;
struct RoundPlaces {
  const Round* at[kGathered];
};

// A block for each round.
__global__ void gather_rounds(const __grid_constant__ RoundPlaces places, Round* to) {
  static_assert(sizeof(Round) % sizeof(int) == 0 && alignof(Round) == alignof(int));
  const auto* from = reinterpret_cast<const int*>(places.at[blockIdx.x]);
  auto* words = reinterpret_cast<int*>(to + blockIdx.x);
  for (unsigned i = threadIdx.x; i < sizeof(Round) / sizeof(int); i += blockDim.x) {
    words[i] = from[i];
  }
}

}  // namespace

std::size_t rounds_scratch_bytes(std::size_t sequences) { return sequences * sizeof(Round); }

void download_rounds(Device& device, std::span<const Round* const> rounds,
                     std::span<Round> results) {
  check(rounds.size() == results.size(), "every round has a place");
  if (rounds.empty()) return;
  if (rounds.size() == 1) return device.download(results.data(), rounds[0], sizeof(Round));
  auto* gathered = reinterpret_cast<Round*>(
      device.scratch(Scratch::kRounds, rounds_scratch_bytes(results.size())));
  for (std::size_t first = 0; first < rounds.size(); first += kGathered) {
    const auto some =
        rounds.subspan(first, std::min<std::size_t>(kGathered, rounds.size() - first));
    RoundPlaces places{};
    std::ranges::copy(some, places.at);
    gather_rounds<<<static_cast<unsigned>(some.size()), 64, 0, device.stream()>>>(places,
                                                                                  gathered + first);
    require_launch("gather_rounds");
  }
  device.download(results.data(), gathered, results.size_bytes());
}

}  // namespace quantspec::cuda
