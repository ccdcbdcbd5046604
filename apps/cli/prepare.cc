// quantspec prepare
#include "prepare/prepare.h"

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "apps/cli/command.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/limits.h"
#include "apps/cli/option_values.h"
#include "apps/cli/output.h"
#include "apps/cli/progress.h"
#include "apps/cli/terminal.h"

namespace quantspec::cli {

namespace {

std::string summary(const PrepareOptions& options, const PrepareSummary& made) {
  std::string text =
      fmt::format("{}: {:.1f} M weights at {:.2f} bits each, made in {:.1f} s\n",
                  options.output.string(), made.weights / 1e6, made.bits_per_weight, made.seconds);
  if (made.calibration_tokens > 0) {
    text += fmt::format("error of a matrix's output, mean, on {} tokens of {}: {:.2f}%",
                        made.calibration_tokens, options.calibration, 100 * made.error);
    if (options.method != DraftMethod::kRtn) {
      text += fmt::format(" (rounded to nearest: {:.2f}%)", 100 * made.rtn_error);
    }
    text += "\n";
  }
  return text;
}

int run(PrepareOptions options) {
  options.model = resolve_model(options.model);
  if (options.output.empty()) {
    throw UsageError("--output is missing: give the file to write, as in -o draft.qsd");
  }
  warn_of_threads(options.backend.num_threads);
  Progress progress(is_terminal(stderr));
  std::optional<PolledInterrupts> polled;  // while there is a file to be removed
  const PrepareSummary made =
      prepare_draft_store(options, progress.callback(), [&] { polled.emplace(); });
  progress.clear();
  write_output(summary(options, made));
  return 0;
}

void add_method(CLI::App& app, PrepareOptions& options) {
  app.option_defaults()->group("Method");
  add_choice<DraftMethod>(app, "--method", "NAME",
                          "gptq: rounds so that outputs change little; rtn: each\n"
                          "weight to the nearest code (default: gptq)",
                          {{"gptq", DraftMethod::kGptq}, {"rtn", DraftMethod::kRtn}},
                          options.method);
  add_value(app, "--calibration", "KIND:PATH",
            "text that gptq looks at, as text:FOLDER: a mixture of\n"
            "what the model will read, code as well as prose, since\n"
            "one does little for the other; the kinds are those of\n"
            "bench --dataset. rtn needs none: it measures its error\n"
            "on it",
            [&options](const std::string& text) { options.calibration = text; });
  add_int(app, "--tokens", "N",
          "how much of it, in sequences of up to 2048; the text\n"
          "must have as many (default: 16384)",
          options.calibration_tokens, kLeastCalibrationTokens, kMostTokens);
  app.get_option("--tokens")->needs("--calibration");
  add_choice<int>(app, "--group", "N",
                  "weights that share a scale: 32, 64 or 128 (default: 32;\n"
                  "where there is a GPU, 128, which it reads fastest)",
                  {{"32", 32}, {"64", 64}, {"128", 128}}, options.group);
  add_choice<int>(app, "--head-bits", "N",
                  "4; or 8, at which 4-bit drafts then read the head\n"
                  "(default: 4)",
                  {{"4", 4}, {"8", 8}}, options.head_bits);
}

}  // namespace

Subcommand add_prepare(CLI::App& app) {
  CLI::App* command =
      add_command(app, "prepare", "Make better draft weights once, for --draft-store.");
  const auto options = std::make_shared<PrepareOptions>();
  add_model(*command, options->model);
  add_method(*command, *options);
  command->option_defaults()->group("Output");
  add_path(*command, "-o,--output", "FILE", "the store to write; an old one is replaced",
           options->output);
  add_threads(*command, options->backend.num_threads);
  finish_command(*command,
                 "Examples:\n"
                 "  quantspec prepare --calibration text:books/ -o draft.qsd\n"
                 "  quantspec prepare --method rtn --group 64 --head-bits 8 -o draft.qsd");
  return {command, [options] { return run(*options); }};
}

}  // namespace quantspec::cli
