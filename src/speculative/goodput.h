// The lengths by which a batch's next round yields most tokens a second, if all of it is drafted by
// one plan (section 4 of docs/design.md). With draft lengths g[i] a round is expected to yield
//
//     N = sum_i (1 + sum_{d <= g[i]} survival[i][d])
//
// tokens in the time T that the cost model says, and N / T is maximized. Lanes are the batch's
// sequences. Since survival never rises with depth, the good choices are nested: a token is drafted
// if what it is expected to yield, less the time of the bytes that it reads (at the rate N / T, as
// in Dinkelbach's method), is worth more than some price of a row. All prices of a grid and all
// greatest depths are tried, each by its true N / T (best), and the best one can be refined by
// single tokens (refine). Where times are linear in rows and drafts pay, that is the optimum to
// within a percent.
//
// Deterministic; not thread-safe; allocates when a batch is larger than all before.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "backend/params/limits.h"
#include "speculative/cost_model.h"

namespace quantspec {

// What a search needs to know of a sequence.
struct DraftLane {
  const std::array<float, kMaxDraftLen>* survival;  // never rises; may differ from lane to lane
  int cap;                                          // 0 .. kMaxDraftLen; 0: it drafts nothing
  double draft_bytes;                               // of KV that a draft pass reads of it
  double verify_bytes;                              // of KV that a verification reads of it
  bool looked_up = false;                           // its tokens: no pass drafts them
};

class Goodput {
 public:
  // So many lanes allocate nothing from now on.
  void reserve(std::size_t lanes);
  // What the next calls are about. `costs` and the lanes' survival outlive them. plan: of `costs`;
  // any if no pass drafts. REQUIRES: 1 <= lanes.size() <= costs.target().max_rows(), < 8192.
  void set(const CostModel& costs, int plan, std::span<const DraftLane> lanes);

  // Tokens a second without drafts.
  double plain() const;
  // The best lengths in which some lane drafts: writes them, returns their tokens a second; 0 if no
  // lane can. max_rows: of the verification.
  double best(std::span<int> lengths, int max_rows);
  // About what best() would return; cheaper.
  double best_rate(int max_rows);
  // Adds and drops single tokens as long as that helps; returns tokens a second.
  double refine(std::span<int> lengths, int max_rows);
  // Any lengths within the caps.
  double of(std::span<const int> lengths);
  double seconds(std::span<const int> lengths);
  double tokens(std::span<const int> lengths);
  // Moves lengths to `wanted` (negative: wants nothing; capped) one by one wherever all in all less
  // than `tolerance` of the goodput is lost. REQUIRES: lengths are within the caps.
  void prefer(std::span<int> lengths, std::span<const int> wanted, int max_rows, double tolerance);

  // Loads of the round's passes: of verification, and of the drafts by depth.
  PassLoad verify_load(std::span<const int> lengths);
  std::span<const PassLoad> draft_loads(std::span<const int> lengths);

 private:
  // A round, as lengths make it.
  struct Round {
    double tokens = 0;
    double draft_seconds = 0;
    PassLoad verify;
  };
  struct Depth {
    PassLoad load;
    double seconds = 0;
  };

  int size() const { return static_cast<int>(lanes_.size()); }
  // The tokens worth more than `price`, down to the depth at which N / T is best.
  struct Choice {
    double rate = 0;  // N / T; 0: nothing is worth it
    int price = 0;
    int depth = 0;
  };
  struct Sums {                      // over the lanes that draft at a depth
    int rows = 0, drafted_rows = 0;  // of verification, of the draft pass
    double survival = 0, byte_seconds = 0;
  };

  double rate(const Round& round) const;
  double seconds(const Round& round) const;
  void build(std::span<const int> lengths);
  void set_byte_prices(double rate);
  Sums sums(int depth, int price) const;
  Choice scan(int price, int max_rows) const;
  Choice scan_prices(std::span<const float> prices, int from, int max_rows) const;
  void fewest(std::span<int> lengths) const;
  void read_off(const Choice& choice, std::span<int> lengths) const;
  // Adds (by = 1) or takes (-1) a lane's token at a depth.
  void change(int lane, int depth, int by);
  bool improve(std::span<int> lengths, int lane, int by, int max_rows);

  const CostModel* costs_ = nullptr;
  const PassTime* draft_ = nullptr;  // null: no lane drafts by passes
  bool looks_up_ = false;            // some lane's tokens are looked up
  std::vector<DraftLane> lanes_;
  int deepest_ = 0;  // cap
  // In fixed point.
  std::vector<int> survival_;         // [depth, lane]; negative beyond the cap
  std::vector<int> byte_price_;       // [lane]: of the KV that a drafted token reads, in tokens
  double byte_rate_ = 1;              // tokens a second at which that is so
  std::vector<double> byte_seconds_;  // [lane]
  Round plain_;
  Round round_;  // as built and changed
  std::array<Depth, kMaxDraftLen> depths_;
  std::array<PassLoad, kMaxDraftLen> loads_;
};

}  // namespace quantspec
