// What a RequestLoop is made of. Private to engine/.
//
//     request_loop.cc        its start, the door, the thread that runs it
//     request_loop_life.cc   requests that come, are admitted, preempted and end
//     request_loop_work.cc   what a step does: rounds, slices of prompts
//     request_loop_kept.cc   what is kept of prompts, for files
//     request_loop_ahead.cc  what is read while there is nothing else to do
//     request_loop_ranks.cc  what ranks that share a model agree on
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "comm/comm.h"
#include "engine/chunk_folder.h"
#include "engine/draft_rules.h"
#include "engine/kept_shards.h"
#include "engine/kept_texts.h"
#include "engine/request_loop.h"
#include "engine/slice_time.h"
#include "kv_cache/prompt_tails.h"

namespace quantspec {

// One request while it is known.
struct RequestLoop::Live {
  RequestId id = 0;
  Request request;
  bool paused = false;
  bool queued = true;         // it was not admitted yet
  bool folder_asked = false;  // for a tail
  std::vector<TokenId> generated;
  bool as_proposed = true;  // so far it is
  PromptLogProbs prompt_log_probs;
  // Its first token, which came when it was paused: told when it is resumed.
  struct Untold {
    TokenId token;
    std::vector<float> log_prob;  // of one, or none
    std::vector<TokenLogProb> top_log_probs;
  };
  std::optional<Untold> untold;
  std::optional<double> untold_share;  // of its prompt, likewise
  // Of the prompt: tokens that others had read, and the most that the cache has held so far.
  int cached_tokens = 0;
  int known_tokens = 0;
  DraftRules::Member drafts;
  RoundStats stats;
  // Of a preempted request, until its cache holds again what goes before: what the tree has not.
  std::optional<KvCache::Saved> saved;
  // While it is admitted:
  Sequence* sequence = nullptr;
  PrefixTree::Path path;                   // of what was read or found of the prompt
  PromptTails::Found tail;                 // that its prompt begins with
  std::shared_ptr<PromptTail> new_tail;    // that its prompt leaves
  std::unique_ptr<Model::Prefill> reader;  // while the prompt is read

  int prompt_tokens() const { return static_cast<int>(request.prompt.size()); }
  // So many tokens of the prompt may be found: what follows is read, for the ring, or comes back.
  int most_found(const KvCache& cache) const {
    if (saved) return saved->first;
    return std::max(cache.most_attached(prompt_tokens()), tail.tail ? tail.tail->start() : 0);
  }
  // What the next round may verify of what is proposed, at most so many.
  std::span<const TokenId> proposed(int most) const {
    const std::span<const TokenId> all(request.proposed);
    if (!as_proposed || generated.size() >= all.size()) return {};
    const auto rest = all.subspan(generated.size());
    return rest.first(std::min(rest.size(), static_cast<std::size_t>(std::max(most, 0))));
  }
  int left() const { return request.predict - static_cast<int>(generated.size()); }
  // The cache has [0, end) of the prompt; what of it was not known before was read by others.
  void found_until(int end) {
    cached_tokens += std::max(0, end - known_tokens);
    known_tokens = std::max(known_tokens, end);
  }
};

struct RequestLoop::Impl {
  // Takes memory, and tells other ranks nothing.
  Impl(const Model& used, const KvShape& of, RequestLoopOptions given);
  // By passes of all ranks, whereby the backend takes what it needs for itself.
  void begin();

  // What is kept of a text, to a file or from one: work for the loop's thread, for which another
  // waits. All ranks do it.
  struct Visit {
    Request text = {};                     // its tokens and salt
    std::optional<KeptPrefix> found = {};  // what a file has; none: it is written
    std::function<void(const KeptPrefix&)> begin = {};
    std::function<void(std::span<const std::byte>)> part = {};
    std::function<std::span<const std::byte>(std::uint64_t)> chunk = {};
    std::function<std::span<const std::byte>()> tail = {};
    std::promise<void> done = {};
    std::exception_ptr failure = nullptr;  // what these threw
  };

  // --- from other threads ---
  enum class Wish : std::uint8_t { kNone, kPause, kResume, kCancel };
  mutable std::mutex inbox_mutex;
  std::condition_variable inbox_changed;
  std::deque<std::unique_ptr<Live>> arrivals;
  // Of each request that has not ended: what was wished since the last step, so one thing at most.
  std::map<RequestId, Wish> wishes;
  std::deque<Visit> visits;          // who waits for a word with the loop's thread
  std::deque<Request> ahead;         // texts to read, the first one first
  std::size_t num_wishes = 0;        // but for kNone
  int num_queued = 0;                // submitted and not admitted yet
  std::map<OwnerId, int> queued_of;  // the same by owner; more than 0
  RequestId last_id = 0;
  bool stopped = false;
  std::optional<Error> broken;  // ranks, by this: there are no more requests

  mutable std::mutex statistics_mutex;
  Statistics published;
  std::vector<StepRecord> kept_steps;  // number n at n % kKeptSteps

  void require_place(OwnerId owner) const;
  void wish(RequestId id, Wish wanted);
  // Of requests up to `last`, in the order of their numbers; null or none where there is no more.
  std::unique_ptr<Live> next_arrival(RequestId last);
  std::optional<std::pair<RequestId, Wish>> next_wish(RequestId after, RequestId last);
  // The same, of all ranks' loops.
  std::unique_ptr<Live> agreed_arrival(RequestId last);
  std::optional<std::pair<RequestId, Wish>> agreed_wish(RequestId after, RequestId last);
  bool is_stopped() const;  // by the loop that leads
  void visit(Visit visit);
  std::optional<Visit> next_visit();
  bool receive_visits();
  void end_visits(const Error& error);
  void wait();
  void publish();
  void keep_record();

  // --- the loop's ---
  RequestLoopOptions options;
  const Agreement agreement;  // of all ranks
  bool has_folder = false;    // the one who leads
  const Model& model;
  KvShape shape;
  PagePool pool;  // before all that holds pages
  HostPages host;
  PrefixTree tree;
  PromptTails tails;
  KeptShards shards;
  Decoder decoder;
  DraftRules rules;
  KeptTexts kept_texts;
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<Sequence*> free_sequences;
  bool saves_caches;  // pages and ring are all that a cache has
  Scheduler scheduler;
  std::map<RequestId, std::unique_ptr<Live>> live;
  Live* producer = nullptr;     // whose chunk is in flight
  Live* reads_ahead = nullptr;  // who reads a text for nobody
  double idle_since = 0;        // there was nothing else to do
  SliceTime slice_time;
  Stopwatch clock;
  Statistics totals;

  int chunk() const { return tree.chunk_tokens(); }
  // Times by which something is decided, of all ranks' loops.
  double agreed(const Stopwatch& since) const { return agreement.on(since.seconds()); }
  double now() const { return agreed(clock); }
  PoolState pool_state() const {
    return {pool.free(), tree.statistics().idle_pages, static_cast<int>(free_sequences.size())};
  }
  Held held(const Live& of) const {
    const KvCache& cache = of.sequence->cache();
    return {cache.length(), static_cast<std::size_t>(cache.num_pages())};
  }
  void make_room(std::size_t pages);

  // --- how requests come and go ---
  struct Ending {
    RequestEnd how;
    std::optional<Error> error = {};
  };
  Ending failure() const;  // by what is being caught
  // What is being caught: others of several ranks do not know of it, and so none goes on alone.
  void rethrow_for_ranks() const {
    if (agreement.shared()) throw;
  }
  void break_down() noexcept;  // by what is being caught
  bool drain_inbox();
  void arrive(std::unique_ptr<Live> request);
  void grant(Live& request, Wish wanted);
  void set_paused(Live& request, bool paused);
  bool admit_waiting();
  bool admit(Live& request);
  void begin(Live& request, int found_tokens);
  std::vector<TokenId> reference_of(const Request& wanted);
  void keep_text(const Live& request);
  void find_tail(Live& request);
  void begin_tail(Live& request);
  void give_back(Live& request);
  void end(Live& request, const Ending& ending);
  void end_all(const Ending& ending);
  void leave_queue(Live& request);
  void leave_inbox(Live& request);
  void put_back(Live& request);
  void preempt(Live& request);
  void swap_out(Live& request);
  bool swap_in(Live& request);

  // --- texts that are read ahead ---
  void remember_ahead(Request request);
  std::optional<Request> next_ahead();
  std::optional<Request> agreed_ahead();
  RequestId next_id();
  bool begin_ahead();
  bool is_ahead_of(const Request& request) const;
  void stop_ahead();
  bool waits_for_ahead() const {
    return reads_ahead != nullptr && reads_ahead->sequence != nullptr;
  }

  // --- what a step does ---
  bool step();
  void run_round();
  void run_alone();
  bool choose();
  void observe(const Decoder::Outcome& outcome);
  void count_drafts(double seconds);
  void settle(std::span<Live* const> requests, std::span<const Step> steps, double seconds);
  void add(Live& request, const Step& step);
  std::optional<Ending> agreed(std::optional<Ending> ending) const;
  void agree_on_turns();
  std::optional<Ending> tell(Live& request, const Step& step);
  std::optional<Ending> tell_share(Live& request, double share);
  void count(const Step& step);

  bool run_slices();
  bool find_chunk(Live& request);
  int slice_rows(const Model::Prefill& reader, double seconds) const;
  bool read_slices(Live& request, double seconds, bool alone, const Stopwatch& slice_clock);
  std::optional<Ending> run_chunk(Live& request, double seconds);
  std::optional<Step> end_prompt(Live& request);

  // --- what files have ---
  // A chunk that begins at this token; what files have of one, and of a tail.
  KeptShards::Pages own_chunk(std::size_t first_token) const;
  std::size_t chunk_bytes() const;
  std::size_t tail_bytes(const PromptTail& tail) const;
  std::vector<PageRef> make_pages(std::span<const std::byte> file, std::size_t first_token);
  void gather(std::span<const PageRef> pages, std::size_t first_token,
              std::span<std::byte> file) const;
  void gather(const PromptTail& tail, std::span<std::byte> file) const;
  void scatter(std::span<const std::byte> file, PromptTail& tail) const;
  bool is_in_folder(Live& request, int end);
  using Fill = std::function<void(std::span<std::byte>)>;
  void keep(const std::function<void(const Fill&)>& in_folder, const Fill& gather_to);
  void keep_chunk(const Live& request);
  void keep_tail(const Live& request, const PromptTail& tail);
  void find_tail_in_folder(const Live& request);
  bool goes_on(Visit& visit, const std::function<void()>& call) const;
  void read_kept(Visit& visit);
  void write_kept(Visit& visit);

  StepRecord record;  // of the step at hand

  // Of the round at hand.
  std::vector<RequestId> decoding;
  std::vector<Live*> requests;
  std::vector<Lane> lanes;
  std::vector<DraftRules::Turn> turns;
  std::vector<int> accepted;
  std::vector<Scheduler::RoundResult> results;
  std::vector<std::pair<Live*, Ending>> endings;
};

}  // namespace quantspec
