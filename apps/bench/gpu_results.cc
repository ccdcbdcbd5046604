#include "apps/bench/gpu_results.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>

#include "base/error.h"

namespace quantspec {

namespace {

template <typename T>
void add_once(std::vector<T>& values, const T& value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

// From microseconds; of null, nothing.
std::optional<double> seconds(const Json* entry, const char* key) {
  if (entry == nullptr || !entry->at(key).is_number()) return {};
  return entry->at(key).get<double>() * 1e-6;
}

}  // namespace

// --- baselines -----------------------------------------------------------------------------------

Baselines::Baselines(const std::filesystem::path& file) : report_(parse_json_file(file)) {}

// The first entry of a group that has all of these; null: there is none.
const Json* Baselines::find(const char* group, const Json& keys) const {
  if (!report_.contains(group)) return nullptr;
  for (const Json& entry : report_.at(group)) {
    const auto has = [&](const auto& key) { return entry.value(key.key(), Json()) == key.value(); };
    const auto& wanted = keys.items();
    if (std::all_of(wanted.begin(), wanted.end(), has)) return &entry;
  }
  return nullptr;
}

std::optional<double> Baselines::attention(const std::string& shape, int tokens, int queries,
                                           bool flash) const {
  const Json* entry =
      find("attention", {{"shape", shape}, {"tokens", tokens}, {"queries", queries}});
  return seconds(entry == nullptr || !flash ? entry : &entry->at("us"),
                 flash ? "flash" : "best_us");
}

std::optional<double> Baselines::prefill(const std::string& shape, int tokens) const {
  return seconds(find("prefill", {{"shape", shape}, {"tokens", tokens}}), "best_us");
}

std::optional<double> Baselines::linear(int outputs, int inputs, int rows) const {
  return seconds(find("linear", {{"outputs", outputs}, {"inputs", inputs}, {"rows", rows}}),
                 "best_us");
}

// --- results -------------------------------------------------------------------------------------

Results::Results(std::string device, double copy_bandwidth)
    : device_(std::move(device)), copy_bandwidth_(copy_bandwidth) {}

void Results::add_check(const std::string& name, double error, double limit) {
  const bool right = error <= limit;  // NaN is not
  num_wrong_ += !right;
  checks_.push_back({{"name", name}, {"error", error}, {"limit", limit}, {"right", right}});
}

void Results::print_checks() const {
  fmt::print("{}, copy {:.2f} TB/s; {} of {} checks passed\n", device_, copy_bandwidth_ * 1e-12,
             checks_.size() - num_wrong_, checks_.size());
  for (const Json& check : checks_) {
    if (check.at("right")) continue;
    fmt::print("  WRONG {}: relative error {:.2g}, at most {:.2g} is right\n",
               check.at("name").get<std::string>(), check.at("error").get<double>(),
               check.at("limit").get<double>());
  }
}

// Microseconds (*: of the host); share of the copy bandwidth, or TFLOP/s; times as fast as the
// baseline.
std::string Results::cell(const Measurement& m) const {
  const double seconds = m.times.median;
  const std::string rate = m.bytes > 0
                               ? fmt::format("{:.0f}%", 100 * m.bytes / seconds / copy_bandwidth_)
                               : fmt::format("{:.0f}T", m.flops / seconds * 1e-12);
  const std::string ratio = m.baseline ? fmt::format("{:.2f}x", *m.baseline / seconds) : "";
  return fmt::format("{:8.1f}{} {:>5} {:>5}", seconds * 1e6, m.times.host_bound() ? '*' : ' ', rate,
                     ratio);
}

void Results::print_group(const std::string& group) const {
  std::vector<std::string> names;
  std::vector<int> columns;
  double spread = 1;
  for (const Measurement& m : measurements_) {
    if (m.group != group) continue;
    add_once(names, m.name);
    add_once(columns, m.rows);
    spread = std::max(spread, m.times.most / m.times.least);
  }
  if (names.empty()) return;
  std::sort(columns.begin(), columns.end());
  fmt::print("\n{:28}", group);
  for (const int rows : columns)
    fmt::print("{:>21}", fmt::format("{} row{}", rows, rows == 1 ? "" : "s"));
  fmt::print("\n");
  for (const std::string& name : names) {
    std::string line = fmt::format("{:28}", name);
    for (const int rows : columns) {
      const auto found =
          std::find_if(measurements_.begin(), measurements_.end(), [&](const Measurement& m) {
            return m.group == group && m.name == name && m.rows == rows;
          });
      line += found != measurements_.end() ? cell(*found) : std::string(21, ' ');
    }
    fmt::print("{}\n", line.substr(0, line.find_last_not_of(' ') + 1));
  }
  fmt::print("the slowest series over the fastest, at most: {:.2f}\n", spread);
}

void Results::write_json(const std::filesystem::path& file) const {
  Json report = {{"device", device_}, {"copy_bytes_per_second", copy_bandwidth_}};
  report["checks"] = checks_;
  report["measurements"] = Json::array();
  for (const Measurement& m : measurements_) {
    Json entry = {{"group", m.group},
                  {"name", m.name},
                  {"rows", m.rows},
                  {"seconds", m.times.median},
                  {"least_seconds", m.times.least},
                  {"most_seconds", m.times.most},
                  {"launch_seconds", m.times.launch}};
    if (m.bytes > 0) {
      entry["bytes"] = m.bytes;
      entry["bytes_per_second"] = m.bytes / m.times.median;
      entry["of_copy"] = m.bytes / m.times.median / copy_bandwidth_;
    }
    if (m.flops > 0) entry["flops_per_second"] = m.flops / m.times.median;
    if (m.baseline) {
      entry["baseline_seconds"] = *m.baseline;
      entry["over_baseline"] = *m.baseline / m.times.median;
    }
    if (m.flash) entry["over_flash"] = *m.flash / m.times.median;
    report["measurements"].push_back(entry);
  }
  std::ofstream stream(file);
  stream << report.dump(1) << "\n";
  if (!stream.flush()) fail(ErrorKind::kInvalidRequest, "{}: cannot be written", file.string());
}

}  // namespace quantspec
