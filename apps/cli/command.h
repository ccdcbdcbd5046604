// What all subcommands are made of. A subcommand is added by a function of its own file, which also
// runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "roofline/roofline.h"

namespace quantspec::cli {

struct Subcommand {
  CLI::App* app;
  std::function<int()> run;  // after parsing, if it was chosen; returns the exit code
};

// Each in the file of its name.
Subcommand add_bench(CLI::App& app);
Subcommand add_eval(CLI::App& app);
Subcommand add_prepare(CLI::App& app);
Subcommand add_roofline(CLI::App& app);
Subcommand add_serve(CLI::App& app);
Subcommand add_verify(CLI::App& app);
// All of them.
std::vector<Subcommand> add_subcommands(CLI::App& app);

CLI::App* add_command(CLI::App& app, const char* name, const char* what);
// Adds --help as the last option, and the examples after all of them.
void finish_command(CLI::App& command, const char* examples);

// -m, --model; empty: resolve_model() finds one.
void add_model(CLI::App& app, std::filesystem::path& model);
void add_threads(CLI::App& app, int& num_threads);
void add_ranks(CLI::App& app, EngineOptions& engine, bool or_launched);
void add_gpus(CLI::App& app, EngineOptions& engine);
class Progress;
// Where --ranks launched made this process a rank that is not 0: it goes through that one's passes,
// and returns true at the end. REQUIRES: before anything is read or written.
bool follows_as_rank(EngineOptions& engine);
// Loaded and started. Throws Interrupted, too.
std::unique_ptr<Engine> load_engine(EngineOptions options, Progress& progress);
void add_target_weights(CLI::App& app, TargetWeights& target);
void add_device(CLI::App& app, std::optional<int>& device);
// All of them, and --page-size and --backend: of what measures targets alone.
void add_target_options(CLI::App& app, EngineOptions& engine);
// And --draft-store: of what measures an engine.
void add_engine_options(CLI::App& app, EngineOptions& engine);
void add_chat_template(CLI::App& app, std::filesystem::path& file);
void add_plan(CLI::App& app, std::string& plan);
// --machine, whose limits `what` goes by; nullopt: this one, which is to be measured.
void add_machine(CLI::App& app, const char* what, const char* self,
                 std::optional<Machine>& machine);
// Says on standard error where a measured machine is in doubt.
void warn_of(const Machine& machine);
void warn_of_threads(int num_threads);
// The own name of the folder or file, for reports.
std::string name_of_model(const std::filesystem::path& model);
// What was typed, else $QUANTSPEC_MODEL, else the bundled model. Throws when there is none.
std::filesystem::path resolve_model(const std::filesystem::path& typed);

}  // namespace quantspec::cli
