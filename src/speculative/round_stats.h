// What rounds have done: numbers, with no model behind them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backend/params/limits.h"

namespace quantspec {

// Times in seconds.
struct RoundStats {
  std::int64_t rounds = 0;
  std::int64_t drafted = 0;
  std::int64_t accepted = 0;
  // Of those, looked up in the text (Plan::lookup).
  std::int64_t looked_up = 0;
  std::int64_t looked_up_accepted = 0;
  std::int64_t rejections = 0;  // rounds that ended in a correction
  // By position in a draft: how often one was drafted there, and accepted.
  std::array<std::int64_t, kMaxDraftLen> drafted_at{};
  std::array<std::int64_t, kMaxDraftLen> accepted_at{};
  double draft_seconds = 0;
  double verify_seconds = 0;  // verification, sampling and acceptance
  double commit_seconds = 0;

  double acceptance_rate() const;       // accepted / drafted
  double acceptance_per_token() const;  // of the drafted tokens that the target judged
  double tokens_per_round() const;
  double draft_len_mean() const;
  // Rates by position in a draft, up to the deepest that was drafted.
  std::vector<double> accepted_per_position() const;
  RoundStats& operator+=(const RoundStats& other);
};

}  // namespace quantspec
