// Decides what a serving engine does next: whom it admits, whose prompt it reads and for how long,
// who decodes, whom it preempts. It holds the state of all requests as plain values and knows no
// model, no backend, no memory and no clock: what happened is reported to it, with the time as an
// argument. Equal calls get equal answers. A step of the engine:
//
//     while (auto id = victim(now, pool))        drop its pages, give its slot back; preempted(*id)
//     while (true)
//       id = candidate(now, pool)                hold what the prefix tree has of its prompt;
//       if (id && admit(*id, held, now, pool))   lease a slot
//         continue
//       id = gives_way(now)                      drop its pages, give its slot back; preempted(*id)
//       if (!id) break
//     for (RequestId id : decoding())            a round of all of them; round_ran(), and
//                                                finished() for those that ended
//     while (auto slices = prefill(now, pool))   of one chunk, until the time is up or the chunk is
//                                                read; slices_ran()
//
// `pool` is as it is at the call; pages are allocated only as the answers say, in this order.
//
//     submit ─> waiting ── admit ──> reading ── slices_ran, found ──> decoding ── finished ─> gone
//                  └──<── preempted ─────┴──────────<───────────────────┘        (cancel: from any)
//
// CONTRACT, where the engine keeps its part (below):
//   Pages      admitted requests never want more pages than there are. kGuaranteed promises all
//              pages that a request can come to hold, and preempts none but paused ones. kExpected
//              promises what it will probably hold, and preempts when pages run out.
//   Pauses     nobody waits for a paused request: it gives its slot and its pages to who lacks one
//              of them, and is before the others of its class when it is resumed.
//   Progress   an admitted request ends unless it is paused forever: of those that are not paused
//              the first, by class at its admission, then by admission, is never preempted; who was
//              preempted is before the others of its class.
//   Fairness   nobody starves, be it for its admission or for its next chunk: after a class's time
//              for every class above it a request is in the highest one (FairQueue). In a class
//              owners that always ask for more get equal service, counted as prompt tokens,
//              2 * generated and 0.1 * cached ones, whatever they ask for and however many there
//              are (Owners). An owner's requests of a class are admitted as they came; of their
//              prompts that with least left is read first, but none waits for what came more than
//              a class's time after it.
//   Time       prefill and decoding each have a share of the time (TimeShares). A chunk is finished
//              before another is begun.
//
// The engine's part: a request of which [0, n) is in the cache has the pages of pages_of(); victims
// give their pages back; rounds and chunks take as long as they are reported. What a token's value
// is, and that none of these decisions shows in it, is the engine's matter, too.
//
// A prompt that another request is reading needs no state here: one chunk is in flight, so when the
// turn of the second comes, the chunk is in the tree, and found() says so.
//
// With n live requests, victim() and decoding() take O(n), all else O(log n). Not thread-safe: the
// engine's thread alone. Times are in seconds. Broken preconditions throw kInternal. Where memory
// is refused for what a request is told to do, that request may be cancelled and all else goes on:
// cancel() takes none. What submit() throws for is not known afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "scheduler/fair_queue.h"
#include "scheduler/owners.h"
#include "scheduler/request.h"
#include "scheduler/time_shares.h"

namespace quantspec {

enum class Admission {
  kGuaranteed,  // reserves what a request can come to hold
  kExpected,    // reserves what it will probably hold, by what its owner's requests wrote
};

struct SchedulerOptions {
  int page_tokens;          // G
  int chunk_tokens;         // C, a multiple of G
  std::size_t total_pages;  // of the pool: in use by sequences, by the tree, or free
  int context_tokens;       // the most that a sequence may hold
  int most_waiting = 1024;  // requests that were never admitted
  Admission admission = Admission::kGuaranteed;
  double watermark = 0.02;     // kExpected: the share of all pages that an admission leaves
  double ageing = 30;          // seconds: a class's time
  double least_prefill = 0.1;  // share of the time while sequences decode
  double most_prefill = 0.4;   // gaps of 1.7 rounds (docs/decisions/0005)
  std::optional<double> token_interval;  // wanted seconds between a sequence's tokens
};

// What the engine's pools have at this moment.
struct PoolState {
  std::size_t free_pages;
  std::size_t idle_pages;  // that the prefix tree would give back
  int free_slots;          // rings: one a sequence
  std::size_t pages() const { return free_pages + idle_pages; }
};

// What a sequence has in its cache: positions [0, tokens), and all pages that it refers to, shared
// ones too.
struct Held {
  int tokens = 0;
  std::size_t pages = 0;
};

class Scheduler {
 public:
  // Throws kInvalidRequest for shares, a watermark or an ageing that cannot be.
  explicit Scheduler(const SchedulerOptions& options);

  // The most pages of a sequence of which [0, length) is in the cache, the first `prompt` tokens of
  // it read as a prompt: whole chunks of the prompt, and what the ring no longer holds.
  std::size_t pages_of(int prompt, int length) const;

  // --- from outside ---
  enum class Submission {
    kAccepted,
    kExceedsContext,  // prompt and new tokens: can never fit
    kExceedsPages,    // alone it would need more pages than there are: can never fit
    kQueueFull,       // for now
  };
  // Whether it can ever fit, by the options alone: any but kQueueFull. Thread-safe.
  Submission can_ever_fit(const RequestInfo& request) const;
  // What is not accepted is not known afterwards.
  Submission submit(const RequestInfo& request);
  // Each returns false where the request has ended: it may end while the call is on its way.
  // cancel: it is unknown from here on; what it holds is given back, its chunk in flight abandoned.
  bool cancel(RequestId id);
  // While its consumer does not read, a request is not admitted, not decoded, and no new chunk of
  // it is begun; it keeps what it has while nobody else wants it. The engine cancels those that
  // stay so for too long.
  bool pause(RequestId id);
  bool resume(RequestId id);

  // --- what to do next ---
  // Whom to preempt, so that the next round and the next chunk have their pages. Ask again after
  // preempted(): what a victim gives back depends on who shares it.
  std::optional<RequestId> victim(double now, const PoolState& pool);
  // Who is next to be admitted, where a slot is free and there may be pages.
  std::optional<RequestId> candidate(double now, const PoolState& pool);
  // Whom to preempt for who waits to be admitted and was not: a paused request that is admitted,
  // and no chunk of it is in flight. None where nobody waits.
  std::optional<RequestId> gives_way(double now);
  // Admits it if its pages can be promised. held: what the tree has of it, whose pages are not idle
  // in `pool`. Of a new request that is less than its prompt.
  bool admit(RequestId id, Held held, double now, const PoolState& pool);
  // All that can decode, in the order of their admission.
  std::vector<RequestId> decoding() const;
  void list_decoding(std::vector<RequestId>& ids) const;  // the same, in a list that has room
  // Whose chunk is read next, beginning at the tokens that it holds, and for how long: infinity
  // where nobody decodes. Nobody's where no prompt waits, decoding has the time, or pages are short
  // for a new chunk (which the next step's victim() sees to). What was generated before a
  // preemption is read again as a part of the same job, in pieces that end at multiples of G.
  struct Slices {
    RequestId id;
    double seconds;
  };
  std::optional<Slices> prefill(double now, const PoolState& pool);

  // --- what happened ---
  void preempted(RequestId id, double now);
  // Slices of a chunk ran; in_flight: it is not at its end, and goes on before any other. At its
  // end `held` has it. After the last one the request decodes; the first time, it has its first
  // token.
  void slices_ran(RequestId id, Held held, bool in_flight, double seconds);
  // It holds this without having read it: chunks that are in the tree by now, or all that it held
  // before a preemption, swapped in. REQUIRES: admitted, no chunk of it is in flight.
  void found(RequestId id, Held held);
  struct RoundResult {
    RequestId id;
    int new_tokens;     // >= 1
    std::size_t pages;  // that it refers to now
  };
  void round_ran(std::span<const RoundResult> results, double seconds);
  // It wrote all that it wants to, and is unknown from here on; what it holds is given back.
  // REQUIRES: it has its first token.
  void finished(RequestId id);

  struct Statistics {
    std::size_t waiting = 0;    // never admitted
    std::size_t preempted = 0;  // waiting to be admitted again
    std::size_t admitted = 0;
    std::size_t promised_pages = 0;  // that admitted requests do not hold yet
    std::size_t owners = 0;          // known ones, idle ones included
    std::uint64_t preemptions = 0;   // since the scheduler was made
    bool operator==(const Statistics&) const = default;
  };
  Statistics statistics() const;
  // Throws kInternal where sums and indexes contradict the requests. Looks at all.
  void check_integrity() const;

 private:
  enum class Phase { kWaiting, kReading, kDecoding, kGone };
  // Who is preempted first: paused ones, then the lowest class, then the last admitted.
  using VictimKey = std::tuple<bool, std::int64_t, std::int64_t>;  // !paused, class, -admission
  struct Request {
    RequestInfo info;
    std::uint64_t number;  // in the order of submit()
    Phase phase = Phase::kWaiting;
    bool paused = false;
    std::int64_t admission = 0;       // in the order of the first admit(); 0: none yet
    std::int64_t admitted_class = 0;  // at the last admit()
    int length = 0;                   // positions [0, length) are in the cache
    int generated = 0;                // the last of them is pending, thus not in the cache
    int charged_unread = 0;           // tokens at the prompt's end that are paid for, not yet read
    std::size_t pages = 0;
    std::size_t promised = 0;             // the most that it may hold without asking
    std::optional<VictimKey> victim_key;  // in admitted_

    bool was_preempted() const { return phase == Phase::kWaiting && admission > 0; }
    bool competes() const {
      return !paused && (phase == Phase::kWaiting || phase == Phase::kReading);
    }
    // Where reading ends: the prompt, and what was generated, but for the pending token.
    int read_end() const { return info.prompt_tokens + (generated > 0 ? generated - 1 : 0); }
    // Pages that are promised and not held.
    std::size_t owed_pages() const { return promised > pages ? promised - pages : 0; }
  };

  Request& get(RequestId id);
  Request* find(RequestId id);
  bool set_paused(RequestId id, bool paused);
  // Where its next chunk ends.
  int next_stop(const Request& request) const;
  // What it will allocate in its next round or for its next chunk.
  std::size_t next_pages(const Request& request) const;
  std::size_t promise(const Request& request, double now) const;
  bool fits(const Request& request, std::size_t held_pages, double now,
            const PoolState& pool) const;
  bool prefill_waits() const { return in_flight_ || !reading_.empty(); }
  Request* next_reader(double now);

  void charge(OwnerId owner, double cost);
  void set_pages(Request& request, std::size_t pages, std::size_t promised);
  // It has this now; `refund` of the price of a prompt's token is given back.
  void advance_to(Request& request, Held held, double refund);
  // Brings the queues, decoders_ and admitted_ into line with the request.
  void update_indexes(Request& request);
  void enqueue(const Request& request);
  void give_pages_back(Request& request);
  void forget(Request& request);

  SchedulerOptions options_;
  std::unordered_map<RequestId, Request> requests_;
  Owners owners_;
  Caution caution_;
  TimeShares shares_;
  FairQueue waiting_;                          // for admission
  FairQueue reading_;                          // for the next chunk
  std::map<std::int64_t, Request*> decoders_;  // not paused, by admission
  std::map<VictimKey, Request*> admitted_;
  std::optional<RequestId> in_flight_;  // whose chunk it is
  std::size_t promised_ = 0;            // pages that admitted requests do not hold yet
  std::size_t num_waiting_ = 0;         // never admitted
  std::uint64_t submissions_ = 0;
  std::int64_t admissions_ = 0;
  std::uint64_t preemptions_ = 0;
};

}  // namespace quantspec
