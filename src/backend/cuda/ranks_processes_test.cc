// Ranks on GPUs that are processes, as a launcher makes them. A test starts itself twice, and each
// of these is a rank: so CUDA begins in it, and not before it is made.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/cuda.h"
#include "backend/cuda/device.h"
#include "backend/cuda/ranks.h"
#include "backend/cuda/ranks_test_support.h"
#include "base/clock.h"
#include "base/expect_error.h"
#include "base/test_folder.h"

namespace quantspec::cuda {
namespace {

constexpr int kRanks = 2;
constexpr const char* kRankOfTest = "QUANTSPEC_RANK_OF_TEST";

// A process of this test.
class Child {
 public:
  explicit Child(int rank) {
    const auto& test = *testing::UnitTest::GetInstance()->current_test_info();
    log_ = folder_.path() / std::to_string(rank);
    std::vector<std::string> variables = {std::string(kRankOfTest) + "=1",
                                          "RANK=" + std::to_string(rank),
                                          "WORLD_SIZE=" + std::to_string(kRanks),
                                          "LOCAL_WORLD_SIZE=" + std::to_string(kRanks),
                                          "MASTER_PORT=test-" + std::to_string(getpid()),
                                          "GTEST_OUTPUT=",
                                          "GTEST_TOTAL_SHARDS=1",
                                          "GTEST_SHARD_INDEX=0"};
    for (char** one = environ; *one != nullptr; ++one) variables.emplace_back(*one);
    std::vector<std::string> words = {
        "ranks", std::string("--gtest_filter=") + test.test_suite_name() + "." + test.name()};
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    const int status = posix_spawn(&process_, "/proc/self/exe", &files, nullptr,
                                   pointers(words).data(), pointers(variables).data());
    posix_spawn_file_actions_destroy(&files);
    EXPECT_EQ(status, 0);
    if (status != 0) process_ = -1;
  }
  ~Child() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Whether it has ended.
  bool has_ended() {
    if (process_ > 0 && waitpid(process_, &status_, WNOHANG) == process_) process_ = 0;
    return process_ <= 0;
  }
  // Then: by itself, after its test; or by SIGKILL.
  bool ended_well() const {
    return WIFEXITED(status_) && WEXITSTATUS(status_) == 0 &&
           log().find("[  PASSED  ] 1 test") != std::string::npos;
  }
  bool was_killed() const { return WIFSIGNALED(status_) && WTERMSIG(status_) == SIGKILL; }
  std::string log() const {
    std::stringstream text;
    text << std::ifstream(log_).rdbuf();
    return text.str();
  }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& words) {
    std::vector<char*> all;
    for (std::string& word : words) all.push_back(word.data());
    all.push_back(nullptr);
    return all;
  }

  pid_t process_ = -1;
  int status_ = -1;
  TestFolder folder_;
  std::string log_;
};

class CudaRanksProcesses : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = unavailable(0); !why.empty()) GTEST_SKIP() << "no GPU: " << why;
  }

  // Calls f as each of two ranks, in processes; on one GPU, or each on one of its own.
  using AsRank = std::function<void(const Rank&)>;
  static void run(const AsRank& f, bool on_one = true,
                  std::chrono::milliseconds patience = SharedRanks::kPatience,
                  bool last_is_killed = false) {
    if (std::getenv(kRankOfTest) != nullptr) return be_rank(f, on_one, patience);
    std::array<Child, kRanks> ranks{Child(0), Child(1)};
    const Stopwatch watch;
    for (int rank = 0; rank < kRanks; ++rank) {
      while (!ranks[rank].has_ended() && watch.milliseconds() < 300'000) {
        for (Child& other : ranks) other.has_ended();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      const bool killed = last_is_killed && rank == kRanks - 1;
      EXPECT_TRUE(killed ? ranks[rank].was_killed() : ranks[rank].ended_well())
          << "rank " << rank << ":\n"
          << ranks[rank].log();
    }
  }

 private:
  static void be_rank(const AsRank& f, bool on_one, std::chrono::milliseconds patience) {
    const std::shared_ptr<Communicator> all = launched_ranks();
    Device device(on_one ? 0 : all->rank());
    const CurrentGpu current(device.gpu());
    Ranks ranks(device, *all, {.context = kRanks}, patience);
    device.set_ranks(&ranks);
    EXPECT_NO_THROW(f({device, ranks, *all}));
    device.set_ranks(nullptr);
  }
};

TEST_F(CudaRanksProcesses, SumsAreATree) { run(expect_sums); }

TEST_F(CudaRanksProcesses, SumsAreATreeAcrossGpus) {
  if (gpu_names().size() < kRanks) GTEST_SKIP() << "one GPU: nothing to reach";
  run(expect_sums, false);
}

TEST_F(CudaRanksProcesses, GraphsRepeatThem) { run(expect_repeated_sums); }

// What an op of prompts tells of a rank's memory.
struct Told {
  const float* first;
  float* second;
  const float* none;

  template <typename F>
  void for_pointers(const F& f) {
    f(first), f(second), f(none);
  }
};

// Two places of one allocation, and of another one next, after the first was given back.
TEST_F(CudaRanksProcesses, ReachWhatOthersShow) {
  run([](const Rank& rank) {
    constexpr std::size_t kCount = 1000, kFirst = 3, kSecond = 500;
    const int other = 1 - rank.index();
    Buffer copied = rank.device.allocate(sizeof(float) * kCount);
    for (unsigned turn = 0; turn < 20; ++turn) {
      const auto values_of = [&](int of) { return random_floats(kCount, 2 * turn + of); };
      Buffer own = rank.upload(values_of(rank.index()));
      float* const at = own.as<float>();
      for (int step = 0; step < 2; ++step) {  // they are open already
        const std::vector<Told> all =
            rank.ranks.reached_by_shares(Told{at + kFirst, at + kSecond, nullptr});
        EXPECT_EQ(all[rank.index()].first, at + kFirst);
        EXPECT_EQ(all[other].none, nullptr);
        EXPECT_EQ(all[other].second - all[other].first, kSecond - kFirst);
        rank.ranks.meet_on_gpus();
        rank.device.copy(copied.data(), all[other].first - kFirst, sizeof(float) * kCount);
        ASSERT_EQ(rank.download(copied, kCount), values_of(other)) << "turn " << turn;
        rank.ranks.meet_on_gpus();
      }
    }
  });
}

// Each has a table with its own addresses.
TEST_F(CudaRanksProcesses, ReachPagesOfAContext) {
  run([](const Rank& rank) {
    constexpr std::size_t kPages = 7, kFloats = 64;  // of a plane
    const auto values_of = [](int of) { return random_floats(2 * kPages * kFloats, of); };
    Buffer slab = rank.upload(values_of(rank.index()));
    std::vector<PagePlanes> pages;
    for (std::size_t i = 0; i < kPages; ++i) {
      std::byte* const upper = slab.data() + sizeof(float) * 2 * i * kFloats;
      pages.push_back({upper, upper + sizeof(float) * kFloats});
    }
    Buffer table = rank.device.allocate(sizeof(PagePlanes) * kPages);
    rank.device.upload(table.data(), pages.data(), sizeof(PagePlanes) * kPages);
    const auto tables = rank.ranks.pages_of_context({table.as<PagePlanes>(), kPages});
    rank.ranks.meet_on_gpus();
    ASSERT_EQ(tables.size(), std::size_t{kRanks});
    for (int of = 0; of < kRanks; ++of) {
      std::vector<PagePlanes> reached(kPages);
      rank.device.download(reached.data(), tables[of], sizeof(PagePlanes) * kPages);
      Floats there(2 * kPages * kFloats);
      float* to = there.data();
      for (const PagePlanes& page : reached) {
        for (const std::byte* plane : {page.upper, page.lower}) {
          rank.device.download(to, plane, sizeof(float) * kFloats);
          to += kFloats;
        }
      }
      EXPECT_EQ(there, values_of(of));
    }
    rank.ranks.meet_on_gpus();
    rank.device.synchronize();
  });
}

TEST_F(CudaRanksProcesses, WhoLeavesIsWaitedForNoLonger) {
  run([](const Rank& rank) {
    Buffer own = rank.upload(random_floats(4096, 1)), x = rank.upload(random_floats(4096, 2));
    rank.ranks.meet();
    if (rank.index() == 1) return;
    const Stopwatch watch;
    launch_alone(rank, own, x);
    expect_error(ErrorKind::kDevice, {"the ranks of this model stopped: rank 1 has left"},
                 [&] { rank.device.synchronize(); });
    EXPECT_LT(watch.milliseconds(), 3000);
  });
}

void end_killed(const Rank& rank) {
  Buffer own = rank.upload(random_floats(4096, 1)), x = rank.upload(random_floats(4096, 2));
  rank.ranks.meet();
  if (rank.index() == 1) raise(SIGKILL);
  const Stopwatch watch;
  launch_alone(rank, own, x);
  expect_error(ErrorKind::kDevice,
               {"the ranks of this model stopped: rank 1", "did not come within 300 ms"},
               [&] { rank.device.synchronize(); });
  EXPECT_LT(watch.milliseconds(), 3000);
}

TEST_F(CudaRanksProcesses, WhoIsKilledIsAnErrorWithinThePatience) {
  run(end_killed, true, std::chrono::milliseconds(300), /*last_is_killed=*/true);
}

TEST_F(CudaRanksProcesses, WhoIsKilledIsAnErrorAcrossGpus) {
  if (gpu_names().size() < kRanks) GTEST_SKIP() << "one GPU: nothing to reach";
  run(end_killed, false, std::chrono::milliseconds(300), /*last_is_killed=*/true);
}

}  // namespace
}  // namespace quantspec::cuda
