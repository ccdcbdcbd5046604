// What limits a machine: the vendors' numbers, and what speaks against measured ones.
#include <fmt/ranges.h>

#include <array>
#include <cctype>

#include "base/error.h"
#include "roofline/fields.h"
#include "roofline/roofline.h"

namespace quantspec {

namespace {

struct Preset {
  std::string_view name;
  double bandwidth;  // GB/s
  double teraflops;  // 16-bit tensor cores, fp32 sums, without sparsity
  double memory;     // GB
};

// NVIDIA's data sheets and architecture papers; which ones is in docs/roofline.md.
constexpr std::array kPresets = {
    Preset{"a6000", 768, 154.8, 48},    Preset{"a100", 2039, 312, 80},
    Preset{"h100", 3350, 989.4, 80},    Preset{"h200", 4800, 989.4, 141},
    Preset{"rtx4090", 1008, 165.2, 24},
};

}  // namespace

Machine machine_preset(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name != name) continue;
    return {std::string(name), preset.bandwidth * 1e9, preset.teraflops * 1e12,
            preset.memory * 1e9};
  }
  fail(ErrorKind::kInvalidRequest, "{} '{}': must be one of {}, this", field::kMachine, name,
       fmt::join(machine_presets(), ", "));
}

std::optional<Machine> machine_named_in(std::string_view gpu) {
  std::string plain;  // "NVIDIA GeForce RTX 4090": nvidiageforcertx4090
  for (const unsigned char c : gpu) {
    if (std::isalnum(c) != 0) plain += static_cast<char>(std::tolower(c));
  }
  for (const Preset& preset : kPresets) {
    if (plain.find(preset.name) != std::string::npos) return machine_preset(preset.name);
  }
  return std::nullopt;
}

std::string doubt_of(const Machine& machine) {
  constexpr double kNoise = 1.05;
  const std::optional<double>& one = machine.one_thread_bandwidth;
  if (!one || machine.bandwidth > kNoise * *one) return {};
  return fmt::format("all threads read {:.1f} GB/s, one alone {:.1f}; is the machine busy?",
                     machine.bandwidth / 1e9, *one / 1e9);
}

std::vector<std::string_view> machine_presets() {
  std::vector<std::string_view> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

}  // namespace quantspec
