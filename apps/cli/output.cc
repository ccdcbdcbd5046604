#include "apps/cli/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "apps/cli/terminal.h"
#include "base/error.h"

namespace quantspec::cli {

void write_output(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (written && std::fflush(stdout) == 0) return;
  if (errno == EPIPE) throw BrokenPipe();
  fail(ErrorKind::kInvalidRequest, "cannot write to standard output: {}", std::strerror(errno));
}

void TextOutput::write(std::string_view text, bool drafted, bool looked_up) {
  if (text.empty()) return;
  line_open_ = !text.ends_with('\n');
  if (drafted && color_) {
    write_output(fmt::format("{}{}{}", looked_up ? kFoundTint : kTint, text, kReset));
  } else {
    write_output(text);
  }
}

void TextOutput::finish() {
  if (line_open_ && is_terminal(stdout)) write_output("\n");
}

}  // namespace quantspec::cli
