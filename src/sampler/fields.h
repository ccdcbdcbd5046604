// How tokens are chosen: what a caller can set of it (base/field.h).
#pragma once

#include "base/field.h"

namespace quantspec::field {

inline constexpr Field kTemperature{"temperature"};
inline constexpr Field kTopK{"top-k"};
inline constexpr Field kTopP{"top-p"};
inline constexpr Field kMinP{"min-p"};
inline constexpr Field kRepeatPenalty{"repeat penalty"};
inline constexpr Field kRepeatLastN{"reach of the repeat penalty"};
inline constexpr Field kPresencePenalty{"presence penalty"};
inline constexpr Field kFrequencyPenalty{"frequency penalty"};
inline constexpr Field kSeed{"seed"};
inline constexpr Field kLogitBias{"logit bias"};
inline constexpr Field kMinTokens{"least tokens"};

}  // namespace quantspec::field
