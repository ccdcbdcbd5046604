#include "apps/cli/progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/cli/interrupt.h"
#include "apps/cli/messages.h"
#include "apps/cli/terminal.h"

namespace quantspec::cli {

namespace {

constexpr double kQuietSeconds = 0.2;  // a stage shorter than this shows no bar
constexpr double kRedrawSeconds = 1 / 15.0;

std::string bar_line(std::string_view stage, double done, double seconds, std::size_t tokens) {
  constexpr int kCells = 30;
  const int filled = std::clamp(static_cast<int>(done * kCells), 0, kCells);
  std::string line =
      fmt::format("{:9} [{:-<{}}] {:3.0f}%", stage, std::string(filled, '#'), kCells, 100 * done);
  if (tokens > 0) line += fmt::format("  {:.0f} tokens/s", done * tokens / seconds);
  if (done > 0) line += fmt::format("  {:.0f} s left", seconds * (1 - done) / done);
  return line;
}

}  // namespace

void Progress::update(std::string_view stage, double done, std::size_t tokens) {
  if (!visible_) return;
  if (stage != stage_) {
    clear();
    stage_ = stage;
    in_stage_.restart();
  }
  if (done >= 1) return clear();
  const double seconds = in_stage_.seconds();
  if (seconds < kQuietSeconds || since_drawn_.seconds() < kRedrawSeconds) return;
  draw(bar_line(stage, done, seconds, tokens));
}

void Progress::draw(const std::string& line) {
  since_drawn_.restart();
  const auto columns = std::min<std::size_t>(line.size(), terminal_width() - 1);
  say(fmt::format("\r{:{}}", line.substr(0, columns), std::max(columns, drawn_columns_)));
  drawn_columns_ = columns;
}

void Progress::clear() {
  if (drawn_columns_ > 0) say(fmt::format("\r{:{}}\r", "", drawn_columns_));
  drawn_columns_ = 0;
  stage_.clear();
}

ProgressCallback Progress::callback(std::size_t tokens) {
  return [this, tokens](std::string_view stage, double done) {
    if (interrupted()) throw Interrupted();
    update(stage, done, tokens);
  };
}

}  // namespace quantspec::cli
