// Simulated machines for the tests of DraftLengths: known times, known acceptance, and a clock as
// bad as real ones. Times are in seconds. And a tiny model that is real.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model/model.h"
#include "model/model_files.h"
#include "model/weight_source.h"
#include "speculative/draft_lengths.h"

namespace quantspec {

// The backend outlives it.
inline Model load_tiny_model(Backend& backend) {
  const std::filesystem::path folder = QUANTSPEC_TESTDATA "/models/llama-gqa3";
  const auto files = open_model(folder);
  Weights weights(files->config(), files->weights(), backend);
  weights.make_draft_planes(backend, WeightRead::kBoth);
  return Model(files->config(), std::move(weights), backend);
}

inline constexpr int kPage = 128;
inline constexpr int kMaxRows = 1024;

// A plan on a machine: a draft pass of so many rows, without KV; seconds a token of KV that it
// reads; the share of the context's KV that it reads.
struct SimPlan {
  std::function<double(int rows)> pass;
  double kv_seconds;
  double kv_share;
  std::function<double(int sequence, double context)> acceptance;
  float usual_acceptance = PlanAcceptance::kUsual;  // of plans of its kind
};

struct Machine {
  double target_bytes;  // of weights
  double token_bytes;   // of 8-bit KV, a token
  std::vector<double> plan_bytes;
  std::function<double(int rows)> verify;
  double kv_seconds;      // verification, a token of KV
  double row_kv_seconds;  // the same for every row of the sequence but one
  std::vector<SimPlan> plans;
};

struct SimSequence {
  int id;
  double context;
  SequenceDrafts drafts;
  std::vector<double> draft_bytes = {};
};

struct Tally {
  double tokens = 0, seconds = 0;
  double rate() const { return tokens / seconds; }
};

class Simulation {
 public:
  Simulation(const Machine& machine, std::uint64_t seed, double noise = 0.03,
             double outliers = 0.02)
      : machine_(machine), engine_(seed), noise_(noise), outliers_(outliers), lengths_(options()) {}

  void add(double context) {
    SimSequence added{next_id_++, context + static_cast<int>(engine_() % kPage),
                      lengths_.sequence()};
    batch_.push_back(std::move(added));
  }
  void remove() { batch_.erase(batch_.begin()); }
  void resize(std::size_t count, double context) {
    while (size() > count) remove();
    while (size() < count) add(context);
  }
  // Passes over an empty cache are timed, as when a loop is made.
  void time_passes() {
    std::vector<TimedPass> passes;
    for (const int rows : {1, 3, 7}) {
      passes.push_back({.load = {.rows = rows}, .seconds = machine_.verify(rows)});
    }
    for (int plan = 0; plan < std::ssize(machine_.plans); ++plan) {
      passes.push_back(
          {.plan = plan, .load = {.rows = 1}, .seconds = machine_.plans[plan].pass(1)});
    }
    lengths_.set_priors(passes);
  }
  const DraftLengths& lengths() const { return lengths_; }
  Machine& machine() { return machine_; }  // which may change as time goes by
  std::size_t size() const { return batch_.size(); }

  Tally run(int rounds) {
    Tally tally;
    for (int i = 0; i < rounds; ++i) round(tally, true, {});
    return tally;
  }
  // Until so many tokens are expected.
  Tally run_tokens(double count) {
    Tally tally;
    while (tally.tokens < count) round(tally, true, {});
    return tally;
  }
  Tally plain(int rounds) {
    Tally tally;
    for (int i = 0; i < rounds; ++i) round(tally, false, {-1, std::vector<int>(size(), 0)});
    return tally;
  }
  // By the best lengths, found anew now and then.
  Tally best(int rounds) {
    Tally tally;
    Choice choice;
    for (int i = 0; i < rounds; ++i) {
      if (i % 128 == 0) choice = best_choice();
      round(tally, false, choice);
    }
    return tally;
  }

 private:
  struct Choice {
    int plan = -1;
    std::vector<int> lengths;
  };
  struct Expected {
    double tokens = 0, draft_seconds = 0, verify_seconds = 0;
    double rate() const { return tokens / (draft_seconds + verify_seconds); }
  };

  DraftLengths::Options options() const {
    DraftLengths::Options options{.plan_bytes = machine_.plan_bytes,
                                  .target_bytes = machine_.target_bytes,
                                  .max_rows = kMaxRows};
    for (std::size_t i = 0; i < machine_.plans.size(); ++i) {
      options.plans.push_back("plan" + std::to_string(i));
      options.acceptance.push_back(machine_.plans[i].usual_acceptance);
    }
    return options;
  }

  double uniform() { return std::uniform_real_distribution<double>(0, 1)(engine_); }
  double noise() {
    const double usual = 1 + noise_ * std::abs(std::normal_distribution<double>()(engine_));
    return usual * (uniform() < outliers_ ? 3 + 15 * uniform() : 1);
  }
  int cap(const SimSequence& sequence) const {
    return std::min(kMaxDraftLen, kPage - 1 - static_cast<int>(sequence.context) % kPage);
  }

  Expected expected(int plan, const std::vector<int>& lengths) const {
    Expected sum;
    int rows = 0;
    std::array<int, kMaxDraftLen> depth_rows{};
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      const double context = batch_[i].context;
      rows += lengths[i] + 1;
      sum.tokens += 1;
      sum.verify_seconds += context * (machine_.kv_seconds + lengths[i] * machine_.row_kv_seconds);
      if (lengths[i] == 0) continue;
      const SimPlan& p = machine_.plans[plan];
      const double accept = p.acceptance(batch_[i].id, context);
      double all = 1;
      for (int d = 0; d < lengths[i]; ++d) {
        sum.tokens += all *= accept;
        ++depth_rows[d];
        sum.draft_seconds += p.kv_seconds * p.kv_share * context;
      }
    }
    for (const int r : depth_rows) {
      if (r > 0) sum.draft_seconds += machine_.plans[plan].pass(r);
    }
    sum.verify_seconds += machine_.verify(rows);
    return sum;
  }

  // From the best equal lengths uphill.
  Choice best_choice() const {
    Choice best{-1, std::vector<int>(size(), 0)};
    double best_rate = expected(-1, best.lengths).rate();
    for (int plan = 0; plan < std::ssize(machine_.plans); ++plan) {
      for (int length = 1; length <= kMaxDraftLen; ++length) {
        Choice choice{plan, std::vector<int>(size(), length)};
        climb(choice);
        const double rate = expected(plan, choice.lengths).rate();
        if (rate > best_rate) best_rate = rate, best = choice;
        if (size() > 8) length += length;
      }
    }
    return best;
  }
  void climb(Choice& choice) const {
    double rate = expected(choice.plan, choice.lengths).rate();
    for (bool better = true; better;) {
      better = false;
      for (int& length : choice.lengths) {
        for (const int by : {1, -1}) {
          while (length + by >= 0 && length + by <= kMaxDraftLen) {
            length += by;
            const double other = expected(choice.plan, choice.lengths).rate();
            if (other <= rate * (1 + 1e-9)) {
              length -= by;
              break;
            }
            rate = other;
            better = true;
          }
        }
      }
    }
  }

  void round(Tally& tally, bool ours, Choice choice) {
    std::vector<SequenceLoad> loads;
    for (SimSequence& sequence : batch_) {
      const double bytes = machine_.token_bytes * sequence.context;
      sequence.draft_bytes.clear();
      for (const SimPlan& plan : machine_.plans) {
        sequence.draft_bytes.push_back(plan.kv_share * bytes);
      }
      loads.push_back({&sequence.drafts, cap(sequence), bytes, sequence.draft_bytes});
    }
    if (ours) {
      const RoundChoice chosen = lengths_.choose(loads);
      choice = {chosen.plan, {chosen.lengths.begin(), chosen.lengths.end()}};
    }
    for (std::size_t i = 0; i < size(); ++i) {
      EXPECT_TRUE(!ours || choice.lengths[i] <= loads[i].cap);
      choice.lengths[i] = std::min(choice.lengths[i], loads[i].cap);
    }
    const Expected result = expected(choice.plan, choice.lengths);
    std::vector<int> accepted(size(), 0);
    for (std::size_t i = 0; i < size(); ++i) {
      const int length = choice.lengths[i];
      if (length > 0) {
        const double accept =
            machine_.plans[choice.plan].acceptance(batch_[i].id, batch_[i].context);
        while (accepted[i] < length && uniform() < accept) ++accepted[i];
      }
      batch_[i].context += accepted[i] + 1;
    }
    if (ours) {
      const RoundChoice run{choice.plan, choice.lengths};
      lengths_.observe(loads, run, accepted, result.draft_seconds * noise(),
                       result.verify_seconds * noise());
    }
    tally.tokens += result.tokens;
    tally.seconds += result.draft_seconds + result.verify_seconds;
  }

  Machine machine_;
  std::mt19937_64 engine_;
  double noise_, outliers_;
  DraftLengths lengths_;
  std::vector<SimSequence> batch_;
  int next_id_ = 0;
};

}  // namespace quantspec
