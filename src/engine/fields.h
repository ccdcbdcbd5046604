// What a caller of an engine can set (base/field.h), with what the rooms below it check.
#pragma once

#include "base/field.h"
#include "base/fields.h"
#include "sampler/fields.h"

namespace quantspec::field {

inline constexpr Field kRanks{"number of ranks"};
inline constexpr Field kPageMemory{"page memory"};
inline constexpr Field kHostCache{"host cache"};
inline constexpr Field kDraftWeights{"draft weights"};
inline constexpr Field kDraftLen{"draft length"};
inline constexpr Field kPredict{"number of tokens to predict"};
inline constexpr Field kPrediction{"prediction"};
inline constexpr Field kLookupHistory{"lookup history"};

}  // namespace quantspec::field
