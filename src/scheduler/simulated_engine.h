// For tests: an engine as the scheduler sees one, with a pool, a prefix tree and a clock that are
// numbers. It does what it is told, takes the time that its options say, and throws kInternal where
// the scheduler breaks its contract: pages run out or are counted wrongly, a chunk interrupts
// another, a paused request goes on, a request ends twice or never.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "scheduler/scheduler.h"

namespace quantspec {

struct SimulationOptions {
  SchedulerOptions scheduler;
  int slots = 4;
  double round_seconds = 0.010;  // of a round, and for every sequence in it
  double sequence_seconds = 0.001;
  double slice_seconds = 0.004;  // of a whole chunk there are so many
  int slices = 3;
  bool swaps = false;  // preempted sequences come back at once; else they are read again
  std::uint64_t seed = 1;
};

struct SimulatedRequest {
  RequestInfo info;
  int writes = 1;  // tokens until it ends, <= most_new_tokens
  // The first so many tokens of its prompt are those of others of this family.
  std::uint64_t family = 0;
  int common = 0;
};

class SimulatedEngine {
 public:
  using Submission = Scheduler::Submission;

  explicit SimulatedEngine(const SimulationOptions& options)
      : options_(options),
        scheduler_(options.scheduler),
        free_pages_(options.scheduler.total_pages),
        random_(options.seed) {}

  const Scheduler& scheduler() const { return scheduler_; }
  double now() const { return now_; }
  void wait(double seconds) { now_ += seconds; }

  Submission submit(SimulatedRequest request) {
    request.info.arrival = now_;
    const Submission submission = scheduler_.submit(request.info);
    if (submission == Submission::kAccepted) {
      check(sequences_.try_emplace(request.info.id, Sequence{request}).second, "an id");
      ++accepted_;
    }
    return submission;
  }

  bool cancel(RequestId id) {
    const bool known = scheduler_.cancel(id);
    check(known == sequences_.contains(id), "a request ended without a word");
    if (known) end(id);
    return known;
  }
  void pause(RequestId id) {
    if (!scheduler_.pause(id)) return;
    sequences_.at(id).paused = true;
  }
  void resume(RequestId id) {
    if (scheduler_.resume(id)) sequences_.at(id).paused = false;
  }
  void resume_all() {
    for (auto& [id, _] : sequences_) resume(id);
  }

  // A step, as scheduler.h has it. Returns whether anything was done.
  bool step() {
    const std::size_t before = trace_.size();
    const double start = now_;
    while (const auto id = scheduler_.victim(now_, pool())) preempt(*id);
    while (true) {
      const auto id = scheduler_.candidate(now_, pool());
      if (id && admit(*id)) continue;
      const auto paused = scheduler_.gives_way(now_);
      if (!paused) break;
      check(sequences_.at(*paused).paused, "who gives way");
      preempt(*paused);
    }
    round();
    while (const auto slices = scheduler_.prefill(now_, pool())) prefill(*slices);
    verify();
    return trace_.size() > before || now_ > start;
  }
  // Steps until all requests have ended.
  void drain(int most_steps = 100'000) {
    for (int i = 0; i < most_steps && !sequences_.empty(); ++i) {
      check(step(), "nothing is done although requests wait");
    }
    check(sequences_.empty(), "requests starve");
  }

  PoolState pool() const {
    std::size_t idle = 0;
    for (const auto& [_, chunk] : tree_) idle += chunk.holders == 0 ? chunk_pages() : 0;
    return {
        .free_pages = free_pages_, .idle_pages = idle, .free_slots = options_.slots - admitted_};
  }

  // Everything against everything.
  void verify() const {
    scheduler_.check_integrity();
    std::size_t held = tree_.size() * chunk_pages();
    int admitted = 0, live = 0;
    for (const auto& [_, sequence] : sequences_) {
      held += sequence.own_pages;
      admitted += sequence.admitted;
      ++live;
    }
    check(held + free_pages_ == options_.scheduler.total_pages, "a page is lost");
    check(admitted == admitted_ && admitted <= options_.slots, "slots");
    const Scheduler::Statistics statistics = scheduler_.statistics();
    check(std::cmp_equal(statistics.admitted, admitted), "admitted requests");
    check(std::cmp_equal(statistics.waiting + statistics.preempted, live - admitted), "waiting");
    check(accepted_ == ended_ + sequences_.size(), "a request ended twice or never");
    if (options_.scheduler.admission == Admission::kGuaranteed) {
      check(statistics.promised_pages <= pool().pages(), "pages are promised twice");
    }
  }
  bool live(RequestId id) const { return sequences_.contains(id); }
  bool admitted(RequestId id) const { return live(id) && sequences_.at(id).admitted; }
  std::size_t num_live() const { return sequences_.size(); }
  std::vector<RequestId> live_ids() const {
    std::vector<RequestId> ids;
    for (const auto& [id, _] : sequences_) ids.push_back(id);
    return ids;
  }
  bool holds_nothing() const { return free_pages_ + pool().idle_pages == total_pages(); }
  std::size_t total_pages() const { return options_.scheduler.total_pages; }

  // --- what was done ---
  void clear_trace() { trace_ = {}; }
  const std::vector<std::uint64_t>& trace() const { return trace_; }
  static constexpr OwnerId kRecordedOwners = 100;          // 0 .. 99
  double served(OwnerId owner) { return served_[owner]; }  // weighed as the scheduler's contract
  int wrote(RequestId id) const { return live(id) ? sequences_.at(id).generated : -1; }
  std::uint64_t found_tokens() const { return found_; }
  // While there was both to do.
  double decode_seconds() const { return decode_seconds_; }
  double prefill_seconds() const { return prefill_seconds_; }
  void forget_longest_interval() { longest_interval_ = 0; }
  double longest_interval() const { return longest_interval_; }

 private:
  using ChunkId = std::pair<std::uint64_t, int>;  // whose tokens, index
  struct Chunk {
    int holders = 0;
    std::uint64_t idle_since = 0;
  };
  struct Sequence {
    SimulatedRequest request;
    bool admitted = false, paused = false, was_preempted = false;
    int tokens = 0;  // in the cache
    int generated = 0;
    std::vector<ChunkId> path;  // in the tree
    std::size_t own_pages = 0;
    int slices = 0;  // of the chunk in flight
    int prompt() const { return request.info.prompt_tokens; }
    int read_end() const { return prompt() + std::max(generated, 1) - 1; }
  };

  std::size_t chunk_pages() const {
    return options_.scheduler.chunk_tokens / options_.scheduler.page_tokens;
  }
  Held held(const Sequence& sequence) const {
    return {sequence.tokens, sequence.path.size() * chunk_pages() + sequence.own_pages};
  }
  void record(char what, std::uint64_t id) { trace_.push_back(id * 256 + what); }
  int draw(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }

  // --- pages ---
  void allocate(Sequence& sequence, int length) {
    const std::size_t wanted = scheduler_.pages_of(sequence.prompt(), length);
    for (std::size_t have = held(sequence).pages; have < wanted; ++have) {
      if (free_pages_ == 0) evict();
      --free_pages_;
      ++sequence.own_pages;
    }
  }
  void evict() {
    auto oldest = tree_.end();
    for (auto chunk = tree_.begin(); chunk != tree_.end(); ++chunk) {
      if (chunk->second.holders > 0) continue;
      if (oldest == tree_.end() || chunk->second.idle_since < oldest->second.idle_since) {
        oldest = chunk;
      }
    }
    check(oldest != tree_.end(), "pages ran out");
    tree_.erase(oldest);
    free_pages_ += chunk_pages();
  }
  void release(Sequence& sequence) {
    for (; !sequence.path.empty(); sequence.path.pop_back()) {
      Chunk& chunk = tree_.at(sequence.path.back());
      if (--chunk.holders == 0) chunk.idle_since = ++releases_;
    }
    free_pages_ += std::exchange(sequence.own_pages, 0);
    sequence.tokens = sequence.slices = 0;
    admitted_ -= std::exchange(sequence.admitted, false);
  }
  ChunkId chunk_at(const Sequence& sequence, int index) const {
    const bool common = (index + 1) * options_.scheduler.chunk_tokens <= sequence.request.common;
    return {common ? 2 * sequence.request.family : 2 * sequence.request.info.id + 1, index};
  }
  // Goes on to chunks that are in the tree. Returns whether there were any.
  bool match(Sequence& sequence) {
    const int chunk_tokens = options_.scheduler.chunk_tokens;
    const int before = sequence.tokens;
    while (sequence.tokens + chunk_tokens < sequence.prompt()) {
      const ChunkId id = chunk_at(sequence, sequence.tokens / chunk_tokens);
      const auto chunk = tree_.find(id);
      if (chunk == tree_.end()) break;
      ++chunk->second.holders;
      sequence.path.push_back(id);
      sequence.tokens += chunk_tokens;
    }
    return sequence.tokens > before;
  }

  // --- what the scheduler says ---
  void preempt(RequestId id) {
    Sequence& sequence = sequences_.at(id);
    check(sequence.admitted, "a victim without a slot");
    check(sequence.paused || options_.scheduler.admission == Admission::kExpected,
          "kGuaranteed preempts");
    release(sequence);
    sequence.was_preempted = true;
    scheduler_.preempted(id, now_);
    record('p', id);
  }

  bool admit(RequestId id) {
    Sequence& sequence = sequences_.at(id);
    check(!sequence.paused && !sequence.admitted, "who is admitted");
    match(sequence);
    if (!scheduler_.admit(id, held(sequence), now_, pool())) {
      release(sequence);
      return false;
    }
    serve(sequence, 0.1 * (sequence.was_preempted ? 0 : sequence.tokens));
    found_ += sequence.tokens;
    sequence.admitted = true;
    ++admitted_;
    record('a', id);
    if (sequence.was_preempted && options_.swaps && sequence.generated > 0) {
      allocate(sequence, sequence.read_end());
      sequence.tokens = sequence.read_end();
      scheduler_.found(id, held(sequence));
    }
    return true;
  }

  void round() {
    std::vector<Scheduler::RoundResult> results;
    const std::vector<RequestId> ids = scheduler_.decoding();
    for (const RequestId id : ids) {
      Sequence& sequence = sequences_.at(id);
      check(sequence.admitted && !sequence.paused, "who decodes");
      const int page = options_.scheduler.page_tokens;
      allocate(sequence, sequence.tokens);
      const int most = std::min(
          {5, page - sequence.tokens % page, sequence.request.writes - sequence.generated});
      const int count = draw(1, most);
      sequence.tokens += count;
      sequence.generated += count;
      serve(sequence, 2 * count);
      results.push_back({id, count, held(sequence).pages});
      record('r', id);
    }
    if (ids.empty()) return;
    const double seconds = options_.round_seconds + ids.size() * options_.sequence_seconds;
    now_ += seconds;
    if (reads()) decode_seconds_ += seconds;
    longest_interval_ = std::max(longest_interval_, now_ - last_round_end_);
    last_round_end_ = now_;
    scheduler_.round_ran(results, seconds);
    for (const RequestId id : ids) finish_if_done(id);
  }

  void prefill(const Scheduler::Slices& slices) {
    Sequence& sequence = sequences_.at(slices.id);
    if (sequence.slices == 0) {
      check(!in_flight_ || !live(*in_flight_) || sequences_.at(*in_flight_).slices == 0,
            "a chunk interrupts another");
      check(!sequence.paused, "whose chunk begins");
      if (sequence.path.size() * options_.scheduler.chunk_tokens ==
              static_cast<std::size_t>(sequence.tokens) &&
          match(sequence)) {
        found_ += options_.scheduler.chunk_tokens;
        return scheduler_.found(slices.id, held(sequence));
      }
      allocate(sequence, next_stop(sequence));
      in_flight_ = slices.id;
    }
    run_slices(sequence, slices.seconds);
    record('s', slices.id);
  }

  void run_slices(Sequence& sequence, double budget) {
    const RequestId id = sequence.request.info.id;
    const bool decoders = !scheduler_.decoding().empty();
    double seconds = 0;
    while (seconds < budget && sequence.slices < options_.slices) {
      seconds += options_.slice_seconds;
      ++sequence.slices;
    }
    check(seconds > 0, "no time for a slice");
    now_ += seconds;
    if (decoders) prefill_seconds_ += seconds;
    const bool in_flight = sequence.slices < options_.slices;
    if (!in_flight) end_chunk(sequence);
    scheduler_.slices_ran(id, held(sequence), in_flight, seconds);
    if (!in_flight) finish_if_done(id);
  }

  void end_chunk(Sequence& sequence) {
    const int chunk_tokens = options_.scheduler.chunk_tokens;
    const int before = sequence.tokens;
    sequence.tokens = next_stop(sequence);
    sequence.slices = 0;
    if (!sequence.was_preempted) serve(sequence, sequence.tokens - before);
    if (sequence.tokens - before == chunk_tokens && sequence.tokens <= sequence.prompt()) {
      const ChunkId id = chunk_at(sequence, before / chunk_tokens);
      // A prompt's last token is read even where the tree has its chunk.
      if (tree_.try_emplace(id, Chunk{1}).second) {
        sequence.path.push_back(id);
        sequence.own_pages -= chunk_pages();
      } else {
        check(sequence.tokens == sequence.prompt(), "a chunk was read twice");
      }
    }
    if (sequence.tokens == sequence.read_end() && sequence.generated == 0) {
      sequence.generated = 1;
      serve(sequence, 2);
    }
  }

  int next_stop(const Sequence& sequence) const {
    const bool prompt = sequence.tokens < sequence.prompt();
    const int grid = prompt ? options_.scheduler.chunk_tokens : options_.scheduler.page_tokens;
    return std::min(prompt ? sequence.prompt() : sequence.read_end(),
                    (sequence.tokens / grid + 1) * grid);
  }

  bool reads() const {
    return std::any_of(sequences_.begin(), sequences_.end(), [](const auto& entry) {
      const Sequence& sequence = entry.second;
      return sequence.admitted && sequence.tokens < sequence.read_end() &&
             (!sequence.paused || sequence.slices > 0);
    });
  }

  void finish_if_done(RequestId id) {
    if (wrote(id) < sequences_.at(id).request.writes) return;
    scheduler_.finished(id);
    record('f', id);
    end(id);
  }
  void end(RequestId id) {
    release(sequences_.at(id));
    sequences_.erase(id);
    ++ended_;
  }
  void serve(const Sequence& sequence, double cost) {
    const OwnerId owner = sequence.request.info.owner;
    if (owner < kRecordedOwners) served_[owner] += cost;
  }

  SimulationOptions options_;
  Scheduler scheduler_;
  std::map<RequestId, Sequence> sequences_;
  std::map<ChunkId, Chunk> tree_;
  std::size_t free_pages_;
  std::mt19937_64 random_;
  std::optional<RequestId> in_flight_;
  double now_ = 0, last_round_end_ = 0, longest_interval_ = 0;
  double decode_seconds_ = 0, prefill_seconds_ = 0;
  int admitted_ = 0;
  std::size_t accepted_ = 0, ended_ = 0;
  std::uint64_t releases_ = 0, found_ = 0;
  std::map<OwnerId, double> served_;
  std::vector<std::uint64_t> trace_;
};

}  // namespace quantspec
