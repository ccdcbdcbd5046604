// Standard error. That it cannot be written, being closed or full, is no reason to fail: what is
// said there is not what was asked for.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace quantspec::cli {

// Where a standard stream is closed, puts a file in its place that can neither be read nor written,
// so that no other file takes its number and gets what is meant for it. Called first.
void keep_standard_streams();

enum class Loudness { kQuiet, kNormal, kVerbose };
// What the library and warn() say from here on goes through say_line(), errors and warnings and, as
// `loudness` says, less or more.
void set_up_log(Loudness loudness);

// Text as it is: summaries, progress.
void say(std::string_view text);
// "quantspec: LEVEL: MESSAGE" on a line of its own, whatever the message has in it.
void say_line(std::string_view level, std::string_view message);

// A warning, unless set_up_log() was told to be quiet.
void warn(std::string_view message);

}  // namespace quantspec::cli
