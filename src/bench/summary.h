// From runs to rows. Private to bench/.
#pragma once

#include <vector>

#include "bench/measurement.h"
#include "bench/prediction.h"

namespace quantspec::bench {

// REQUIRES: not empty.
Spread spread_of(std::vector<double> values);

// One row for each entry, in their order.
std::vector<BenchRow> make_rows(const std::vector<Entry>& entries, const std::vector<Measured>& all,
                                const BenchOptions& options, int context,
                                const Predictor& predictor);

}  // namespace quantspec::bench
