// What a caller can set (base/field.h) and rooms below the engine check.
#pragma once

#include "base/field.h"

namespace quantspec::field {

inline constexpr Field kBackend{"backend"};
inline constexpr Field kDevice{"device"};
inline constexpr Field kThreads{"number of threads"};
inline constexpr Field kContext{"context size"};
inline constexpr Field kContextRanks{"number of ranks that share a context"};
inline constexpr Field kPageSize{"page size"};
inline constexpr Field kKvCache{"KV cache"};
inline constexpr Field kTargetWeights{"target weights"};
inline constexpr Field kDraftStore{"draft store"};
inline constexpr Field kGroup{"group size"};  // of a draft store
inline constexpr Field kPlan{"plan"};
inline constexpr Field kDraftBudget{"draft budget"};

}  // namespace quantspec::field
