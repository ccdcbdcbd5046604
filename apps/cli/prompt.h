// Where the prompt comes from.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace quantspec::cli {

struct PromptArgs {
  std::optional<std::string> text;
  std::optional<std::filesystem::path> file;  // neither: standard input
};

// The prompt. One newline at the end of a file or of standard input is dropped: it ends the line,
// not the text. Throws UsageError when there is no prompt, or an empty one, and Error where
// a file or standard input is no text.
std::string read_prompt(const PromptArgs& args);

}  // namespace quantspec::cli
