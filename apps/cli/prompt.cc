#include "apps/cli/prompt.h"

#include <unistd.h>

#include <iostream>
#include <iterator>

#include "apps/cli/options.h"
#include "base/files.h"
#include "tokenizer/tokenizer.h"

namespace quantspec::cli {

namespace {

std::string read_standard_input() {
  if (isatty(STDIN_FILENO) == 1) {
    throw UsageError("no prompt: give one with -p TEXT, -f FILE or on standard input");
  }
  return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

}  // namespace

std::string read_prompt(const PromptArgs& args) {
  std::string prompt;
  if (args.text) {
    prompt = *args.text;
  } else {
    prompt = args.file ? read_file(*args.file) : read_standard_input();
    require_text(prompt, args.file ? args.file->string() : "standard input");
    if (prompt.ends_with('\n')) prompt.pop_back();
  }
  if (prompt.empty()) throw UsageError("the prompt is empty; give some text to continue");
  return prompt;
}

}  // namespace quantspec::cli
