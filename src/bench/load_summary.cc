#include "bench/load_summary.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/hash.h"
#include "base/system_memory.h"
#include "bench/load_loop.h"
#include "bench/memory.h"
#include "bench/summary.h"

namespace quantspec::bench {

namespace {

double rate(const LoadRepeat& repeat) {
  return static_cast<double>(repeat.tokens) / repeat.seconds;
}

Spread rates(const LoadMeasured& measured) {
  std::vector<double> values;
  for (const LoadRepeat& repeat : measured.repeats) values.push_back(rate(repeat));
  return spread_of(std::move(values));
}

// Repeat by repeat: what drifts from one to the next is no part of a ratio.
Spread speedup(const LoadMeasured& measured, const LoadMeasured& plain) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < measured.repeats.size(); ++i) {
    ratios.push_back(rate(measured.repeats[i]) / rate(plain.repeats[i]));
  }
  return spread_of(std::move(ratios));
}

Latency latency(const std::vector<double>& seconds) {
  return {1e3 * percentile(seconds, 0.5), 1e3 * percentile(seconds, 0.99)};
}

LoadRow::Late late_row(const LateMeasured& late) {
  LoadRow::Late row{std::nullopt, latency(late.itl)};
  if (late.ttft) row.ttft_ms = 1e3 * *late.ttft;
  return row;
}

double quotient(double sum, std::int64_t count) {
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

void fill_rounds(LoadRow& row, const RoundSums& sums) {
  const std::int64_t judged = sums.accepted + sums.rejections;
  if (sums.drafted > 0) {
    row.acceptance_rate = quotient(static_cast<double>(sums.accepted), sums.drafted);
    row.acceptance_per_token = quotient(static_cast<double>(sums.accepted), judged);
  }
  row.draft_len_mean = quotient(static_cast<double>(sums.drafted), sums.turns);
  row.streams_per_round = quotient(static_cast<double>(sums.turns), sums.rounds);
  row.draft_ms = 1e3 * quotient(sums.draft_seconds, sums.rounds);
  row.other_ms = 1e3 * quotient(sums.round_seconds - sums.draft_seconds, sums.rounds);
}

// The plan by which most turns drafted; empty where more did not draft.
std::string chosen_plan(const Entry& entry, const RoundSums& sums) {
  const std::vector<std::int64_t>& turns = sums.turns_by_plan;
  const auto most = std::ranges::max_element(turns);
  if (most == turns.end()) return {};
  std::int64_t plain = sums.turns;
  for (const std::int64_t count : turns) plain -= count;
  if (*most == 0 || *most < plain) return {};
  return entry.label_of(entry.decoding.plans[most - turns.begin()]);
}

MemoryPlan memory(Engine& engine, const Entry& entry, const LoadMeasured& measured,
                  const LoadShape& of) {
  const KvShape& shape = engine.pool().shape();
  const bool full = entry.store == KvStore::kFull;
  const std::size_t pages = measured.pages * shape.page_bytes();
  const std::size_t rings = LoadLoop::ring_bytes(engine, entry, {of.streams, of.capacity, 0});
  MemoryPlan plan;
  plan.weights_bytes = engine.model().weights().target_bytes();
  plan.draft_weights_bytes = draft_weights_bytes(engine.model(), entry.decoding.plans);
  plan.kv_bytes = full ? rings : pages;
  plan.ring_bytes = full ? 0 : rings;
  plan.prefill_bytes =
      prefill_bytes(engine, full ? 0 : of.capacity, of.streams) + decoder_bytes(engine, of.streams);
  plan.kv_fp16_bytes = shape.fp16_token_bytes() * of.streams * of.capacity;
  return of_all_ranks(plan, engine);
}

std::size_t plain_entry(std::span<const Entry> entries, std::string_view plan, float temperature) {
  const auto found = std::ranges::find_if(entries, [&](const Entry& entry) {
    return entry.plan == plan && entry.decoding.sampling.temperature == temperature;
  });
  check(found != entries.end(), "every temperature has plain decoding");
  return found - entries.begin();
}

// Of as many tokens of each stream, or all; rounds end with some more.
std::uint64_t hash_of(const LoadMeasured& measured, std::optional<int> count) {
  std::vector<TokenId> all;
  for (const auto& tokens : measured.tokens.front()) {
    const std::size_t most = count ? *count : tokens.size();
    all.insert(all.end(), tokens.begin(), tokens.begin() + std::min(most, tokens.size()));
  }
  return hash_bytes(std::as_bytes(std::span(all)));
}

}  // namespace

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto count = static_cast<double>(values.size());
  const auto rank = static_cast<std::ptrdiff_t>(std::ceil(share * count));
  const std::ptrdiff_t index = std::clamp<std::ptrdiff_t>(rank - 1, 0, std::ssize(values) - 1);
  std::nth_element(values.begin(), values.begin() + index, values.end());
  return values[index];
}

std::vector<LoadRow> make_load_rows(Engine& engine, std::span<const Entry> entries,
                                    std::span<const LoadMeasured> all, const LoadShape& shape) {
  std::vector<LoadRow> rows;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    const LoadMeasured& measured = all[i];
    const float temperature = entry.decoding.sampling.temperature;
    RoundSums sums;
    for (const LoadRepeat& repeat : measured.repeats) sums += repeat.rounds;
    LoadRow row;
    row.streams = shape.streams;
    row.context = shape.context;
    row.plan = entry.plan;
    row.draft_len = entry.decoding.draft_len;
    row.temperature = temperature;
    row.draft_budget = entry.budget;
    row.chosen_plan = chosen_plan(entry, sums);
    row.requests = shape.requests;
    row.repeats = static_cast<int>(measured.repeats.size());
    row.tokens = shape.tokens;
    row.output_tokens_per_second = rates(measured);
    row.speedup_fp16 = speedup(measured, all[plain_entry(entries, kPlainFp16, temperature)]);
    row.speedup_int8 = speedup(measured, all[plain_entry(entries, kPlainInt8, temperature)]);
    row.ttft = latency(measured.ttft);
    row.itl = latency(measured.itl);
    row.tpot = latency(measured.tpot);
    fill_rounds(row, sums);
    row.cached_tokens = measured.cached_tokens;
    row.moves = measured.moves;
    row.memory = memory(engine, entry, measured, shape);
    row.process_peak_bytes = peak_rss_bytes();
    if (like(entries, i)) row.identical = difference(entries, all, i).empty();
    row.tokens_hash = hash_of(measured, shape.tokens);
    row.over_time = measured.over_time;
    if (measured.late) row.late = late_row(*measured.late);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace quantspec::bench
