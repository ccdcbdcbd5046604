// Load by a trace: requests come when it says so.
#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "bench/load_loop.h"
#include "bench/load_measurement.h"

namespace quantspec::bench {

namespace {

constexpr int kMoments = 10;
constexpr auto kPoll = std::chrono::milliseconds(10);

// Rounds up to a moment.
struct Sample {
  double seconds;
  std::int64_t tokens;
  RoundSums sums;
};

std::vector<LoadMoment> moments(const std::vector<Sample>& samples) {
  std::vector<LoadMoment> moments;
  const double all = samples.back().seconds;
  const Sample* before = &samples.front();
  for (int i = 1; i <= kMoments; ++i) {
    const double end = i < kMoments ? all * i / kMoments : all;
    const auto after = std::ranges::upper_bound(samples, end, {}, &Sample::seconds);
    const Sample& last = *std::prev(after);
    const RoundSums sums = last.sums - before->sums;
    const auto mean = [](std::int64_t sum, std::int64_t count) {
      return count > 0 ? static_cast<double>(sum) / static_cast<double>(count) : 0;
    };
    moments.push_back({1e3 * end, mean(sums.turns, sums.rounds), mean(sums.drafted, sums.turns),
                       static_cast<double>(last.tokens - before->tokens) / (all / kMoments)});
    before = &last;
  }
  return moments;
}

void add_between(const LoadMoves& before, const LoadMoves& after, LoadMoves& sum) {
  for (const auto part : {&LoadMoves::preemptions, &LoadMoves::swaps, &LoadMoves::replays,
                          &LoadMoves::pages_swapped_out, &LoadMoves::pages_swapped_in,
                          &LoadMoves::prefix_pages_to_host, &LoadMoves::prefix_pages_from_host}) {
    sum.*part += after.*part - before.*part;
  }
}

class TraceRun {
 public:
  TraceRun(Engine& engine, std::span<const Entry> entries, std::size_t entry, const Trace& trace,
           std::span<const std::vector<TokenId>> prompts, const BenchOptions& options,
           const LoadLoopOptions& loop, const std::function<void(double)>& report)
      : trace_(trace), prompts_(prompts), report_(report), loop_(engine, entries, entry, loop) {
    std::map<std::string, OwnerId> owners;
    for (const TraceRequest& request : trace.requests) {
      owners_.push_back(owners.try_emplace(request.owner, owners.size()).first->second);
    }
    if (options.warm_up > 0) warm_up(loop.sequences, options.warm_up);
  }

  void run(LoadMeasured& measured, bool over_time) {
    const RequestLoop::Statistics at_start = loop_.requests().statistics();
    const RoundSums before(at_start);
    const LoadMoves moved = moves_of(at_start);
    std::vector<Sample> samples = {{0, 0, before}};
    loop_.clock = {};
    loop_.clock.start();
    while (loop_.ended() < std::ssize(trace_.requests)) {
      submit_arrived();
      if (!loop_.step()) wait();
      report_(static_cast<double>(loop_.tokens()));
      if (over_time) {
        samples.push_back(
            {loop_.clock.seconds(), loop_.tokens(), RoundSums(loop_.requests().statistics())});
      }
    }
    loop_.clock.stop();
    const RequestLoop::Statistics now = loop_.requests().statistics();
    measured.repeats.push_back({loop_.clock.seconds(), loop_.tokens(), RoundSums(now) - before});
    add_between(moved, moves_of(now), measured.moves);
    measured.pages = std::max(measured.pages, loop_.most_pages());
    for (const double interval : loop_.take_intervals()) measured.itl.push_back(interval);
    for (const Stream& stream : loop_.streams()) add(stream, measured);
    measured.tokens.push_back(loop_.texts());
    if (over_time) measured.over_time = moments(samples);
  }

 private:
  double origin() const { return trace_.requests.front().arrival; }

  // The first requests, as many as there is room for, all at once; of what they leave cached, the
  // trace sees nothing.
  void warm_up(int streams, int tokens) {
    const auto count = std::min<std::size_t>(streams, prompts_.size());
    for (std::size_t i = 0; i < count; ++i) {
      loop_.submit(prompts_[i], std::min(tokens, trace_.requests[i].output_tokens), 0, 0, false,
                   "warm-up");
    }
    while (loop_.ended() < static_cast<int>(count)) {
      loop_.step();
      report_(0);
    }
    loop_.forget();
  }

  // NOTE: the first one comes at once: nobody waits for the quiet before a trace.
  void submit_arrived() {
    for (; next_ < prompts_.size(); ++next_) {
      const TraceRequest& request = trace_.requests[next_];
      const double arrival = request.arrival - origin();
      if (arrival > loop_.clock.seconds()) return;
      loop_.submit(prompts_[next_], request.output_tokens, arrival, owners_[next_], false);
    }
  }

  void wait() const {
    if (next_ >= prompts_.size()) return;
    const std::chrono::duration<double> left(trace_.requests[next_].arrival - origin() -
                                             loop_.clock.seconds());
    std::this_thread::sleep_for(std::min<std::chrono::duration<double>>(left, kPoll));
  }

  static void add(const Stream& stream, LoadMeasured& measured) {
    measured.ttft.push_back(stream.first - stream.arrival);
    measured.cached_tokens += stream.cached_tokens;
    const auto later = static_cast<double>(stream.tokens.size()) - 1;
    if (later > 0) measured.tpot.push_back((stream.latest - stream.first) / later);
  }

  const Trace& trace_;
  std::span<const std::vector<TokenId>> prompts_;
  const std::function<void(double)>& report_;
  LoadLoop loop_;
  std::vector<OwnerId> owners_;
  std::size_t next_ = 0;
};

}  // namespace

double trace_effort(std::size_t entries, const Trace& trace, const BenchOptions& options) {
  double tokens = 0;
  for (const TraceRequest& request : trace.requests) tokens += request.output_tokens;
  return tokens * static_cast<double>(entries) * options.repeats;
}

std::vector<LoadMeasured> measure_trace(Engine& engine, std::span<const Entry> entries,
                                        const Trace& trace,
                                        std::span<const std::vector<TokenId>> prompts,
                                        const BenchOptions& options, const LoadLoopOptions& loop,
                                        const TokensDone& tokens_done) {
  std::vector<LoadMeasured> all(entries.size());
  double before = 0;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (const int i : run_order(static_cast<int>(entries.size()), repeat)) {
      const std::function<void(double)> report = [&](double tokens) {
        if (tokens_done) tokens_done(before + tokens);
      };
      TraceRun(engine, entries, i, trace, prompts, options, loop, report).run(all[i], repeat == 0);
      before += static_cast<double>(all[i].repeats.back().tokens);
    }
  }
  return all;
}

}  // namespace quantspec::bench
