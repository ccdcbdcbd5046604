#include "apps/cli/prompt.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "apps/cli/options.h"
#include "base/error.h"
#include "tokenizer/tokenizer.h"

namespace quantspec::cli {

namespace {

// No context holds as many; what has no end, such as /dev/zero, has more.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

[[noreturn]] void fail_read(const std::string& source) {
  fail(ErrorKind::kInvalidRequest, "cannot read {}: {}", source, std::strerror(errno));
}

// All that comes, of a file, a pipe or a terminal.
std::string read_all(int fd, const std::string& source) {
  std::string text;
  while (text.size() <= kMostBytes) {
    constexpr std::size_t kStep = std::size_t{1} << 16;
    const std::size_t size = text.size();
    text.resize(size + kStep);
    const ssize_t count = read(fd, text.data() + size, kStep);
    text.resize(size + std::max<ssize_t>(count, 0));
    if (count == 0) return text;
    if (count < 0 && errno != EINTR) fail_read(source);
  }
  fail(ErrorKind::kInvalidRequest, "{}: more than the {} bytes that a prompt may have", source,
       kMostBytes);
}

std::string read_file_or_pipe(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_read(path.string());
  struct Close {
    ~Close() { close(fd); }
    int fd;
  } const closed_at_end{fd};
  return read_all(fd, path.string());
}

}  // namespace

std::string read_text(const PromptArgs& args) {
  if (args.text) {
    require_text(*args.text, "--prompt");
    return *args.text;
  }
  const bool from_file = args.file && *args.file != "-";
  const std::string source = from_file ? args.file->string() : "standard input";
  std::string text = from_file ? read_file_or_pipe(*args.file) : read_all(STDIN_FILENO, source);
  require_text(text, source);
  text = unix_text(text);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string read_prompt(const PromptArgs& args) {
  if (!args.text && !args.file && isatty(STDIN_FILENO) == 1) {
    throw UsageError("no prompt: give one with -p TEXT, -f FILE or on standard input");
  }
  std::string prompt = read_text(args);
  if (prompt.empty()) throw UsageError("the prompt is empty; give some text to continue");
  return prompt;
}

}  // namespace quantspec::cli
