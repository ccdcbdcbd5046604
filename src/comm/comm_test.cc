#include "comm/comm.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/expect_error.h"
#include "comm/test_support.h"

namespace quantspec {
namespace {

using namespace std::chrono_literals;

std::vector<float> floats(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random) * std::exp2(static_cast<float>(seed % 20));
  return values;
}

// Runs f for every rank in a thread of its own.
void on_threads(TestRanks& ranks, int size, const std::function<void(Communicator&)>& f) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { f(*ranks.join(rank)); });
  }
}

// What a call throws, or "nothing".
std::string thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
    return error.what();
  }
  return "nothing";
}

struct Case {
  Way way;
  int size;
};

class AnyRanks : public ::testing::TestWithParam<Case> {
 protected:
  // The sum of the partials of some ranks, as the header says: of two halves, the left one a power
  // of two.
  static float tree(const std::vector<std::vector<float>>& all, std::size_t i, int begin, int end) {
    if (end - begin == 1) return all[begin][i];
    int left = 1;
    while (2 * left < end - begin) left *= 2;
    return tree(all, i, begin, begin + left) + tree(all, i, begin + left, end);
  }
};

TEST_P(AnyRanks, AddsAsABalancedTree) {
  const auto [way, size] = GetParam();
  TestRanks ranks(way, size);
  // Of one, of several places' worth, and not a multiple of anything.
  for (const std::size_t count : {1, 1000, 65536, 3 * 65536 + 17}) {
    std::vector<std::vector<float>> partials(size);
    for (int rank = 0; rank < size; ++rank) partials[rank] = floats(count, 10 * count + rank);
    const std::vector<float> before = floats(count, 7);
    std::vector<float> expected = before;
    for (std::size_t i = 0; i < count; ++i) expected[i] += tree(partials, i, 0, size);
    TestRanks those(way, size);
    on_threads(those, size, [&](Communicator& all) {
      std::vector<float> x = before;
      all.reduce_add(x, partials[all.rank()]);
      EXPECT_EQ(std::memcmp(x.data(), expected.data(), count * sizeof(float)), 0)
          << "rank " << all.rank() << " of " << all.size();
    });
  }
}

TEST_P(AnyRanks, OfRanksThatAreAlikeOneCounts) {
  const auto [way, num_ranks] = GetParam();
  const int size = num_ranks;
  for (int alike = 1; alike <= size; ++alike) {
    if (size % alike != 0) continue;
    std::vector<std::vector<float>> partials(size / alike);
    for (std::size_t i = 0; i < partials.size(); ++i) partials[i] = floats(1000, i);
    TestRanks ranks(way, size);
    on_threads(ranks, size, [&](Communicator& all) {
      std::vector<float> x = floats(1000, 7), expected = x;
      for (std::size_t i = 0; i < x.size(); ++i) {
        expected[i] += tree(partials, i, 0, size / alike);
      }
      all.reduce_add(x, partials[all.rank() / alike], alike);
      EXPECT_EQ(x, expected);
    });
  }
}

TEST_P(AnyRanks, ManyCallsInARow) {
  const auto [way, size] = GetParam();
  TestRanks ranks(way, size);
  on_threads(ranks, size, [&](Communicator& all) {
    std::mt19937 random(3);  // the same for all
    for (int i = 0; i < 500; ++i) {
      const std::size_t count = 1 + random() % 300;
      const int root = static_cast<int>(random() % size);
      const std::uint32_t what = random() % 4;
      const auto byte = [&](int rank, std::size_t k) {
        return static_cast<std::byte>(17 * i + 31 * rank + k);
      };
      if (what == 0) {
        std::vector<std::byte> own(count), out(count * size);
        for (std::size_t k = 0; k < count; ++k) own[k] = byte(all.rank(), k);
        all.all_gather(out, own);
        for (std::size_t k = 0; k < out.size(); ++k) {
          ASSERT_EQ(out[k], byte(static_cast<int>(k / count), k % count));
        }
      } else if (what == 1) {
        std::vector<std::byte> data(count);
        for (std::size_t k = 0; k < count; ++k) data[k] = byte(all.rank(), k);
        all.broadcast(data, root);
        for (std::size_t k = 0; k < count; ++k) ASSERT_EQ(data[k], byte(root, k));
      } else if (what == 2) {
        std::vector<float> x(count, 1.0f);
        all.reduce_add(x, std::vector<float>(count, static_cast<float>(all.rank())));
        ASSERT_EQ(x, std::vector<float>(count, 1.0f + static_cast<float>(size * (size - 1) / 2)));
      } else {
        all.barrier();
      }
    }
  });
}

TEST_P(AnyRanks, EachOfAGroupGivesEachAPiece) {
  const auto [way, num_ranks] = GetParam();
  const int size = num_ranks;
  TestRanks ranks(way, size);
  on_threads(ranks, size, [&](Communicator& all) {
    const auto byte = [](int from, int to, std::size_t k) {
      return static_cast<std::byte>(7 * from + 31 * to + k + k / 251);
    };
    for (int group = 1; group <= size; ++group) {
      if (size % group != 0) continue;
      const int first = all.rank() / group * group;
      for (const std::size_t piece : {std::size_t{0}, std::size_t{5}, std::size_t{300'001}}) {
        std::vector<std::byte> own(group * piece), out(own.size());
        for (std::size_t k = 0; k < own.size(); ++k) {
          own[k] = byte(all.rank(), first + static_cast<int>(k / piece), k % piece);
        }
        all.all_to_all(out, own, group);
        for (std::size_t k = 0; k < own.size(); ++k) {
          ASSERT_EQ(out[k], byte(first + static_cast<int>(k / piece), all.rank(), k % piece));
        }
      }
    }
  });
}

TEST_P(AnyRanks, OfARootEachGetsItsPiece) {
  const auto [way, size] = GetParam();
  TestRanks ranks(way, size);
  on_threads(ranks, size, [&, size = size](Communicator& all) {
    // In one step, in several, and nothing.
    for (const std::size_t piece : {std::size_t{0}, std::size_t{5}, std::size_t{300'007}}) {
      for (int root = 0; root < size; ++root) {
        const auto byte = [&](int rank, std::size_t k) {
          return static_cast<std::byte>(3 * root + 31 * rank + k);
        };
        std::vector<std::byte> pieces(all.rank() == root ? size * piece : 0), out(piece);
        for (std::size_t i = 0; i < pieces.size(); ++i) {
          pieces[i] = byte(static_cast<int>(i / piece), i % piece);
        }
        all.scatter(out, pieces, root);
        for (std::size_t k = 0; k < piece; ++k) ASSERT_EQ(out[k], byte(all.rank(), k));
      }
    }
  });
}

TEST_P(AnyRanks, NobodyPassesABarrierBeforeAllHaveCome) {
  const auto [way, size] = GetParam();
  TestRanks ranks(way, size);
  std::atomic<int> come = 0;
  on_threads(ranks, size, [&](Communicator& all) {
    for (int i = 1; i <= 20; ++i) {
      if (all.rank() == i % size) std::this_thread::sleep_for(2ms);
      ++come;
      all.barrier();
      EXPECT_GE(come.load(), i * size);
    }
  });
}

// Everybody hears the same, at once and later.
TEST_P(AnyRanks, WhoGivesUpTellsAll) {
  const auto [way, size] = GetParam();
  TestRanks ranks(way, size);
  on_threads(ranks, size, [&](Communicator& all) {
    all.barrier();
    if (all.rank() == size - 1) {
      std::this_thread::sleep_for(100ms);  // a notice may overtake what a barrier sends
      all.give_up("its memory ran out");
      all.give_up("and another thing");
    }
    for (int i = 0; i < 2; ++i) {
      const std::string said = thrown_by([&] { all.barrier(); });
      EXPECT_EQ(said, "the ranks of this model stopped: its memory ran out");
    }
  });
}

TEST_P(AnyRanks, WhoThrowsTellsAll) {
  const auto [way, size] = GetParam();
  TestRanks ranks(way, size);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank, size = size] {
      const std::string said = thrown_by([&] {
        as_rank(ranks, rank, [&](Communicator& all) {
          all.barrier();
          if (rank == 0) fail(ErrorKind::kDevice, "its memory ran out");
          all.barrier();
        });
      });
      EXPECT_EQ(said, rank == 0 ? "its memory ran out"
                                : "the ranks of this model stopped: its memory ran out");
    });
  }
}

TEST_P(AnyRanks, WhoLeavesStopsWhoWaits) {
  const auto [way, size] = GetParam();
  if (size == 1) return;
  TestRanks ranks(way, size);
  on_threads(ranks, size, [&](Communicator& all) {
    all.barrier();
    if (all.rank() == 0) {
      std::this_thread::sleep_for(100ms);  // a notice may overtake what a barrier sends
      return;
    }
    EXPECT_EQ(thrown_by([&] { all.barrier(); }),
              "the ranks of this model stopped: rank 0 has left");
  });
}

TEST_P(AnyRanks, WhoDoesSomethingElseStopsAll) {
  const auto [way, size] = GetParam();
  if (size == 1) return;
  const std::vector<std::function<void(Communicator&)>> calls = {
      [](Communicator& all) {
        std::vector<std::byte> data(all.rank() == 0 ? 8 : 16);
        all.broadcast(data, 0);
      },
      [](Communicator& all) {  // of another root
        std::vector<std::byte> data(8);
        all.broadcast(data, all.rank() == 0 ? 0 : 1);
      },
      [](Communicator& all) {  // as many bytes of a step, but pieces
        std::vector<std::byte> data(all.rank() == 0 ? 8 : 8 * all.size());
        if (all.rank() > 0) return all.broadcast(data, 0);
        all.scatter(data, std::vector<std::byte>(8 * all.size()), 0);
      },
      [](Communicator& all) {  // another call
        std::vector<float> x(2);
        if (all.rank() > 0) return all.barrier();
        all.reduce_add(x, std::vector<float>(2));
      }};
  for (const auto& call : calls) {
    TestRanks ranks(way, size);
    on_threads(ranks, size, [&](Communicator& all) {
      const std::string said = thrown_by([&] {
        call(all);
        all.barrier();
      });
      EXPECT_NE(said.find("do not do the same"), said.npos) << said;
    });
  }
}

// Others wait for the root of a broadcast as long as it lives.
TEST_P(AnyRanks, ARootMayTakeItsTime) {
  const auto [way, size] = GetParam();
  TestRanks ranks(way, size, 300ms);
  on_threads(ranks, size, [&](Communicator& all) {
    for (int root = 0; root < size; ++root) {
      if (all.rank() == root) std::this_thread::sleep_for(400ms);
      std::byte data{static_cast<unsigned char>(all.rank())};
      EXPECT_NO_THROW(all.broadcast({&data, 1}, root));
      EXPECT_EQ(data, std::byte{static_cast<unsigned char>(root)});
    }
    std::this_thread::sleep_for(100ms * all.rank());
    EXPECT_NO_THROW(all.wait_for_all());
  });
}

TEST_P(AnyRanks, AgreeOnWhatTheFirstHas) {
  const auto [way, size] = GetParam();
  TestRanks ranks(way, size);
  on_threads(ranks, size, [&](Communicator& all) {
    const Agreement agreement(&all);
    EXPECT_EQ(agreement.leads(), all.rank() == 0);
    EXPECT_EQ(agreement.on(1.5 + all.rank()), 1.5);
    for (const std::size_t count : {0, 3, 300'000}) {
      const std::vector<std::byte> leads(count, std::byte{7});
      EXPECT_EQ(agreement.on(all.rank() == 0 ? leads : std::vector<std::byte>(5)), leads);
    }
    EXPECT_EQ((std::pair{agreement.rank(), agreement.size()}), (std::pair{all.rank(), size}));
    const std::byte own[] = {std::byte(all.rank()), std::byte{9}};
    const std::vector<std::byte> gathered = agreement.gather(own);
    ASSERT_EQ(std::ssize(gathered), 2 * size);
    for (int rank = 0; rank < size; ++rank) EXPECT_EQ(gathered[2 * rank], std::byte(rank));
    std::byte back[2] = {};
    agreement.scatter(back, all.rank() == 0 ? gathered : std::vector<std::byte>());
    EXPECT_TRUE(std::ranges::equal(back, own));
  });
}

TEST_P(AnyRanks, AgreeOnTheLeast) {
  const auto [way, size] = GetParam();
  TestRanks ranks(way, size);
  on_threads(ranks, size, [&](Communicator& all) {
    for (int who = 0; who < size; ++who) {
      EXPECT_EQ(Agreement(&all).least(all.rank() == who ? 7 : 8 + all.rank()), 7u);
    }
  });
}

TEST_P(AnyRanks, AgreeOnTheFirstLineThereIs) {
  const auto [way, size] = GetParam();
  TestRanks ranks(way, size);
  on_threads(ranks, size, [&](Communicator& all) {
    const Agreement agreement(&all);
    EXPECT_EQ(agreement.first_line(""), "");
    for (int who = 0; who < size; ++who) {
      const std::string own = all.rank() < who ? "" : "line of " + std::to_string(all.rank());
      EXPECT_EQ(agreement.first_line(own), "line of " + std::to_string(who));
    }
    EXPECT_EQ(agreement.first_line(std::string(1000, 'x')), std::string(255, 'x'));
  });
}

TEST(Agreement, OfNobodyIsWhatOneHas) {
  const Agreement agreement;
  EXPECT_TRUE(agreement.leads());
  EXPECT_FALSE(agreement.shared());
  EXPECT_EQ(agreement.on(3), 3);
  EXPECT_EQ(agreement.on(std::vector<std::byte>(3)).size(), 3u);
  const std::byte own[] = {std::byte{1}, std::byte{2}};
  EXPECT_EQ(agreement.gather(own), (std::vector{own[0], own[1]}));
  EXPECT_EQ(agreement.first_line("a line"), "a line");
  EXPECT_EQ((std::pair{agreement.rank(), agreement.size()}), (std::pair{0, 1}));
}

TEST_P(AnyRanks, ProcessesAddWhatThreadsDo) {
  const auto [way, size] = GetParam();
  TestRanks ranks(way, size);
  const auto sum = [&](Communicator& all) {
    std::vector<float> x(5000, 0.5f);
    for (int i = 0; i < 50; ++i) all.reduce_add(x, floats(x.size(), all.rank() + i));
    std::vector<float> first = x;
    all.broadcast(std::as_writable_bytes(std::span(first)), 0);
    if (first != x) throw Error(ErrorKind::kDevice, Message::format<>("sums differ"));
    return x;
  };
  RankProcesses children(ranks, size, sum);
  const std::vector<float> of_processes = sum(*ranks.join(0));
  for (const int end : children.wait()) EXPECT_EQ(end, 0);
  TestRanks others(way, size);
  on_threads(others, size, [&](Communicator& all) { EXPECT_EQ(sum(all), of_processes); });
}

TEST_P(AnyRanks, AKilledProcessStopsAllAtOnce) {
  const auto [way, size] = GetParam();
  if (size == 1) return;
  TestRanks ranks(way, size);
  const auto go_on = [](Communicator& all) {
    while (true) all.barrier();
  };
  RankProcesses children(ranks, size, go_on);
  const auto first = ranks.join(0);
  for (int i = 0; i < 100; ++i) first->barrier();
  kill(children.of(1), SIGKILL);
  const Stopwatch clock;
  EXPECT_EQ(thrown_by([&] { go_on(*first); }), "the ranks of this model stopped: rank 1 has ended");
  EXPECT_LT(clock.seconds(), 9);  // and not after the patience of ten
  const std::vector<int> ends = children.wait();
  EXPECT_EQ(ends[0], 128 + SIGKILL);
  for (std::size_t i = 1; i < ends.size(); ++i) EXPECT_EQ(ends[i], 3);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const Way way : {Way::kMemory, Way::kNetwork}) {
    for (const int size : {1, 2, 3, 4, 8}) cases.push_back({way, size});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Sizes, AnyRanks, ::testing::ValuesIn(all_cases()), [](const auto& info) {
  return (info.param.way == Way::kMemory ? "memory_" : "network_") +
         std::to_string(info.param.size);
});

TEST(Ranks, WhoDoesNotComeStopsAll) {
  for (const Way way : {Way::kMemory, Way::kNetwork}) {
    TestRanks ranks(way, 3, 2000ms);
    on_threads(ranks, 3, [&](Communicator& all) {
      all.barrier();
      if (all.rank() == 1) std::this_thread::sleep_for(4s);
      EXPECT_EQ(thrown_by([&] { all.barrier(); }),
                "the ranks of this model stopped: rank 1 did not come within 2000 ms");
    });
  }
}

// Who is of another job, or knows nothing of ranks, is sent away.
TEST(NetworkRanks, AreOfTheirJob) {
  const int port = free_port();
  const auto join = [&](int rank, int size, const char* job, std::chrono::milliseconds to_meet) {
    return network_ranks({rank, size, "localhost", port, job}, to_meet);
  };
  std::jthread stranger([&] {
    expect_error(ErrorKind::kDevice, {"rank 1 found no rank 0"},
                 [&] { join(1, 2, "another", 3s); });
  });
  std::jthread first([&] {
    std::this_thread::sleep_for(200ms);
    join(0, 2, "this", 10s)->barrier();
  });
  std::this_thread::sleep_for(800ms);
  const auto own = join(1, 2, "this", 10s);
  EXPECT_EQ(own->num_here(), 2);
  own->barrier();
}

TEST(NetworkRanks, SayWhoDidNotCome) {
  const int port = free_port();
  const auto join = [&](int rank, int size, const char* address) {
    network_ranks({rank, size, address, port, "a test"}, 500ms);
  };
  expect_error(ErrorKind::kDevice, {"1 of 2 ranks came"}, [&] { join(0, 2, "127.0.0.1"); });
  expect_error(ErrorKind::kDevice, {"rank 1 found no rank 0 at 127.0.0.1 port"},
               [&] { join(1, 2, "127.0.0.1"); });
  expect_error(ErrorKind::kDevice, {"no rank 0 at nowhere.invalid"},
               [&] { join(1, 2, "nowhere.invalid"); });
}

TEST(SharedRanks, ARankJoinsOnce) {
  SharedRanks ranks(2);
  const auto one = ranks.join(1);
  expect_error(ErrorKind::kInternal, {"joins once"}, [&] { ranks.join(1); });
  expect_error(ErrorKind::kInternal, {"one of all"}, [&] { ranks.join(2); });
}

TEST(OnlyRank, AddsAndTellsNobody) {
  const auto one = only_rank();
  EXPECT_EQ(one->rank(), 0);
  EXPECT_EQ(one->size(), 1);
  std::vector<float> x{1, 2}, partial{3, 4};
  one->reduce_add(x, partial);
  EXPECT_EQ(x, (std::vector<float>{4, 6}));
  std::vector<float> out(2);
  one->all_gather(std::as_writable_bytes(std::span(out)), std::as_bytes(std::span(x)));
  EXPECT_EQ(out, x);
  one->all_to_all(std::as_writable_bytes(std::span(x)), std::as_bytes(std::span(out)), 1);
  EXPECT_EQ(out, x);
  one->broadcast(std::as_writable_bytes(std::span(out)), 0);
  EXPECT_EQ(out, x);
  one->scatter(std::as_writable_bytes(std::span(out)), std::as_bytes(std::span(partial)), 0);
  EXPECT_EQ(out, partial);
  one->barrier();
  one->give_up("nobody hears");
  one->barrier();
}

// --- processes of a launcher ---

// Runs f in processes with these variables, of which each has @ for its rank; returns their exit
// codes: 0, or 3 where something was thrown that has `expected` in it.
std::vector<int> launch(int size, const std::vector<std::pair<std::string, std::string>>& variables,
                        const std::string& expected, const std::function<void(Communicator&)>& f) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "MASTER_ADDR"}) {
      unsetenv(name);
    }
    for (const auto& [name, value] : variables) {
      setenv(name.c_str(), value == "@" ? std::to_string(rank).c_str() : value.c_str(), 1);
    }
    try {
      f(*launched_ranks(2s));
    } catch (const Error& error) {
      const bool as_expected = std::string(error.what()).find(expected) != std::string::npos;
      if (!as_expected || expected.empty()) fprintf(stderr, "%s\n", error.what());
      _exit(as_expected ? 3 : 4);
    }
    _exit(0);
  }
  return wait_for(children);
}

TEST(LaunchedRanks, MeetByTheVariablesOfTheirLauncher) {
  const std::string job = std::to_string(getpid());
  const auto gather = [](Communicator& all) {
    std::vector<int> ranks(all.size());
    const int own = all.rank();
    all.all_gather(std::as_writable_bytes(std::span(ranks)), std::as_bytes(std::span(&own, 1)));
    for (int rank = 0; rank < all.size(); ++rank) {
      if (ranks[rank] != rank) fail(ErrorKind::kInternal, "rank {} is not there", rank);
    }
    all.wait_for_all();
  };
  using Variables = std::vector<std::pair<std::string, std::string>>;
  const auto port = [] { return std::to_string(free_port() - 1); };  // the one after it is taken
  for (const Variables& variables :
       {Variables{
            {"RANK", "@"}, {"WORLD_SIZE", "3"}, {"LOCAL_WORLD_SIZE", "3"}, {"MASTER_PORT", job}},
        Variables{{"OMPI_COMM_WORLD_RANK", "@"},
                  {"OMPI_COMM_WORLD_SIZE", "3"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                  {"PMIX_NAMESPACE", job}},
        Variables{{"SLURM_PROCID", "@"},
                  {"SLURM_NTASKS", "3"},
                  {"SLURM_NNODES", "1"},
                  {"SLURM_JOB_ID", job}},
        // As if each were on a machine of its own.
        Variables{{"RANK", "@"},
                  {"WORLD_SIZE", "3"},
                  {"LOCAL_WORLD_SIZE", "1"},
                  {"MASTER_ADDR", "127.0.0.1"},
                  {"MASTER_PORT", port()}},
        Variables{{"OMPI_COMM_WORLD_RANK", "@"},
                  {"OMPI_COMM_WORLD_SIZE", "3"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                  {"PMIX_NAMESPACE", job},
                  {"MASTER_ADDR", "localhost"},
                  {"MASTER_PORT", port()}},
        Variables{{"SLURM_PROCID", "@"},
                  {"SLURM_NTASKS", "3"},
                  {"SLURM_NNODES", "3"},
                  {"SLURM_JOB_ID", job},
                  {"SLURM_STEP_NODELIST", "127.0.0.[1-3],other"},
                  {"MASTER_PORT", port()}},
        Variables{{"LWS_WORKER_INDEX", "@"},
                  {"LWS_GROUP_SIZE", "3"},
                  {"LWS_LEADER_ADDRESS", "127.0.0.1"},
                  {"MASTER_PORT", port()}}}) {
    EXPECT_EQ(launch(3, variables, "", gather), std::vector<int>(3, 0)) << variables[0].first;
  }
}

TEST(LaunchedRanks, SayWhatIsWrong) {
  const std::string job = "w" + std::to_string(getpid());
  const auto nothing = [](Communicator&) {};
  EXPECT_EQ(launch(1, {}, "no launcher", nothing), std::vector{3});
  EXPECT_EQ(launch(1, {{"RANK", "x"}, {"WORLD_SIZE", "2"}}, "RANK is 'x'", nothing),
            std::vector{3});
  EXPECT_EQ(
      launch(1, {{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", job}}, "rank 2 of 2", nothing),
      std::vector{3});
  EXPECT_EQ(
      launch(
          1,
          {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "1"}, {"MASTER_PORT", "29500"}},
          "MASTER_ADDR must name", nothing),
      std::vector{3});
  EXPECT_EQ(launch(1, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", ""}},
                   "MASTER_PORT is not set", nothing),
            std::vector{3});
  EXPECT_EQ(launch(1, {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", job}},
                   "1 of 2 ranks came within 2 s", nothing),
            std::vector{3});
  EXPECT_EQ(launch(1, {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", job}},
                   "rank 1 found no rank 0", nothing),
            std::vector{3});
}

}  // namespace
}  // namespace quantspec
