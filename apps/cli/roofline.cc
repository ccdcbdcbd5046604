// quantspec roofline
#include "roofline/roofline.h"

#include <memory>
#include <optional>

#include "apps/cli/command.h"
#include "apps/cli/limits.h"
#include "apps/cli/list_values.h"
#include "apps/cli/output.h"
#include "model/model_files.h"

namespace quantspec::cli {

namespace {

struct RooflineArgs {
  std::filesystem::path model;
  TargetWeights target_weights = TargetWeights::kCheckpoint;
  std::optional<Machine> machine;  // nullopt: this one, measured
  int num_threads = 0;
  std::vector<int> contexts = {4096, 8192, 16384, 32768, 65536, 131072};
  std::vector<int> batches = {1, 2, 4, 8, 16, 32, 64};
  int generated = 1024;
  std::vector<double> acceptance = {0.9, 0.95};
  bool json = false;
};

int run(const RooflineArgs& args) {
  RooflineRequest request;
  const std::filesystem::path model = resolve_model(args.model);
  const auto files = open_model(model);
  request.model = files->config();
  request.model_name = name_of_model(model);
  warn_of_threads(args.num_threads);
  request.machine = args.machine ? *args.machine : measure_this_machine(args.num_threads);
  warn_of(request.machine);
  request.weights =
      files->weight_bytes(args.target_weights, sliced_format(request.machine.draft_group));
  request.contexts = args.contexts;
  request.batches = args.batches;
  request.generated = args.generated;
  request.acceptance = args.acceptance;
  write_output(args.json ? roofline_json(request) : roofline_markdown(request));
  return 0;
}

void add_points(CLI::App& app, RooflineArgs& args) {
  app.option_defaults()->group("What is computed");
  add_list(app, "-c,--ctx-size", "tokens of context\n(default: 4096,8192,16384,32768,65536,131072)",
           "whole numbers", args.contexts, 1, kMostContext);
  add_list(app, "--batch",
           "sequences at once (default: 1,2,4,8,16,32,64); Table 1\nand steps are "
           "printed for the first",
           "whole numbers", args.batches, 1, kMostBatch);
  add_int(app, "-n,--predict", "N",
          "tokens that are decoded in Table 1 and the planes\n(default: "
          "1024)",
          args.generated, 1, kMostGenerated);
  add_list(app, "--acceptance", "shares of drafted tokens that are accepted\n(default: 0.9,0.95)",
           "numbers", args.acceptance, 0.0, 1.0);
}

}  // namespace

Subcommand add_roofline(CLI::App& app) {
  CLI::App* command =
      add_command(app, "roofline", "Print what limits a model, and what drafts can gain.");
  const auto args = std::make_shared<RooflineArgs>();
  add_model(*command, args->model);
  command->option_defaults()->group("Model");
  add_target_weights(*command, args->target_weights);
  command->option_defaults()->group("Machine");
  add_machine(*command, "times go", "whose processor is\nmeasured for a second", args->machine);
  add_threads(*command, args->num_threads);
  add_points(*command, *args);
  command->option_defaults()->group("Output");
  add_choice<bool>(*command, "-o,--output", "FORMAT", "md or json (default: md)",
                   {{"md", false}, {"json", true}}, args->json);
  finish_command(*command,
                 "Examples:\n"
                 "  quantspec roofline --machine this -c 8192,32768 --batch 1\n"
                 "  quantspec roofline -m ~/models/Llama-2-7B --machine a6000 -o json");
  return {command, [args] { return run(*args); }};
}

}  // namespace quantspec::cli
