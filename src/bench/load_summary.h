// From what a load measured to rows. Private to bench/.
#pragma once

#include <span>
#include <vector>

#include "bench/load_measurement.h"

namespace quantspec::bench {

// By nearest rank: the least value that so large a share of all are no greater than. NaN of none.
double percentile(std::vector<double> values, double share);

// What all rows of a load have in common.
struct LoadShape {
  int streams;
  std::optional<int> context;  // of uniform load
  int requests;                // of a repeat
  std::optional<int> tokens;   // of a stream in a repeat
  int capacity;                // tokens of a sequence at most
};

// One row for each entry, in their order.
std::vector<LoadRow> make_load_rows(Engine& engine, std::span<const Entry> entries,
                                    std::span<const LoadMeasured> all, const LoadShape& shape);

}  // namespace quantspec::bench
