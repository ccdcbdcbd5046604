#include "apps/cli/command.h"

#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "apps/cli/interrupt.h"
#include "apps/cli/limits.h"
#include "apps/cli/messages.h"
#include "apps/cli/option_values.h"
#include "apps/cli/progress.h"
#include "base/error.h"

namespace quantspec::cli {

namespace {

// The bundled model: beside the build folder of a source tree, or under an install prefix.
std::filesystem::path default_model() {
  const char* wanted = std::getenv("QUANTSPEC_MODEL");
  if (wanted != nullptr && *wanted != '\0') return wanted;
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* place :
       {"../models/pg-24m", "../../models/pg-24m", "../share/quantspec/models/pg-24m"}) {
    const auto model = (folder / place).lexically_normal();
    if (std::filesystem::is_directory(model, error)) return model;
  }
  fail(ErrorKind::kInvalidRequest,
       "no model: the bundled pg-24m is not beside {}; give a model with -m PATH or in "
       "QUANTSPEC_MODEL",
       folder.string());
}

}  // namespace

CLI::App* add_command(CLI::App& app, const char* name, const char* what) {
  CLI::App* command = app.add_subcommand(name, what);
  command->set_help_flag();                             // it comes back at the end of the list
  command->option_defaults()->disable_flag_override();  // --json=x is an error
  return command;
}

void finish_command(CLI::App& command, const char* examples) {
  command.option_defaults()->group("Output");
  command.set_help_flag("-h,--help", "print this and exit")->group("Output");
  command.footer(examples);
}

void add_model(CLI::App& app, std::filesystem::path& model) {
  add_path(app, "-m,--model", "PATH",
           "a GGUF file (of a split one the first part), or a\n"
           "folder as from Hugging Face (default:\n"
           "$QUANTSPEC_MODEL, else the bundled pg-24m)",
           model)
      ->group("Model");
}

void add_threads(CLI::App& app, int& num_threads) {
  add_int(app, "-t,--threads", "N", "threads of the CPU (default: its physical cores)", num_threads,
          1, kMostThreads);
}

void add_device(CLI::App& app, std::optional<int>& device) {
  add_int(app, "--device", "N",
          "which GPU, counted from 0 (default: 0, with --ranks\nlaunched that of the rank)", device,
          0, kMostDevice);
}

namespace {

int parse_ranks(const char* flag, const std::string& text, bool or_launched) {
  const auto number = parse_number<int>(text);
  for (const int ranks : {1, 2, 4, 8}) {
    if (number == ranks) return ranks;
  }
  throw UsageError(fmt::format("{} '{}': must be {}", flag, text,
                               or_launched ? "1, 2, 4, 8 or launched" : "1, 2, 4 or 8"));
}

}  // namespace

void add_ranks(CLI::App& app, EngineOptions& engine, bool or_launched) {
  const std::string help =
      "share the model among so many threads, each with some\n"
      "of its heads: 1, 2, 4 or 8";
  const char* const more =
      or_launched
          ? "; or launched: among processes\nof torchrun, mpirun, srun or others (default: 1)"
          : " (default: 1)";
  add_value(app, "--ranks", "N", help + more, [&engine, or_launched](const std::string& text) {
    engine.ranks = or_launched && text == "launched" ? EngineOptions::kLaunchedRanks
                                                     : parse_ranks("--ranks", text, or_launched);
  });
  add_value(app, "--context-ranks", "N",
            "so many of them share each context, with some of its\n"
            "pages each: 1, 2, 4 or 8 (default: 1)",
            [&engine](const std::string& text) {
              engine.context_ranks = parse_ranks("--context-ranks", text, false);
            });
}

void add_gpus(CLI::App& app, EngineOptions& engine) {
  add_value(app, "--gpus", "N", "share it among so many GPUs, from --device on: 1, 2, 4\nor 8",
            [&engine](const std::string& text) {
              engine.ranks = parse_ranks("--gpus", text, false);
              engine.backend = "cuda";
            });
}

bool follows_as_rank(EngineOptions& engine) {
  if (Engine::meet_launched(engine) == 0) return false;
  if (engine.processes == nullptr) return true;  // rank 0 refuses it
  // Terminals and launchers tell all processes: rank 0 takes it, and its end is that of the others.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_IGN);
  Engine::follow(engine, *engine.processes);
  return true;
}

std::unique_ptr<Engine> load_engine(EngineOptions options, Progress& progress) {
  options.progress = progress.callback();
  auto engine = Engine::load(options);
  engine->start();
  progress.clear();
  if (interrupted()) throw Interrupted();  // after the last report of progress
  return engine;
}

void add_target_weights(CLI::App& app, TargetWeights& target) {
  add_choice<TargetWeights>(
      app, "--target-weights", "W",
      "what the target reads: checkpoint, the weights as they\n"
      "are; or 8: bf16, fp16 and fp32 ones in 8 bits, half of\n"
      "which drafts read, in half the memory (default:\ncheckpoint)",
      {{"checkpoint", TargetWeights::kCheckpoint}, {"8", TargetWeights::k8Bits}}, target);
}

void add_target_options(CLI::App& app, EngineOptions& engine) {
  engine.sequences = 1;  // commands generate one text at a time
  add_model(app, engine.model);
  app.option_defaults()->group("Model");
  add_target_weights(app, engine.target_weights);
  add_int(app, "--page-size", "N",
          "tokens of a page of the cache: 32, 64, 128 or 256\n"
          "(default: 64 for heads of 64 channels, else 128)",
          engine.page_size, 1);
  add_choice<std::string>(
      app, "--backend", "NAME", "auto, cuda, cpu or reference (default: auto)",
      {{"auto", "auto"}, {"cuda", "cuda"}, {"cpu", "cpu"}, {"reference", "reference"}},
      engine.backend);
  add_device(app, engine.device);
  add_threads(app, engine.num_threads);
}

void add_plan(CLI::App& app, std::string& plan) {
  add_value(app, "--plan", "NAME",
            "what drafts read: a plan of quantspec bench --help, such\n"
            "as quantspec, 4-bit weights and KV, or lookup, the text\n"
            "alone (default: auto, what measures fastest among these,\n"
            "8-bit weights and few pages)",
            [&plan](const std::string& text) { plan = text; });
}

void add_chat_template(CLI::App& app, std::filesystem::path& file) {
  add_path(app, "--chat-template", "FILE", "a Jinja template instead of the model's own", file);
}

void add_engine_options(CLI::App& app, EngineOptions& engine) {
  add_target_options(app, engine);
  add_path(app, "--draft-store", "FILE",
           "weights that drafts read, from quantspec prepare\n(default: rounded while loading)",
           engine.draft_store);
}

void add_machine(CLI::App& app, const char* what, const char* self,
                 std::optional<Machine>& machine) {
  add_value(app, "--machine", "NAME",
            fmt::format("whose limits {} by: a6000, a100,\n"
                        "h100, h200, rtx4090; or this, {} (default: this)",
                        what, self),
            [&machine](const std::string& text) {
              machine = text == "this" ? std::nullopt : std::optional(machine_preset(text));
            });
}

void warn_of(const Machine& machine) {
  const std::string doubt = doubt_of(machine);
  if (!doubt.empty()) warn(fmt::format("--machine {}: {}", machine.name, doubt));
}

void warn_of_threads(int num_threads) {
  const unsigned cores = std::thread::hardware_concurrency();
  if (cores == 0 || num_threads <= static_cast<int>(cores)) return;
  warn(
      fmt::format("--threads {}: this process may use {} processors, and more threads than that "
                  "are slower",
                  num_threads, cores));
}

std::string name_of_model(const std::filesystem::path& model) {
  std::error_code error;
  const auto folder = std::filesystem::weakly_canonical(model, error);
  if (error) return model.string();
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

std::filesystem::path resolve_model(const std::filesystem::path& typed) {
  return typed.empty() ? default_model() : typed;
}

std::vector<Subcommand> add_subcommands(CLI::App& app) {
  return {
#ifdef QUANTSPEC_SERVER
      add_serve(app),
#endif
      add_verify(app), add_bench(app), add_eval(app), add_prepare(app), add_roofline(app)};
}

}  // namespace quantspec::cli
