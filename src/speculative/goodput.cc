#include "speculative/goodput.h"

#include <algorithm>

#include "base/error.h"

namespace quantspec {
namespace {

// Fixed point of tokens in sums over lanes: compilers add integers side by side, and kMostLanes of
// them fit.
constexpr int kOne = 1 << 18;
constexpr int kMostLanes = (1 << 13) - 1;
// What a drafted token must be worth, in tokens; finer where most good choices are.
constexpr std::array kPrices = {0.0f, 0.1f, 0.22f, 0.4f, 0.65f};
constexpr std::array kFinerPrices = {-0.05f, 0.0f, 0.05f};  // around the best of those
constexpr double kHopeless = 0.9;  // a greater depth is not tried after such a share of the best
constexpr int kRefinePasses = 4;   // over all lanes

}  // namespace

void Goodput::reserve(std::size_t lanes) {
  lanes_.reserve(lanes);
  survival_.reserve(kMaxDraftLen * lanes);
  byte_price_.reserve(lanes);
  byte_seconds_.reserve(lanes);
}

void Goodput::set(const CostModel& costs, int plan, std::span<const DraftLane> lanes) {
  check(!lanes.empty() && std::ssize(lanes) <= std::min(costs.target().max_rows(), kMostLanes),
        "a round has a sequence or more, each a row");
  costs_ = &costs;
  draft_ = nullptr;
  lanes_.assign(lanes.begin(), lanes.end());
  deepest_ = 0;
  plain_ = {.tokens = static_cast<double>(size()), .verify = {.rows = size()}};
  for (const DraftLane& lane : lanes) {
    check(lane.cap >= 0 && lane.cap <= kMaxDraftLen, "a cap is within kMaxDraftLen");
    deepest_ = std::max(deepest_, lane.cap);
    plain_.verify.kv_bytes += lane.verify_bytes;
  }
  looks_up_ = std::ranges::any_of(lanes, &DraftLane::looked_up);
  if (deepest_ == 0) return;
  const auto drafts = [](const DraftLane& lane) { return lane.cap > 0 && !lane.looked_up; };
  if (std::ranges::any_of(lanes, drafts)) draft_ = &costs.draft(plan);
  survival_.assign(deepest_ * lanes.size(), -1);
  byte_seconds_.resize(lanes.size());
  byte_price_.resize(lanes.size());
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const DraftLane& lane = lanes[i];
    for (int d = 0; d < lane.cap; ++d) {
      survival_[d * lanes.size() + i] = static_cast<int>((*lane.survival)[d] * kOne);
    }
    byte_seconds_[i] =
        (lane.looked_up || draft_ == nullptr ? 0 : draft_->kv_rate() * lane.draft_bytes) +
        costs.target().row_rate() * lane.verify_bytes;
  }
}

double Goodput::seconds(const Round& round) const {
  return round.draft_seconds + costs_->target().seconds(round.verify);
}

double Goodput::rate(const Round& round) const { return round.tokens / seconds(round); }

double Goodput::plain() const { return rate(plain_); }

// What the time of a token's bytes costs if the round yields so many tokens a second. Nothing is
// worth more than one token.
void Goodput::set_byte_prices(double rate) {
  byte_rate_ = rate;
  for (std::size_t i = 0; i < byte_price_.size(); ++i) {
    byte_price_[i] = static_cast<int>(std::min(rate * byte_seconds_[i], 1.0) * kOne);
  }
}

// Over the lanes whose token at this depth is worth more than the price.
Goodput::Sums Goodput::sums(int depth, int price) const {
  const int count = size();
  const int* survival = &survival_[static_cast<std::size_t>(depth) * count];
  const int* byte_price = byte_price_.data();
  int rows = 0, tokens = 0, bytes = 0, looked_up = 0;
  for (int i = 0; i < count; ++i) {
    const bool on = survival[i] - byte_price[i] > price;
    rows += on ? 1 : 0;
    tokens += on ? survival[i] : 0;
    bytes += on ? byte_price[i] : 0;
  }
  for (int i = 0; looks_up_ && i < count; ++i) {
    looked_up += lanes_[i].looked_up && survival[i] - byte_price[i] > price ? 1 : 0;
  }
  return {rows, rows - looked_up, static_cast<double>(tokens) / kOne, bytes / (kOne * byte_rate_)};
}

Goodput::Choice Goodput::scan(int price, int max_rows) const {
  Choice best{.price = price};
  int rows = size();
  double tokens = size();
  const double kv_seconds = costs_->target().kv_rate() * plain_.verify.kv_bytes;
  double draft_seconds = 0;
  for (int depth = 0; depth < deepest_; ++depth) {
    const Sums added = sums(depth, price);
    rows += added.rows;
    if (added.rows == 0 || rows > max_rows) break;
    tokens += added.survival;
    draft_seconds += added.byte_seconds;
    if (added.drafted_rows > 0) draft_seconds += draft_->weights_seconds(added.drafted_rows);
    const double verify_seconds = costs_->target().weights_seconds(rows) + kv_seconds;
    const double rate = tokens / (draft_seconds + verify_seconds);
    if (rate > best.rate) best.rate = rate, best.depth = depth + 1;
    if (rate < kHopeless * best.rate) break;
  }
  return best;
}

Goodput::Choice Goodput::scan_prices(std::span<const float> prices, int from, int max_rows) const {
  Choice best;
  for (const float price : prices) {
    const Choice choice = scan(std::max(0, from + static_cast<int>(price * kOne)), max_rows);
    if (choice.rate > best.rate) best = choice;
    if (size() == 1) break;  // there is nothing to choose between
  }
  return best;
}

double Goodput::best_rate(int max_rows) {
  if (deepest_ == 0 || size() >= max_rows) return 0;
  set_byte_prices(plain());
  return scan_prices(kPrices, 0, max_rows).rate;
}

// One token of the lane to which it is worth most.
void Goodput::fewest(std::span<int> lengths) const {
  int most = -1;
  for (int i = 0; i < size(); ++i) {
    if (lanes_[i].cap == 0) continue;
    const auto worth = [&](int lane) { return survival_[lane] - byte_price_[lane]; };
    if (most < 0 || worth(i) > worth(most)) most = i;
  }
  lengths[most] = 1;
}

void Goodput::read_off(const Choice& choice, std::span<int> lengths) const {
  for (int i = 0; i < size(); ++i) {
    int length = 0;
    while (length < std::min(choice.depth, lanes_[i].cap) &&
           survival_[length * size() + i] - byte_price_[i] > choice.price) {
      ++length;
    }
    lengths[i] = length;
  }
}

double Goodput::best(std::span<int> lengths, int max_rows) {
  std::fill(lengths.begin(), lengths.end(), 0);
  if (deepest_ == 0 || size() >= max_rows) return 0;
  set_byte_prices(plain());
  Choice best = scan_prices(kPrices, 0, max_rows);
  if (best.rate > 0) {  // bytes cost what their time is worth at that rate
    set_byte_prices(best.rate);
    best = scan_prices(kFinerPrices, best.price, max_rows);
  }
  if (best.rate > 0) {
    read_off(best, lengths);
  } else {
    fewest(lengths);
  }
  return of(lengths);
}

void Goodput::build(std::span<const int> lengths) {
  check(std::ssize(lengths) == size(), "one length for every lane");
  round_ = plain_;
  depths_ = {};
  for (int i = 0; i < size(); ++i) {
    check(lengths[i] >= 0 && lengths[i] <= lanes_[i].cap, "lengths are within their caps");
    round_.verify.rows += lengths[i];
    round_.verify.row_bytes += lengths[i] * lanes_[i].verify_bytes;
    for (int d = 0; d < lengths[i]; ++d) {
      round_.tokens += (*lanes_[i].survival)[d];
      if (lanes_[i].looked_up) continue;
      depths_[d].load.rows += 1;
      depths_[d].load.kv_bytes += lanes_[i].draft_bytes;
    }
  }
  for (Depth& depth : depths_) {
    if (depth.load.rows == 0) break;
    depth.seconds = draft_->seconds(depth.load);
    round_.draft_seconds += depth.seconds;
  }
}

double Goodput::of(std::span<const int> lengths) {
  build(lengths);
  return rate(round_);
}

double Goodput::seconds(std::span<const int> lengths) {
  build(lengths);
  return seconds(round_);
}

double Goodput::tokens(std::span<const int> lengths) {
  build(lengths);
  return round_.tokens;
}

PassLoad Goodput::verify_load(std::span<const int> lengths) {
  build(lengths);
  return round_.verify;
}

std::span<const PassLoad> Goodput::draft_loads(std::span<const int> lengths) {
  build(lengths);
  std::size_t count = 0;
  for (const Depth& depth : depths_) {
    if (depth.load.rows == 0) break;
    loads_[count++] = depth.load;
  }
  return std::span(loads_).first(count);
}

void Goodput::change(int lane, int depth, int by) {
  const DraftLane& changed = lanes_[lane];
  round_.tokens += by * (*changed.survival)[depth];
  round_.verify.rows += by;
  round_.verify.row_bytes += by * changed.verify_bytes;
  if (changed.looked_up) return;
  Depth& at = depths_[depth];
  round_.draft_seconds -= at.seconds;
  at.load.rows += by;
  at.load.kv_bytes = at.load.rows == 0 ? 0 : at.load.kv_bytes + by * changed.draft_bytes;
  at.seconds = at.load.rows == 0 ? 0 : draft_->seconds(at.load);
  round_.draft_seconds += at.seconds;
}

// Changes a lane's length by one if the round is the better for it.
bool Goodput::improve(std::span<int> lengths, int lane, int by, int max_rows) {
  const int length = lengths[lane] + by;
  if (length < 0 || length > lanes_[lane].cap || round_.verify.rows + by > max_rows) return false;
  const int depth = by > 0 ? length - 1 : length;
  const Round before = round_;
  const Depth depth_before = depths_[depth];
  change(lane, depth, by);
  if (round_.verify.rows > size() && rate(round_) > rate(before) * (1 + 1e-9)) {
    lengths[lane] = length;
    return true;
  }
  round_ = before;
  depths_[depth] = depth_before;
  return false;
}

double Goodput::refine(std::span<int> lengths, int max_rows) {
  build(lengths);
  for (int pass = 0; pass < kRefinePasses; ++pass) {
    bool improved = false;
    for (int lane = 0; lane < size(); ++lane) {
      if (lanes_[lane].cap == 0) continue;
      const int before = lengths[lane];
      while (improve(lengths, lane, 1, max_rows)) {
      }
      if (lengths[lane] == before) {
        while (improve(lengths, lane, -1, max_rows)) {
        }
      }
      improved |= lengths[lane] != before;
    }
    if (!improved) break;
  }
  return of(lengths);
}

void Goodput::prefer(std::span<int> lengths, std::span<const int> wanted, int max_rows,
                     double tolerance) {
  build(lengths);
  const double share = rate(round_) * tolerance / size();
  for (int lane = 0; lane < size(); ++lane) {
    if (wanted[lane] < 0) continue;
    const int target = std::min(wanted[lane], lanes_[lane].cap);
    const int by = target > lengths[lane] ? 1 : -1;
    const int rows = round_.verify.rows + target - lengths[lane];
    if (target == lengths[lane] || rows > max_rows || rows == size()) continue;
    const Round before = round_;
    const auto depths_before = depths_;
    for (int length = lengths[lane]; length != target; length += by) {
      change(lane, by > 0 ? length : length - 1, by);
    }
    if (rate(round_) >= rate(before) - share) {
      lengths[lane] = target;
    } else {
      round_ = before;
      depths_ = depths_before;
    }
  }
}

}  // namespace quantspec
