// Random streams of requests, cancellations and pauses through a simulated engine, which checks the
// scheduler's contract at every step.

#include <gtest/gtest.h>
#include <malloc.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "scheduler/simulated_engine.h"

namespace quantspec {
namespace {

using Submission = Scheduler::Submission;
using Operation = std::tuple<int, int, int>;  // kind, two numbers

constexpr int kKinds = 16;
constexpr int kNumbers = 10'000;

SimulationOptions options_of(Admission admission, int variant) {
  return {.scheduler = {.page_tokens = 4,
                        .chunk_tokens = 8,
                        .total_pages = 6 + static_cast<std::size_t>(variant) % 37,
                        .context_tokens = 120,
                        .most_waiting = 6,
                        .admission = admission,
                        .ageing = 0.3,
                        .token_interval = variant % 3 == 0 ? std::optional(0.020) : std::nullopt},
          .slots = 1 + variant % 5,
          .swaps = variant % 2 == 0,
          .seed = static_cast<std::uint64_t>(variant)};
}

struct World {
  explicit World(const SimulationOptions& options) : engine(options) {}

  void operate(const Operation& operation) {
    const auto [kind, a, b] = operation;
    if (kind < 5) submit(a, b);
    if (kind >= 5 && kind < 12) engine.step();
    const std::vector<RequestId> live = engine.live_ids();
    if (live.empty()) return;
    const RequestId id = live[a % live.size()];
    if (kind == 12) engine.cancel(id);
    if (kind == 13) engine.pause(id);
    if (kind == 14) engine.resume(id);
    if (kind == 15) engine.wait(b % 100 * 0.01);
    engine.verify();
  }

  void submit(int a, int b) {
    const int prompt = 1 + a % 60, most = 1 + b % 60;
    const SimulatedRequest request{
        .info = {.id = ++submitted,
                 .owner = b % 3 == 0 ? 100 + submitted : a % 4,
                 .priority = b % 7 == 0 ? 2 : b % 2,
                 .prompt_tokens = prompt,
                 .most_new_tokens = most},
        // Mostly little, so that more is admitted than fits if some write much.
        .writes = a / 4 % 5 == 0 ? most : 1 + a / 20 % std::min(3, most),
        .family = static_cast<std::uint64_t>(b % 3),
        .common = prompt * (a % 5) / 4,
    };
    const Scheduler& scheduler = engine.scheduler();
    const std::size_t waited = scheduler.statistics().waiting;
    const bool fits = scheduler.pages_of(prompt, prompt + most - 1) <= engine.total_pages();
    const Submission submission = engine.submit(request);
    check((submission == Submission::kExceedsPages) == !fits, "what can never fit");
    if (fits) check((submission == Submission::kQueueFull) == (waited == 6), "a bounded queue");
    accepted += submission == Submission::kAccepted;
  }

  void finish() {
    engine.resume_all();
    engine.drain();
    check(engine.holds_nothing(), "pages are lost");
    Scheduler::Statistics statistics = engine.scheduler().statistics();
    statistics.owners = statistics.preemptions = 0;
    check(statistics == Scheduler::Statistics{}, "something is left");
  }

  SimulatedEngine engine;
  RequestId submitted = 0;
  int accepted = 0;
};

std::vector<Operation> random_operations() {
  const auto below = [](int end) { return rc::gen::inRange(0, end); };
  const auto operation = rc::gen::tuple(below(kKinds), below(kNumbers), below(kNumbers));
  // As many operations in the first case as in the last, and all kinds of them.
  return *rc::gen::resize(kNumbers,
                          rc::gen::scale(0.06, rc::gen::container<std::vector<Operation>>(
                                                   rc::gen::resize(kNumbers, operation))));
}

void run(Admission admission) {
  const auto operations = random_operations();
  const int variant = *rc::gen::resize(kNumbers, rc::gen::inRange(0, kNumbers));
  std::vector<std::uint64_t> traces[2];
  for (auto& trace : traces) {
    World world(options_of(admission, variant));
    for (const Operation& operation : operations) world.operate(operation);
    world.finish();
    trace = world.engine.trace();
  }
  RC_ASSERT(traces[0] == traces[1]);  // equal calls get equal answers
}

RC_GTEST_PROP(SchedulerProperty, GuaranteedAdmissionKeepsTheContract, ()) {
  run(Admission::kGuaranteed);
}
RC_GTEST_PROP(SchedulerProperty, ExpectedAdmissionKeepsTheContract, ()) {
  run(Admission::kExpected);
}

// Of variants whose pages are short for their slots, one that swaps and one that reads again.
void run_a_hundred_thousand(Admission admission, int variant) {
  std::mt19937 random(1);
  const auto draw = [&](int below) { return static_cast<int>(random() % below); };
  World world(options_of(admission, variant));
  std::size_t bytes_before = 0;
  while (world.submitted < 100'000) {
    world.operate({draw(kKinds), draw(kNumbers), draw(kNumbers)});
    if (world.submitted % 1000 == 0) world.engine.resume_all();
    if (bytes_before == 0 && world.submitted >= 20'000) {
      world.engine.clear_trace();
      bytes_before = mallinfo2().uordblks;
    }
    if (world.engine.trace().size() > 10'000) world.engine.clear_trace();
  }
  world.finish();
  world.engine.clear_trace();
  EXPECT_LE(mallinfo2().uordblks, bytes_before + 10'000);
  const Scheduler::Statistics statistics = world.engine.scheduler().statistics();
  EXPECT_EQ(statistics.owners, Owners::kMostIdle);
  EXPECT_GT(world.accepted, 30'000);
  EXPECT_GT(world.engine.found_tokens(), 50'000u);
  EXPECT_GT(statistics.preemptions, 100u);  // kGuaranteed: of paused ones, as the engine checks
}

TEST(SchedulerModel, AHundredThousandRequestsLeaveItEmptyAndItsMemoryFlat) {
  for (const Admission admission : {Admission::kGuaranteed, Admission::kExpected}) {
    run_a_hundred_thousand(admission, 24);
    run_a_hundred_thousand(admission, 209);
  }
}

}  // namespace
}  // namespace quantspec
