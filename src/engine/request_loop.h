// Many requests at once: the loop that admits them, reads their prompts in slices, and runs rounds
// of all that decode. What comes out of a request is a function of the request and the engine
// (contract E3 of docs/design.md): nothing of what runs beside it, of cached prefixes, of when it
// came, or of being preempted shows in its tokens.
//
//     RequestLoop loop(model, shape, {.context = 4096, .plans = plans});
//     loop.submit({.prompt = tokens, .predict = 64, .on_tokens = ...});
//     while (loop.step()) {                 // or loop.run(), in a thread of its own
//     }
//
// Thread-safety: submit(), cancel(), pause(), resume(), read_ahead(), stop() and statistics() from
// any thread, also from callbacks; all else from one thread at a time, which is also the one that
// calls back. Of one model one loop computes at a time.
//
// Ranks that share the model (comm/comm.h) have a loop each, of the same options, and all call
// run(), or step(), or preempt(), at the same time. Requests come to the loop that leads, rank 0,
// which tells the others of them, of its clock and of what callers want; all else follows, so they
// go through the same passes. There what fails in a pass, at any rank, ends all requests at all
// ranks, and submit() says so from then on. The loop that leads has the files, too, which are those
// of one rank.
//
// Callbacks are called between passes, one after the other, and others of the engine wait for them.
// One that throws ends its own request, as kFailed with what it threw, and nothing else: what a
// round gave to others they get. What on_end throws is logged.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "kv_cache/prefix_tree.h"
#include "scheduler/scheduler.h"
#include "speculative/speculative.h"

namespace quantspec {

// How a request ended.
enum class RequestEnd : std::uint8_t {
  kDone,       // it has its tokens, or on_tokens wants no more
  kCancelled,  // by cancel() or stop()
  kFailed,     // by what was thrown while it was computed or by a callback; the others go on
};

class ChunkFolder;
class Communicator;

// How far a prompt is read.
struct PromptProgress {
  int tokens = 0;    // of it
  int cached = 0;    // that others had read
  double share = 0;  // of the others, in [0, 1]

  int read() const { return cached + static_cast<int>(share * (tokens - cached)); }
};

struct Request {
  std::vector<TokenId> prompt;
  int predict = 1;  // tokens to generate, at least 1
  SamplingParams sampling = {};
  LogitBiases biases = {};
  SpecSampling spec_sampling = SpecSampling::kCoupled;
  // How many tokens it always drafts, as far as pages allow; none: what yields most.
  std::optional<int> draft_len = {};
  // The same, and by which of the loop's plans.
  std::optional<DraftChoice> forced = {};
  // What the answer may be: as long as it is, these tokens are verified instead of drafts, many in
  // a pass. What comes out is the same without. REQUIRES: the rule of Lane::proposed.
  std::vector<TokenId> proposed = {};
  std::vector<TokenId> reference = {};  // DecodingOptions', of one text
  OwnerId owner = 0;                    // on whose behalf; owners share the engine fairly
  int priority = 0;                     // greater ones go first
  // Whose prefixes it may find: requests of other salts see nothing of its prompt.
  std::string salt = {};
  // What is read of its prompt is for later runs, too, and its text for lookup_history.
  bool to_folder = true;

  bool log_probs = false;  // wanted of every token
  int top_log_probs = 0;   // and of so many of the likeliest at its place, at most kMostTopLogProbs
  // And of the prompt's; who wants them has a salt of their own, as what others read is not read.
  bool prompt_log_probs = false;

  // What a round added; step.accepted of the tokens were drafted. Returns whether it wants more.
  using OnTokens = std::function<bool(const Step& step)>;
  OnTokens on_tokens = {};
  std::function<void(const PromptProgress&)> on_progress = {};
  struct Ended {
    RequestEnd end;
    std::optional<Error> error = {};  // of kFailed
    int cached_tokens = 0;            // of the prompt, that others had read
    RoundStats stats = {};
    bool drafts_off = false;   // the cost model switched drafting off: it did not pay
    std::string draft_choice;  // one line: what the cost model chose, and why
    // Of its cache at the end.
    int tokens = 0;
    std::size_t page_bytes = 0, ring_bytes = 0;
  };
  std::function<void(const Ended&)> on_end = {};  // once
};

struct RequestLoopOptions {
  static constexpr int kMostSequences = DraftLengths::kMostRows;  // a draft pass has one of each

  int sequences = 8;      // that are in the cache at once, 1 to kMostSequences
  int context = 0;        // tokens of a request at most
  int chunk = 0;          // as in KvOptions
  std::size_t pages = 0;  // of the cache; 0: what all sequences can come to hold
  // Memory of the host, for what preempted requests hold and for cached prefixes that pages have no
  // room for. On a device it is taken at the start. 0: requests read again what they held.
  std::size_t host_bytes = 0;
  std::size_t tail_bytes = 0;      // and for the ends of prompts (PromptTails)
  std::vector<Plan> plans = {};    // by which to draft; none: plain decoding
  std::size_t lookup_history = 0;  // EngineOptions'
  KvStore store = KvStore::kHierarchical;
  // Where chunks and tails go, too, and come from; null: nowhere. Of ranks the loop that leads has
  // it. REQUIRES: of this model and chunk.
  std::shared_ptr<ChunkFolder> folder = {};
  bool share_prefixes = true;  // REQUIRES: store is kHierarchical, for it to be
  Admission admission = Admission::kGuaranteed;
  // Requests that were not admitted yet. Those of one owner are at most three times as many as the
  // places that are left: three quarters where it is alone.
  int max_waiting = 1024;
  // Seconds in which there is nothing to do, before texts are read ahead.
  double read_ahead_after = 0.05;
  // For timing passes at the start, so that the first request drafts well, at most. 0: times are
  // learned from rounds alone.
  double timing_seconds = kPassTimingSeconds;
  // Those with whom the model is shared; null: nobody. REQUIRES: as BackendOptions'.
  Communicator* ranks = nullptr;
};

// What a step of a loop did: a round of all that decode, and slices of a prompt. Times in seconds.
struct StepRecord {
  std::uint64_t number = 0;  // of the step, among those that did something; from 1
  double begin = 0;          // since the loop began
  double seconds = 0;
  int waiting = 0;  // requests that were not admitted, at its end
  std::size_t free_pages = 0;
  struct Turn {
    RequestId request;
    int tokens;  // in its cache, before
    DraftChoice choice;
    int accepted;
  };
  std::vector<Turn> turns;
  double draft_seconds = 0;  // all draft passes of the round
  DraftLengths::Rates expected = {};
  RequestId prompt = 0;  // that was read, or was read again after a preemption; 0: none
  int prompt_tokens = 0;
  double prompt_share = 0;  // of it that is read, at the step's end
};

class RequestLoop {
 public:
  // Too little memory for a loop to be made, at this rank or another: all ranks throw it, and can
  // go on without.
  struct NoMemory : Error {
    explicit NoMemory(Error why) : Error(std::move(why)) {}
  };
  // Throws as require_plans() does, or NoMemory. The model outlives the loop.
  // REQUIRES: options.context >= 1.
  RequestLoop(const Model& model, const KvShape& shape, RequestLoopOptions options);
  ~RequestLoop();
  // Throws kInvalidRequest, naming it, for a plan that gathers tokens, which only measurements do,
  // and, where there are several sequences, for one with a target of its own (docs/bench.md).
  static void require_plans(std::span<const Plan> plans, int sequences);
  RequestLoop(const RequestLoop&) = delete;
  RequestLoop& operator=(const RequestLoop&) = delete;

  // Throws kInvalidRequest for what can never be, naming the field: values out of their range, and
  // what fits neither a context nor the pages. Throws kOutOfMemory where max_waiting wait already,
  // or too many of the owner's, and kInvalidRequest after stop(). Nothing is called back for what
  // it refuses.
  RequestId submit(Request request);
  // on_end comes with the next step, if the request has not ended.
  void cancel(RequestId id);
  // From the next step on a paused request is told nothing, and keeps what it has while nobody else
  // wants it: for a reader that does not keep up. Of what is wished between two steps the last
  // counts, and a cancel.
  void pause(RequestId id);
  void resume(RequestId id);

  // A text with which somebody will probably go on, as the next turn of a conversation does. Once
  // there is nothing else to do, the loop reads such texts as prompts, the last one first, and what
  // it finds of them then is what it would find after any prompt. Whoever comes has the engine for
  // himself, at once; but who goes on with the very text that is read waits for its end. Of texts
  // that were not read the last kMostAhead are kept in mind. What has no room is not read, nobody
  // is told, and without kept prefixes nothing happens. Throws kInvalidRequest as submit() for what
  // is no text of the model.
  static constexpr std::size_t kMostAhead = 8;
  void read_ahead(std::vector<TokenId> text, std::string salt = {}, bool to_folder = true);

  // Does what there is to do next: a round of all that decode, and slices of a prompt. False: there
  // is nothing to do until one of the above is called, or for read_ahead_after.
  bool step();
  // Steps until stop(), and sleeps while there is nothing to do. What step() throws ends all
  // requests. At the end those that live are cancelled.
  void run();
  // Has run() return after the step at hand; it returns at once if it is called later.
  void stop();
  // Preempts a request as if pages were short, for tests and measurements. Returns whether it could
  // be.
  bool preempt(RequestId id);
  // What is kept of a text's beginning, to be written to a file: whole chunks from its first token
  // on, and the tail of a prompt that it begins with.
  struct KeptPrefix {
    std::uint64_t chunks = 0;
    std::uint64_t chunk_bytes = 0;
    std::uint64_t tail_tokens = 0;  // of that prompt; 0: there is no tail
    std::uint64_t tail_bytes = 0;
  };
  // Tells `begin` what there is, and `part` the bytes of each chunk and of the tail; what they
  // throw is thrown. Both wait for the loop's thread, which does it between two steps, and hold up
  // all that it decodes. REQUIRES: run() runs, in another thread.
  void read_prefix(std::string_view salt, std::span<const TokenId> tokens,
                   const std::function<void(const KeptPrefix&)>& begin,
                   const std::function<void(std::span<const std::byte>)>& part);
  // Brings it back for all who come later, as far as there is room. `chunk` gives the bytes of one,
  // `tail` those of the tail. Throws kCorruptFile where sizes are not those of this loop.
  void write_prefix(std::string_view salt, std::span<const TokenId> tokens, const KeptPrefix& kept,
                    const std::function<std::span<const std::byte>(std::uint64_t)>& chunk,
                    const std::function<std::span<const std::byte>()>& tail);
  // Whether a chunk of a prompt was begun and not ended: until it is, no other loop of the model
  // may read prompts.
  bool inside_chunk() const;
  // Why there are no more requests: what failed at a rank. None: nothing did.
  std::optional<Error> broken() const;

  struct Statistics {
    Scheduler::Statistics scheduler;  // of requests that were submitted
    PrefixTree::Statistics prefixes;
    std::uint64_t tail_tokens = 0;   // found in the ends of prompts
    std::size_t tail_bytes = 0;      // of them
    bool reads_ahead = false;        // a text, now
    std::uint64_t ahead_tokens = 0;  // read so, to the end of a text
    std::size_t pages = 0;           // that there are, of the cache
    std::size_t free_pages = 0;
    int free_slots = 0;
    // Of preemptions: what requests held went to the host's memory, or is to be read again. Pages
    // that went there and came back; those of cached prefixes are prefixes.to_host and from_host.
    std::uint64_t swaps = 0;
    std::uint64_t replays = 0;
    std::uint64_t pages_swapped_out = 0;
    std::uint64_t pages_swapped_in = 0;
    std::size_t free_host_pages = 0;
    std::uint64_t rounds = 0;
    double round_seconds = 0;
    double draft_seconds = 0;  // of the rounds': all draft passes
    double slice_seconds = 0;
    // Of sequences in rounds: how many there were, and what they drafted.
    std::uint64_t turns = 0;
    std::uint64_t drafted = 0;
    std::uint64_t accepted = 0;
    std::uint64_t rejections = 0;              // turns that ended in a correction
    std::vector<std::uint64_t> turns_by_plan;  // in which something was drafted
  };
  // As of the end of the last step.
  Statistics statistics() const;
  // Those of the last kKeptSteps steps whose numbers are greater, the oldest first.
  static constexpr std::size_t kKeptSteps = 256;
  std::vector<StepRecord> steps_after(std::uint64_t number) const;
  // By the numbers of plans in StepRecord.
  std::vector<std::string> plan_names() const;
  void check_integrity() const;

 private:
  struct Live;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quantspec
