// Progress bars on standard error, for what takes a while; and the place where Ctrl-C and SIGTERM
// are noticed.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "engine/engine.h"

namespace quantspec::cli {

// One line that is drawn over, and gone when its stage is done.
class Progress {
 public:
  // Draws nothing unless `visible`.
  explicit Progress(bool visible) : visible_(visible) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // The share of `stage` that is done, in [0, 1], and how many tokens the whole stage is (0: it
  // is not about tokens).
  void update(std::string_view stage, double done, std::size_t tokens = 0);
  void clear();

  // For the engine: as update(), and throws Interrupted after a Ctrl-C or SIGTERM.
  // REQUIRES: outlived by this.
  ProgressCallback callback(std::size_t tokens = 0);

 private:
  void draw(const std::string& line);

  bool visible_;
  std::string stage_;
  Stopwatch in_stage_;
  Stopwatch since_drawn_;
  std::size_t drawn_columns_ = 0;
};

}  // namespace quantspec::cli
