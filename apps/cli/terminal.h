// What the terminal can do.
#pragma once

#include <cstdint>
#include <cstdio>

namespace quantspec::cli {

enum class Color : std::uint8_t { kAuto, kAlways, kNever };

// Whether `stream` is a terminal on which a line can be drawn over.
bool is_terminal(std::FILE* stream);

// Whether to colour what goes to `stream`. kAuto: on a terminal, unless NO_COLOR is set.
bool use_color(Color color, std::FILE* stream);

// Columns of the terminal that standard error goes to; 80 when it does not say.
int terminal_width();

inline constexpr const char* kTint = "\x1b[32m";       // green
inline constexpr const char* kFoundTint = "\x1b[36m";  // cyan
inline constexpr const char* kReset = "\x1b[0m";

}  // namespace quantspec::cli
