// How draft weights are prepared: what a caller can set of it (base/field.h).
#pragma once

#include "base/field.h"

namespace quantspec::field {

inline constexpr Field kMethod{"method"};
inline constexpr Field kHeadBits{"head bits"};
inline constexpr Field kCalibration{"calibration text"};
inline constexpr Field kCalibrationTokens{"calibration tokens"};

}  // namespace quantspec::field
