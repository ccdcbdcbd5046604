#include "base/report_head.h"

#include <fmt/chrono.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/thread_pool.h"

namespace quantspec {

namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != line.npos) return line.substr(colon + 2);
  }
  return {};
}

}  // namespace

void note_start(ReportHead& head, int num_threads) {
  head.date = fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)));
  head.cpu = cpu_name();
  head.threads = num_threads > 0 ? num_threads : num_physical_cores();
}

double as_typed(float value) { return std::stod(fmt::format("{}", value)); }

nlohmann::ordered_json to_json(const ReportHead& head) {
  return {{"measurement", head.measurement},
          {"version", head.version},
          {"commit", head.commit},
          {"date", head.date},
          {"model", head.model},
          {"dataset", head.dataset},
          {"draft_store", head.draft_store},
          {"target_weights", head.target_weights},
          {"backend", head.backend},
          {"cpu", head.cpu},
          {"threads", head.threads},
          {"ranks", head.ranks},
          {"context_ranks", head.context_ranks},
          {"page_size", head.page_size},
          {"contexts", head.contexts},
          {"prompts", head.prompts},
          {"tokens", head.tokens},
          {"recall_distance", head.recall_distance}};
}

}  // namespace quantspec
