// What a caller can set of a measurement of speed (base/field.h).
#pragma once

#include "base/field.h"

namespace quantspec::field {

inline constexpr Field kBudgetShares{"budget shares"};
inline constexpr Field kRepeats{"number of repeats"};
inline constexpr Field kWarmUp{"warm-up"};
inline constexpr Field kStreams{"number of streams"};
inline constexpr Field kTrace{"trace"};
inline constexpr Field kLatePrompt{"late prompt"};

}  // namespace quantspec::field
