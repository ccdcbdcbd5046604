// Texts to measure on: what a caller can set of them (base/field.h).
#pragma once

#include "base/field.h"

namespace quantspec::field {

inline constexpr Field kDataset{"dataset"};
inline constexpr Field kPrompts{"number of prompts"};
inline constexpr Field kRecallDistance{"recall distance"};

}  // namespace quantspec::field
