#include "apps/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace quantspec::cli {

namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

bool is_terminal(std::FILE* stream) {
  return isatty(fileno(stream)) == 1 && environment("TERM") != "dumb";
}

bool use_color(Color color, std::FILE* stream) {
  if (color != Color::kAuto) return color == Color::kAlways;
  return is_terminal(stream) && environment("NO_COLOR").empty();
}

int terminal_width() {
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace quantspec::cli
