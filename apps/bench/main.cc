// kernel_bench: how fast the backend's kernels are, beside what this machine could do
// (docs/kernel-bench.md). Options are Google Benchmark's, and --threads.
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/lab.h"
#include "backend/backend.h"
#include "base/error.h"

namespace quantspec {

namespace {

constexpr std::string_view kThreads = "--threads=";

// Takes --threads=N out of the arguments; 0, the default, means all physical cores.
int take_threads(std::vector<char*>& arguments) {
  int threads = 0;
  const auto found = std::find_if(arguments.begin(), arguments.end(),
                                  [](std::string_view a) { return a.starts_with(kThreads); });
  if (found != arguments.end()) {
    const std::string_view argument = *found;
    const std::string_view number = argument.substr(kThreads.size());
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), threads);
    if (error != std::errc{} || end != number.data() + number.size() || threads < 1) {
      fail(ErrorKind::kInvalidRequest, "{}: a number of threads from 1 on", argument);
    }
  }
  if (found != arguments.end()) arguments.erase(found);
  return threads;
}

void describe(Lab& lab) {
  benchmark::AddCustomContext("backend", lab.backend().description());
  benchmark::AddCustomContext("threads", std::to_string(lab.threads()));
  benchmark::AddCustomContext("read_bytes_per_second",
                              fmt::format("{:.4g}", lab.bandwidth(lab.threads())));
  benchmark::AddCustomContext("read_bytes_per_second_one_thread",
                              fmt::format("{:.4g}", lab.bandwidth(1)));
  benchmark::AddCustomContext("clock_hertz", fmt::format("{:.4g}", lab.clock()));
}

void print_help() {
  fmt::print(
      "kernel_bench [--threads=N]   all physical cores unless given; QUANTSPEC_ISA forces an\n"
      "                             instruction set: {}\n",
      fmt::join(cpu_instruction_sets(), ", "));
  benchmark::PrintDefaultHelp();
}

int run(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  const int threads = take_threads(arguments);
  std::string min_time = "--benchmark_min_time=0.1";  // short; before those that were given
  arguments.insert(arguments.begin() + 1, min_time.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data(), print_help);
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;
  Lab lab(threads);
  describe(lab);
  register_machine(lab);
  register_attention(lab);
  register_linear(lab);
  register_prefill(lab);
  register_sampling(lab);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace

void register_machine(Lab& lab) {
  const auto add_read = [&](ThreadPool& pool) {
    const int threads = pool.num_threads();
    benchmark::RegisterBenchmark(fmt::format("read/dram/t{}", threads).c_str(),
                                 [&lab, &pool, threads](benchmark::State& state) {
                                   const double each =
                                       time_each(state, [&] { lab.read_next(pool); });
                                   lab.saw_bandwidth(threads, Lab::kReadBytes / each);
                                   lab.report(state, each, {.bytes = Lab::kReadBytes}, threads);
                                 })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  };
  add_read(lab.pool_of_one());
  if (lab.threads() > 1) add_read(lab.pool());
  benchmark::RegisterBenchmark(fmt::format("region/empty/t{}", lab.threads()).c_str(),
                               [&lab](benchmark::State& state) {
                                 for (auto _ : state) lab.pool().share([](int) {});
                               })
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace quantspec

int main(int argc, char** argv) {
  try {
    return quantspec::run(argc, argv);
  } catch (const quantspec::Error& error) {
    fmt::print(stderr, "kernel_bench: {}\n", error.what());
    return 1;
  }
}
