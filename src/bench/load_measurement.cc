#include "bench/load_measurement.h"

#include <algorithm>

#include "base/error.h"

namespace quantspec::bench {

namespace {

std::string name_of(const Entry& entry) {
  const std::string plan = plan_label(entry.plan, entry.budget);
  const std::optional<int>& len = entry.decoding.draft_len;
  return len ? fmt::format("{} at draft length {}", plan, *len) : plan;
}

}  // namespace

RoundSums::RoundSums(const RequestLoop::Statistics& statistics)
    : rounds(static_cast<std::int64_t>(statistics.rounds)),
      turns(static_cast<std::int64_t>(statistics.turns)),
      drafted(static_cast<std::int64_t>(statistics.drafted)),
      accepted(static_cast<std::int64_t>(statistics.accepted)),
      rejections(static_cast<std::int64_t>(statistics.rejections)),
      round_seconds(statistics.round_seconds),
      draft_seconds(statistics.draft_seconds),
      turns_by_plan(statistics.turns_by_plan.begin(), statistics.turns_by_plan.end()) {}

RoundSums& RoundSums::operator+=(const RoundSums& other) {
  rounds += other.rounds;
  turns += other.turns;
  drafted += other.drafted;
  accepted += other.accepted;
  rejections += other.rejections;
  round_seconds += other.round_seconds;
  draft_seconds += other.draft_seconds;
  turns_by_plan.resize(std::max(turns_by_plan.size(), other.turns_by_plan.size()));
  for (std::size_t i = 0; i < other.turns_by_plan.size(); ++i) {
    turns_by_plan[i] += other.turns_by_plan[i];
  }
  return *this;
}

RoundSums RoundSums::operator-(const RoundSums& before) const {
  RoundSums rest = *this;
  rest.rounds -= before.rounds;
  rest.turns -= before.turns;
  rest.drafted -= before.drafted;
  rest.accepted -= before.accepted;
  rest.rejections -= before.rejections;
  rest.round_seconds -= before.round_seconds;
  rest.draft_seconds -= before.draft_seconds;
  for (std::size_t i = 0; i < before.turns_by_plan.size(); ++i) {
    rest.turns_by_plan[i] -= before.turns_by_plan[i];
  }
  return rest;
}

LoadMoves moves_of(const RequestLoop::Statistics& now) {
  const auto count = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
  return {count(now.scheduler.preemptions),
          count(now.swaps),
          count(now.replays),
          count(now.pages_swapped_out),
          count(now.pages_swapped_in),
          count(now.prefixes.to_host),
          count(now.prefixes.from_host)};
}

std::optional<std::size_t> like(std::span<const Entry> entries, std::size_t entry) {
  if (!entries[entry].is_lossless()) return std::nullopt;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const bool same =
        entries[i].store == entries[entry].store && entries[i].is_plain() &&
        entries[i].decoding.sampling.temperature == entries[entry].decoding.sampling.temperature;
    if (same) return i;
  }
  return std::nullopt;
}

std::string difference(std::span<const Entry> entries, std::span<const LoadMeasured> all,
                       std::size_t entry) {
  const auto first = like(entries, entry);
  if (!first) return {};
  const auto& expected = all[*first].tokens.front();
  for (const auto& run : all[entry].tokens) {
    for (std::size_t stream = 0; stream < run.size(); ++stream) {
      const auto both = std::min(run[stream].size(), expected[stream].size());
      const auto [at, other] =
          std::mismatch(run[stream].begin(), run[stream].begin() + both, expected[stream].begin());
      if (at == run[stream].begin() + both) continue;
      return fmt::format(
          "{} and {} must give the same tokens, and differ in stream {} from token {} on",
          name_of(entries[*first]), name_of(entries[entry]), stream, at - run[stream].begin());
    }
  }
  return {};
}

}  // namespace quantspec::bench
