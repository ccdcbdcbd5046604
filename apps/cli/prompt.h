// Where the prompt comes from.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace quantspec::cli {

struct PromptArgs {
  std::optional<std::string> text;
  std::optional<std::filesystem::path> file;  // "-": standard input, as is neither
};

// A text. A file may be a pipe. Of a file and of standard input a byte-order mark is dropped, line
// ends become those of Unix, and one newline at the end goes: it ends the line, not the text.
// Throws Error where it is no text.
std::string read_text(const PromptArgs& args);
// The prompt. Throws UsageError, too, when there is none, or an empty one.
std::string read_prompt(const PromptArgs& args);

}  // namespace quantspec::cli
