// Standard output, which carries only what was asked for.
#pragma once

#include <string_view>

namespace quantspec::cli {

inline constexpr int kExitBrokenPipe = 141;  // 128 + SIGPIPE, as shells have it

// Thrown when whoever read standard output is gone (`| head`): the program ends quietly.
struct BrokenPipe {};

// Writes and flushes. Throws BrokenPipe, or Error when the text cannot be written.
void write_output(std::string_view text);

// The generated text on its way to the reader.
class TextOutput {
 public:
  explicit TextOutput(bool color) : color_(color) {}

  // `drafted` text is tinted, so that one sees speculation work, and what was looked up otherwise.
  void write(std::string_view text, bool drafted, bool looked_up = false);
  // On a terminal, ends the last line.
  void finish();

 private:
  bool color_;
  bool line_open_ = false;
};

}  // namespace quantspec::cli
