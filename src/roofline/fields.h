// What a caller can set of a roofline (base/field.h).
#pragma once

#include "base/field.h"

namespace quantspec::field {

inline constexpr Field kMachine{"machine"};

}  // namespace quantspec::field
