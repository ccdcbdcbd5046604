// gpu_bench: checks and times the ops of the CUDA backend, through the interface that the engine
// uses, beside the GPU's copy bandwidth and what PyTorch takes (tools/gpu_baselines.py).
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <optional>

#include "apps/bench/gpu_lab.h"
#include "apps/bench/gpu_program.h"
#include "base/error.h"

namespace quantspec {

namespace {

constexpr int kExitWrong = 3;  // a check failed

struct Args {
  std::string backend = "cuda";
  std::optional<int> device;
  std::vector<std::string> only;
  std::vector<int> tokens = {4096, 8192, 32768, 131072, 262144};
  std::vector<int> prefill_tokens = {8192, 32768};
  std::vector<std::string> weights, matrices;
  std::vector<int> rows = {1, 4, 8, 16, 17, 32, 48, 64, 80, 96, 128, 160};
  std::filesystem::path baselines, json;
};

void add_options(CLI::App& app, Args& args) {
  app.get_formatter()->column_width(24);
  app.footer(
      "Each op is called on random data many times between two synchronizations, in\n"
      "turn on copies that together are far larger than the L2 cache; its time is the\n"
      "median of several such series. A cell of the table is microseconds a call, the\n"
      "bytes that it has to move as a share of the copy bandwidth (or TFLOP/s, T), and\n"
      "how many times as fast it is as PyTorch's best kernel; * marks calls for which\n"
      "the GPU waited, the host taking that long to launch them. Results are compared\n"
      "with the reference backend's first: exit code 3 says that some are wrong.");
  app.add_option("--only", args.only, "attention, linear, prefill: some of them\n(default: all)")
      ->option_text("PART,...")
      ->delimiter(',')
      ->check(CLI::IsMember({"attention", "linear", "prefill"}));
  app.add_option("--tokens", args.tokens,
                 "contexts of decode attention (default:\n4096,8192,32768,131072,262144)")
      ->option_text("N,...")
      ->delimiter(',');
  app.add_option("--prefill-tokens", args.prefill_tokens,
                 "prompts of prefill attention\n(default: 8192,32768)")
      ->option_text("N,...")
      ->delimiter(',');
  app.add_option("--weights", args.weights,
                 fmt::format("of products, for both models' shapes: some of\n{} (default: all)",
                             fmt::join(weight_readings(), ", ")))
      ->option_text("NAME,...")
      ->delimiter(',')
      ->check(CLI::IsMember(weight_readings()));
  app.add_option(
         "--matrices", args.matrices,
         fmt::format("of products, some of {}\n(default: all)", fmt::join(matrix_names(), ", ")))
      ->option_text("NAME,...")
      ->delimiter(',')
      ->check(CLI::IsMember(matrix_names()));
  app.add_option("--rows", args.rows,
                 "of activations (default:\n1,4,8,16,17,32,48,64,80,96,128,160)")
      ->option_text("N,...")
      ->delimiter(',')
      ->check(CLI::Range(1, kMostRows));
  app.add_option("--baselines", args.baselines, "what tools/gpu_baselines.py wrote")
      ->option_text("FILE")
      ->check(CLI::ExistingFile);
  app.add_option("--json", args.json, "write everything that was measured there")
      ->option_text("FILE")
      ->check(writable_file());
  app.add_option("--backend", args.backend, "whose ops (default: cuda)")->option_text("NAME");
  app.add_option("--device", args.device, "which GPU (default: 0)")->option_text("N");
}

void check_tokens(const char* flag, const std::vector<int>& tokens) {
  for (const int count : tokens) {
    if (count < 256 || count % 128 != 0) {
      fail(ErrorKind::kInvalidRequest, "{} {}: multiples of 128, from 256 on", flag, count);
    }
  }
}

int run(const Args& args) {
  check_tokens("--tokens", args.tokens);
  check_tokens("--prefill-tokens", args.prefill_tokens);
  const auto wanted = [&](const char* part) {
    return args.only.empty() || std::ranges::find(args.only, part) != args.only.end();
  };
  GpuBenchOptions options{.tokens = args.tokens,
                          .prefill_tokens = args.prefill_tokens,
                          .weights = args.weights,
                          .matrices = args.matrices,
                          .rows = args.rows,
                          .baselines = {}};
  if (!args.baselines.empty()) options.baselines = Baselines(args.baselines);
  GpuLab lab({.name = args.backend, .device = args.device});
  Results results(lab.backend().description(), lab.copy_bandwidth());
  if (wanted("attention")) {
    measure_attention(lab, options, results);
    measure_batches(lab, results);
  }
  if (wanted("linear")) measure_linear(lab, options, results);
  if (wanted("prefill")) measure_prefill(lab, options, results);
  for (const char* group :
       {"decode attention", "decode attention, batches", "linear", "other ops"}) {
    results.print_group(group);
  }
  results.print_checks();
  if (!args.json.empty()) results.write_json(args.json);
  return results.all_right() ? 0 : kExitWrong;
}

}  // namespace

}  // namespace quantspec

int main(int argc, char** argv) {
  CLI::App app("Check and time the ops of the CUDA backend.", "gpu_bench");
  quantspec::Args args;
  quantspec::add_options(app, args);
  return quantspec::run_program(app, argc, argv, [&] { return quantspec::run(args); });
}
