// What a caller can set of a measurement of fidelity (base/field.h).
#pragma once

#include "base/field.h"

namespace quantspec::field {

inline constexpr Field kStride{"stride"};
inline constexpr Field kDraftBytes{"draft bytes"};
inline constexpr Field kTargetBytes{"target bytes"};

}  // namespace quantspec::field
