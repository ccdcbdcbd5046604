#include "base/system_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace quantspec {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::optional<std::size_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  std::size_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // absent, or "max"
}

// The sum of these keys of a file of keys and numbers.
std::size_t read_sum(const fs::path& path, std::initializer_list<std::string_view> keys) {
  std::ifstream file(path);
  std::size_t sum = 0, value = 0;
  for (std::string key; file >> key >> value;) {
    if (std::ranges::find(keys, key) != keys.end()) sum += value;
  }
  return sum;
}

// What a group leaves. Files that it keeps cached, such as a checkpoint that was read before, do
// not count: they are given up when memory is wanted.
std::size_t left_of(const fs::path& folder, bool version_2) {
  std::optional<std::size_t> limit, used;
  std::size_t cached = 0;
  if (version_2) {
    limit = read_number(folder / "memory.max");
    const auto throttled_from = read_number(folder / "memory.high");
    if (throttled_from) limit = std::min(limit.value_or(kNoLimit), *throttled_from);
    used = read_number(folder / "memory.current");
    cached = read_sum(folder / "memory.stat", {"active_file", "inactive_file"});
  } else {
    limit = read_number(folder / "memory.limit_in_bytes");
    used = read_number(folder / "memory.usage_in_bytes");
    cached = read_sum(folder / "memory.stat", {"total_active_file", "total_inactive_file"});
  }
  if (!limit || !used) return kNoLimit;
  return *limit - std::min(*limit, *used - std::min(*used, cached));
}

// What a field of mountinfo stands for: in it, blanks and backslashes are "\040" and the like.
std::string unescaped(const std::string& field) {
  const auto is_octal = [](char c) { return c >= '0' && c <= '7'; };
  std::string text;
  for (std::size_t i = 0; i < field.size(); ++i) {
    const bool is_code = field[i] == '\\' && i + 3 < field.size() && is_octal(field[i + 1]) &&
                         is_octal(field[i + 2]) && is_octal(field[i + 3]);
    text += is_code ? static_cast<char>(std::stoi(field.substr(i + 1, 3), nullptr, 8)) : field[i];
    if (is_code) i += 3;
  }
  return text;
}

// Where a hierarchy of groups that limits memory is mounted.
struct Mount {
  bool version_2;
  fs::path top;    // the group that the mount shows at its top
  fs::path place;  // of the mount
};

// proc_pid_mountinfo(5): "35 31 0:32 TOP PLACE rw,relatime ... - cgroup cgroup rw,memory"
std::vector<Mount> find_mounts(const fs::path& root) {
  std::vector<Mount> mounts;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == line.npos) continue;
    const auto fields = split(line.substr(0, dash), ' ');
    const auto of_type = split(line.substr(dash + 3), ' ');
    if (fields.size() < 5 || of_type.size() < 3) continue;
    const auto options = split(of_type[2], ',');
    const bool version_2 = of_type[0] == "cgroup2";
    const bool of_memory =
        of_type[0] == "cgroup" && std::ranges::find(options, "memory") != options.end();
    if (!version_2 && !of_memory) continue;
    mounts.push_back({version_2, unescaped(fields[3]), unescaped(fields[4])});
  }
  return mounts;
}

// The group of this process in such a hierarchy. cgroups(7): "4:memory:/GROUP", "0::/GROUP".
fs::path find_group(const fs::path& root, bool version_2) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? first : line.find(':', first + 1);
    if (second == line.npos) continue;
    const auto controllers = split(line.substr(first + 1, second - first - 1), ',');
    const bool is_it = version_2 ? line.starts_with("0::")
                                 : std::ranges::find(controllers, "memory") != controllers.end();
    if (is_it) return line.substr(second + 1);
  }
  return "/";
}

// The least that the group and those above it leave, as far up as the mount shows them.
std::size_t left_in(const Mount& mount, const fs::path& root) {
  const fs::path group = find_group(root, mount.version_2).lexically_relative(mount.top);
  const bool below = !group.empty() && *group.begin() != "..";
  const fs::path top = root / mount.place.relative_path();
  std::size_t left = left_of(top, mount.version_2);
  fs::path folder = top;
  for (const fs::path& part : below ? group : fs::path()) {
    folder /= part;
    left = std::min(left, left_of(folder, mount.version_2));
  }
  return left;
}

}  // namespace

std::size_t available_memory_bytes(const std::filesystem::path& root) {
  // All there is, where /proc says nothing.
  std::size_t available = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::ifstream meminfo(root / "proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    constexpr std::string_view kKey = "MemAvailable:";
    if (line.starts_with(kKey)) available = std::stoull(line.substr(kKey.size())) * 1024;
  }
  for (const Mount& mount : find_mounts(root)) {
    available = std::min(available, left_in(mount, root));
  }
  return available;
}

std::size_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

}  // namespace quantspec
