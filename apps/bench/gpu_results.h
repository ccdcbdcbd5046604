// What gpu_bench measured: a table for people, JSON for programs, beside what PyTorch takes.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace quantspec {

// Seconds of one call: over several series of many calls, the median, the least and the most.
struct Times {
  double median;
  double least;
  double most;
  double launch;  // what the call itself takes on the host, at the least

  // The GPU waits for the host.
  bool host_bound() const { return launch > 0.9 * median; }
};

struct Measurement {
  std::string group;  // a table
  std::string name;   // a line of it
  int rows;           // a column: queries of a sequence, or rows of activations
  Times times;
  double bytes = 0;                // that have to be read or written, and
  double flops = 0;                // arithmetic, at the least; 0: not told
  std::optional<double> baseline;  // seconds of PyTorch's best kernel for the same
  std::optional<double> flash;     // and of its FlashAttention
};

// What tools/gpu_baselines.py wrote; without a file it knows nothing.
class Baselines {
 public:
  Baselines() = default;
  explicit Baselines(const std::filesystem::path& file);

  // Seconds. shape: "mha" or "gqa". flash: of FlashAttention, else of the best kernel.
  std::optional<double> attention(const std::string& shape, int tokens, int queries,
                                  bool flash = false) const;
  std::optional<double> prefill(const std::string& shape, int tokens) const;
  std::optional<double> linear(int outputs, int inputs, int rows) const;

 private:
  const Json* find(const char* group, const Json& keys) const;
  Json report_;
};

class Results {
 public:
  // copy_bandwidth: bytes per second, read and written.
  Results(std::string device, double copy_bandwidth);

  void add(Measurement measurement) { measurements_.push_back(std::move(measurement)); }
  // An error relative to the reference backend's result, and the most that is right.
  void add_check(const std::string& name, double error, double limit);
  bool all_right() const { return num_wrong_ == 0; }

  void print_checks() const;
  void print_group(const std::string& group) const;
  void write_json(const std::filesystem::path& file) const;

 private:
  std::string cell(const Measurement& measurement) const;

  std::string device_;
  double copy_bandwidth_;
  std::vector<Measurement> measurements_;
  Json checks_ = Json::array();
  int num_wrong_ = 0;
};

}  // namespace quantspec
