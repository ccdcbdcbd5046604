// What a RequestLoop is made of. Private to engine/.
//
//     request_loop.cc        its start, requests that come and go, the door
//     request_loop_work.cc   what a step does: rounds, slices of prompts
#pragma once

#include <map>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "engine/draft_rules.h"
#include "engine/request_loop.h"

namespace quantspec {

// One request while it is known.
struct RequestLoop::Live {
  RequestId id = 0;
  Request request;
  std::vector<TokenId> generated;
  int cached_tokens = 0;  // the most found_tokens of all admissions
  DraftRules::Member drafts;
  RoundStats stats;
  // Of a preempted request, until its cache holds again what goes before: what the tree has not.
  std::optional<KvCache::Saved> saved;
  // While it is admitted:
  Sequence* sequence = nullptr;
  int found_tokens = 0;
  PrefixTree::Path path;                   // of what was read or found of the prompt
  std::unique_ptr<Model::Prefill> reader;  // while the prompt is read

  int prompt_tokens() const { return static_cast<int>(request.prompt.size()); }
  // So many tokens of the prompt may be found: what follows is read, for the ring, or comes back.
  int most_found(const KvCache& cache) const {
    return saved ? saved->first : cache.most_attached(prompt_tokens());
  }
  int left() const { return request.predict - static_cast<int>(generated.size()); }
};

struct RequestLoop::Impl {
  Impl(const Model& used, const KvShape& of, RequestLoopOptions given);

  // --- from other threads ---
  std::mutex inbox_mutex;
  std::vector<std::unique_ptr<Live>> submitted;
  std::vector<RequestId> cancelled;
  std::vector<std::pair<RequestId, bool>> paused;  // or resumed
  RequestId last_id = 0;

  // --- the loop's ---
  RequestLoopOptions options;
  const Model& model;
  KvShape shape;
  PagePool pool;  // before all that holds pages
  HostPages host;
  PrefixTree tree;
  Decoder decoder;
  DraftRules rules;
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<Sequence*> free_sequences;
  Scheduler scheduler;
  std::map<RequestId, std::unique_ptr<Live>> live;
  Live* producer = nullptr;  // whose chunk is in flight
  double row_seconds = 0;    // of the last slice
  Stopwatch clock;
  Statistics totals;

  int chunk() const { return tree.chunk_tokens(); }
  double now() const { return clock.seconds(); }
  PoolState pool_state() const {
    return {pool.free(), tree.statistics().idle_pages, static_cast<int>(free_sequences.size())};
  }
  Held held(const Live& of) const {
    const KvCache& cache = of.sequence->cache();
    return {cache.length(), static_cast<std::size_t>(cache.num_pages())};
  }
  void make_room(std::size_t pages);

  bool drain_inbox();
  void admit_waiting();
  bool admit(Live& request);
  void give_back(Live& request);
  void end(Live& request, RequestEnd how, std::optional<Error> error = {});
  void finish(Live& request, RequestEnd how, std::optional<Error> error = {});
  void preempt(Live& request);
  void swap_out(Live& request);
  bool swap_in(Live& request);

  void run_round(const std::vector<RequestId>& ids);
  void choose(std::span<Live* const> requests, std::vector<Lane>& lanes);
  void observe(const Decoder::Outcome& outcome);
  void run_alone(std::span<Live* const> requests, std::span<const Lane> lanes);
  bool take(Live& request, const Step& step);
  void count(const Step& step);

  bool run_slices();
  bool find_chunk(Live& request);
  int slice_rows(double seconds) const;
  void run_chunk(Live& request, double seconds);
  void end_prompt(Live& request);

  // Of the round at hand.
  std::vector<DraftRules::Turn> turns;
  std::vector<int> accepted;
};

}  // namespace quantspec
