#include "base/system_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "base/test_folder.h"

namespace quantspec {
namespace {

constexpr std::size_t kMb = 1'000'000;

// A machine with 16 GB available, and these files.
std::size_t available(const std::map<std::string, std::string>& files) {
  const TestFolder root;
  auto all = files;
  all.emplace("proc/meminfo", "MemTotal: 20000000 kB\nMemAvailable: 15625000 kB\n");
  for (const auto& [name, text] : all) {
    std::filesystem::create_directories((root / name).parent_path());
    root.write(name, text);
  }
  return available_memory_bytes(root.path());
}

const std::string kVersion2 =
    "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 none rw\n";
const std::string kVersion1 =
    "30 23 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "31 23 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";

TEST(SystemMemory, IsTheMachinesWhereNothingLimitsIt) {
  EXPECT_EQ(available({}), 16'000 * kMb);
  EXPECT_EQ(available({{"proc/self/mountinfo", kVersion2},
                       {"proc/self/cgroup", "0::/\n"},
                       {"sys/fs/cgroup/memory.max", "max\n"},
                       {"sys/fs/cgroup/memory.current", "5000000\n"}}),
            16'000 * kMb);
}

TEST(SystemMemory, AGroupsFilesInTheCacheAreAvailable) {
  EXPECT_EQ(available({{"proc/self/mountinfo", kVersion2},
                       {"proc/self/cgroup", "0::/\n"},
                       {"sys/fs/cgroup/memory.max", "1000000000\n"},
                       {"sys/fs/cgroup/memory.current", "700000000\n"},
                       {"sys/fs/cgroup/memory.stat",
                        "anon 1\nactive_file 200000000\ninactive_file 100000000\nslab 5\n"}}),
            600 * kMb);
}

TEST(SystemMemory, EveryGroupAboveCounts) {
  std::map<std::string, std::string> files = {
      {"proc/self/mountinfo", kVersion2},
      {"proc/self/cgroup", "0::/user.slice/job\n"},
      {"sys/fs/cgroup/user.slice/memory.max", "2000000000\n"},
      {"sys/fs/cgroup/user.slice/memory.current", "500000000\n"},
      {"sys/fs/cgroup/user.slice/job/memory.max", "max\n"},
      {"sys/fs/cgroup/user.slice/job/memory.current", "100000000\n"}};
  EXPECT_EQ(available(files), 1'500 * kMb);
  files["sys/fs/cgroup/user.slice/job/memory.max"] = "400000000\n";
  EXPECT_EQ(available(files), 300 * kMb);
  files["sys/fs/cgroup/user.slice/job/memory.high"] = "150000000\n";
  EXPECT_EQ(available(files), 50 * kMb);
  files["sys/fs/cgroup/user.slice/job/memory.current"] = "150000001\n";
  EXPECT_EQ(available(files), 0u);
}

TEST(SystemMemory, GroupsOfVersion1Count) {
  std::map<std::string, std::string> files = {
      {"proc/self/mountinfo", kVersion1},
      {"proc/self/cgroup", "5:cpu,cpuacct:/other\n4:memory:/docker/abc\n0::/\n"},
      {"sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
      {"sys/fs/cgroup/memory/memory.usage_in_bytes", "3000000000\n"},
      {"sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "1000000000\n"},
      {"sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "600000000\n"},
      {"sys/fs/cgroup/memory/docker/abc/memory.stat",
       "active_file 1\ntotal_active_file 100000000\ntotal_inactive_file 200000000\n"}};
  EXPECT_EQ(available(files), 700 * kMb);
}

// In a container the mount begins at the container's group, whose name /proc may tell in full.
TEST(SystemMemory, AMountMayBeginAtTheGroup) {
  for (const std::string group : {"/docker/abc", "/", "/docker/other"}) {
    EXPECT_EQ(available({{"proc/self/mountinfo",
                          "31 23 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup "
                          "rw,memory\n"},
                         {"proc/self/cgroup", "4:memory:" + group + "\n"},
                         {"sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000000\n"},
                         {"sys/fs/cgroup/memory/memory.usage_in_bytes", "600000000\n"}}),
              400 * kMb)
        << group;
  }
}

// proc_pid_mountinfo(5) writes blanks and the like as octal numbers.
TEST(SystemMemory, PlacesMayHaveBlanks) {
  EXPECT_EQ(available({{"proc/self/mountinfo",
                        "31 23 0:28 /a\\134b /sys/fs/c\\040g rw - cgroup2 none rw\n"},
                       {"proc/self/cgroup", "0::/a\\b/of mine\n"},
                       {"sys/fs/c g/memory.max", "2000000000\n"},
                       {"sys/fs/c g/memory.current", "0\n"},
                       {"sys/fs/c g/of mine/memory.max", "1000000000\n"},
                       {"sys/fs/c g/of mine/memory.current", "0\n"}}),
            1'000 * kMb);
}

TEST(SystemMemory, WithoutProcItIsNoMoreThanThereIs) {
  const TestFolder root;
  EXPECT_GE(available_memory_bytes(root.path()), available_memory_bytes());
  EXPECT_LT(available_memory_bytes(root.path()), std::size_t{1} << 50);
}

TEST(SystemMemory, IsSomethingOnThisMachine) {
  EXPECT_GT(available_memory_bytes(), kMb);
  EXPECT_LT(available_memory_bytes(), std::size_t{1} << 50);
}

}  // namespace
}  // namespace quantspec
