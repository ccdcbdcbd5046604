// How far something is that takes a while.
#pragma once

#include <functional>
#include <string_view>

namespace quantspec {

// A stage: its name and the share done in [0, 1]. May throw to cancel.
using ProgressCallback = std::function<void(std::string_view stage, double done)>;

}  // namespace quantspec
