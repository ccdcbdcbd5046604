#include "bench/summary.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/hash.h"
#include "base/system_memory.h"

namespace quantspec::bench {

namespace {

// The runs of a repeat, on all prompts, as one.
struct Total {
  double seconds = 0;
  double tokens = 0;
  RoundStats stats;

  explicit Total(const std::vector<Run>& runs) {
    for (const Run& run : runs) {
      seconds += run.seconds;
      tokens += static_cast<double>(run.tokens.size());
      stats += run.stats;
    }
  }
  double seconds_per_token() const { return seconds / tokens; }
  double per_round(double seconds) const { return seconds / static_cast<double>(stats.rounds); }
};

std::vector<Total> totals(const Measured& measured) {
  std::vector<Total> totals;
  for (const std::vector<Run>& runs : measured.repeats) totals.emplace_back(runs);
  return totals;
}

Spread over(const std::vector<Total>& totals, const std::function<double(const Total&)>& value) {
  std::vector<double> values;
  for (const Total& total : totals) values.push_back(value(total));
  return spread_of(std::move(values));
}

// Repeat by repeat: what drifts from one to the next is no part of a ratio.
Spread speedup(const std::vector<Total>& totals, const std::vector<Total>& plain) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < totals.size(); ++i) {
    ratios.push_back(plain[i].seconds_per_token() / totals[i].seconds_per_token());
  }
  return spread_of(std::move(ratios));
}

// The share over all runs; smallest and largest of single ones. None: nothing was drafted.
std::optional<Spread> share(const Measured& measured, const RoundStats& all,
                            double (RoundStats::*value)() const) {
  if (all.drafted == 0) return std::nullopt;
  Spread spread{(all.*value)(), 1, 0};
  for (const std::vector<Run>& runs : measured.repeats) {
    for (const Run& run : runs) {
      const bool drafted = run.stats.drafted > 0;
      spread.values.push_back(drafted ? (run.stats.*value)()
                                      : std::numeric_limits<double>::quiet_NaN());
      if (!drafted) continue;
      spread.min = std::min(spread.min, spread.values.back());
      spread.max = std::max(spread.max, spread.values.back());
    }
  }
  return spread;
}

// The plan that drafted in the most rounds; null where most rounds were plain.
const Plan* chosen_plan(const Entry& entry, const Measured& measured, std::int64_t rounds) {
  std::vector<std::int64_t> counts(entry.decoding.plans.size());
  for (const std::vector<Run>& runs : measured.repeats) {
    for (const Run& run : runs) {
      for (std::size_t i = 0; i < counts.size(); ++i) {
        counts[i] += run.rounds_by_plan[i];
        rounds -= run.rounds_by_plan[i];
      }
    }
  }
  const auto most = std::ranges::max_element(counts);
  if (most == counts.end() || *most == 0 || *most < rounds) return nullptr;
  return &entry.decoding.plans[most - counts.begin()];
}

std::uint64_t hash_of(const std::vector<Run>& runs) {
  std::vector<TokenId> tokens;
  for (const Run& run : runs) tokens.insert(tokens.end(), run.tokens.begin(), run.tokens.end());
  return hash_bytes(std::as_bytes(std::span(tokens)));
}

std::size_t plain_entry(const std::vector<Entry>& entries, std::string_view plan,
                        float temperature) {
  const auto found = std::ranges::find_if(entries, [&](const Entry& entry) {
    return entry.plan == plan && entry.decoding.sampling.temperature == temperature;
  });
  check(found != entries.end(), "every temperature has plain decoding");
  return found - entries.begin();
}

void fill_times(BenchRow& row, const std::vector<Total>& runs) {
  row.ms_per_token = over(runs, [](const Total& t) { return 1e3 * t.seconds_per_token(); });
  row.decode_tokens_per_second =
      over(runs, [](const Total& t) { return 1 / t.seconds_per_token(); });
  row.draft_ms =
      over(runs, [](const Total& t) { return 1e3 * t.per_round(t.stats.draft_seconds); });
  row.verify_ms =
      over(runs, [](const Total& t) { return 1e3 * t.per_round(t.stats.verify_seconds); });
  row.commit_ms =
      over(runs, [](const Total& t) { return 1e3 * t.per_round(t.stats.commit_seconds); });
  row.tokens_per_round = over(runs, [](const Total& t) { return t.per_round(t.tokens); });
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  check(!values.empty(), "a spread is of something");
  std::vector<double> sorted = values;
  std::ranges::sort(sorted);
  const std::size_t middle = sorted.size() / 2;
  const double median =
      sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return {median, sorted.front(), sorted.back(), std::move(values)};
}

std::vector<BenchRow> make_rows(const std::vector<Entry>& entries, const std::vector<Measured>& all,
                                const BenchOptions& options, int context,
                                const Predictor& predictor) {
  std::vector<std::vector<Total>> totals_of;
  for (const Measured& measured : all) totals_of.push_back(totals(measured));
  std::vector<BenchRow> rows;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    const float temperature = entry.decoding.sampling.temperature;
    RoundStats stats;
    for (const Total& total : totals_of[i]) stats += total.stats;
    BenchRow row;
    row.context = context;
    row.plan = entry.plan;
    row.draft_len = entry.decoding.draft_len;
    row.temperature = temperature;
    row.draft_budget = entry.budget;
    row.prompts = static_cast<int>(all[i].prefill_ms.size());
    row.repeats = static_cast<int>(all[i].repeats.size());
    row.tokens = options.predict;
    fill_times(row, totals_of[i]);
    row.speedup_fp16 =
        speedup(totals_of[i], totals_of[plain_entry(entries, kPlainFp16, temperature)]);
    row.speedup_int8 =
        speedup(totals_of[i], totals_of[plain_entry(entries, kPlainInt8, temperature)]);
    row.acceptance_rate = share(all[i], stats, &RoundStats::acceptance_rate);
    row.acceptance_per_token = share(all[i], stats, &RoundStats::acceptance_per_token);
    row.accepted_per_position = stats.accepted_per_position();
    row.draft_len_mean = stats.draft_len_mean();
    row.prefill_ms = spread_of(all[i].prefill_ms);
    const Plan* chosen = chosen_plan(entry, all[i], stats.rounds);
    if (chosen != nullptr) row.chosen_plan = entry.label_of(*chosen);
    row.predicted_ms_per_token = predictor.milliseconds(
        entry, context + options.predict / 2, chosen,
        static_cast<int>(std::lround(stats.draft_len_mean())), stats.acceptance_per_token());
    row.memory = all[i].memory;
    row.gathered_bytes = all[i].gathered_bytes;
    row.process_peak_bytes = peak_rss_bytes();
    row.tokens_hash = hash_of(all[i].repeats.front());
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace quantspec::bench
