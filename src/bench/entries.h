// What bench runs at one context: every combination that was asked for, resolved to plans. Private
// to bench/.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "speculative/speculative.h"

namespace quantspec::bench {

struct Entry {
  std::string plan;          // the row's
  DecodingOptions decoding;  // but for the seed
  KvStore store = KvStore::kHierarchical;
  std::optional<int> budget = {};  // the row's, in tokens
  bool is_auto = false;            // its plans have their budgets in their names

  bool is_plain() const { return decoding.plans.empty(); }
  // What it calls one of its plans.
  std::string label_of(const Plan& plan) const;
  // The same tokens every time, whatever the clock says.
  bool is_fixed() const { return is_plain() || (decoding.draft_len && decoding.plans.size() == 1); }
  // The same tokens as plain decoding.
  bool is_lossless() const {
    return is_plain() || decoding.sampling.greedy() ||
           decoding.spec_sampling == SpecSampling::kCoupled;
  }
  // The target's.
  std::vector<int> full_layers() const { return kv_options(decoding.plans).full_layers; }
};

// For each temperature plain decoding over fp16 and over the hierarchical cache, then the plans.
// What `all` has to leave out is appended to left_out, unless that is null.
std::vector<Entry> make_entries(Engine& engine, const BenchOptions& options, int context,
                                std::vector<LeftOut>* left_out = nullptr);

// Which entry runs when in a repeat: all of them, another one first each time.
std::vector<int> run_order(int num_entries, int repeat);

}  // namespace quantspec::bench
