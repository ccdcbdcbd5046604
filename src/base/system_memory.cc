#include "base/system_memory.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace quantspec {

namespace {

std::optional<std::size_t> read_number(const char* path) {
  std::ifstream file(path);
  std::size_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // absent, or "max"
}

// Bytes of files that the control group keeps cached and gives up when memory is wanted: a
// checkpoint that was read before, above all.
std::size_t cached_file_bytes() {
  std::ifstream stat("/sys/fs/cgroup/memory.stat");
  std::size_t bytes = 0, value = 0;
  for (std::string key; stat >> key >> value;) {
    if (key == "active_file" || key == "inactive_file") bytes += value;
  }
  return bytes;
}

}  // namespace

std::size_t available_memory_bytes() {
  std::size_t available = std::numeric_limits<std::size_t>::max();
  std::ifstream meminfo("/proc/meminfo");
  std::string line;
  while (std::getline(meminfo, line)) {
    constexpr std::string_view kKey = "MemAvailable:";
    if (line.starts_with(kKey)) available = std::stoull(line.substr(kKey.size())) * 1024;
  }
  const auto limit = read_number("/sys/fs/cgroup/memory.max");
  const auto used = read_number("/sys/fs/cgroup/memory.current");
  if (limit && used) {
    const std::size_t kept = *used - std::min(*used, cached_file_bytes());
    available = std::min(available, *limit - std::min(*limit, kept));
  }
  return available;
}

std::size_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

}  // namespace quantspec
