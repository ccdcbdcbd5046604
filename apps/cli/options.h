// What can be typed after `quantspec`, and what comes of it: one struct of arguments for each
// subcommand, with all values checked as far as that is possible without the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include "apps/cli/messages.h"
#include "apps/cli/prompt.h"
#include "apps/cli/sampling.h"
#include "apps/cli/terminal.h"
#include "base/shown.h"
#include "engine/engine.h"

namespace quantspec::cli {

// The command line makes no sense: exit code 2 and a hint to --help. One line, as Error's.
class UsageError : public std::runtime_error {
 public:
  explicit UsageError(const std::string& message) : std::runtime_error(one_line(message)) {}
};

struct GenerateArgs {
  EngineOptions engine;
  PromptArgs prompt;
  std::optional<std::filesystem::path> prediction;  // a file
  bool chat = false;           // the prompt is what a user says, by the model's chat template
  std::string system;          // what is said before
  GenerateOptions generation;  // without its sampling, which needs the model
  SamplingArgs sampling;
  std::filesystem::path session;  // where the text is between runs; empty: nowhere
  bool compare = false;
  bool json = false;
  Color color = Color::kAuto;
  bool quiet = false;
  bool verbose = false;

  Loudness loudness() const {
    return verbose ? Loudness::kVerbose : quiet ? Loudness::kQuiet : Loudness::kNormal;
  }
  // --plan has no say: drafts are as the engine's options are, or there are none.
  bool drafts_by_own_plans() const;
  // Draft lengths, or what drafts read, follow from measured times.
  bool depends_on_time() const;
};

struct ChatArgs {
  GenerateArgs generate;  // without a prompt
  std::string system;     // the first message; empty: none
  std::filesystem::path load;
};

struct InfoArgs {
  EngineOptions engine;
  bool json = false;
};

struct TokenizeArgs {
  std::filesystem::path model;
  PromptArgs prompt;
  bool only_ids = false;
  bool no_bos = false;
  bool json = false;
};

// What was asked for: returns the exit code. nullopt: help or the version, which were printed.
// Throws UsageError, or Error(kInvalidRequest) about a field; and Error when there is no model.
std::optional<std::function<int()>> parse_command_line(int argc, char** argv);

// Once the model is known: throws UsageError for a budget that no plan keeps to, and says what may
// be asked for and yet surprise.
void require_use_of_budget(const GenerateArgs& args, const Engine& engine);
void warn_of(const GenerateArgs& args, const ChosenSampling& sampling);

// Each returns the exit code. Errors are thrown.
int run(const GenerateArgs& args);
int run(const ChatArgs& args);
int run(const InfoArgs& args);
int run(const TokenizeArgs& args);

}  // namespace quantspec::cli
