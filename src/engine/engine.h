// The library's public door: load a model, open a session, generate text.
//
//     auto engine = quantspec::Engine::load({.model = "models/pg-24m"});
//     auto session = engine->create_session();
//     session->generate("Once upon a time", {.predict = 64},
//                       [](const quantspec::TokenEvent& event) {
//                         std::cout << event.text;
//                         return true;  // false would cancel
//                       });
//
// An Engine owns weights, tokenizer, backend and the KV cache, and a thread in which it generates
// for all that ask: their rounds run as one batch, their prompts are read in slices between rounds,
// and nothing of that shows in what any of them gets (docs/design.md, section 3). The thread starts
// with start() or the first request, and sleeps while there is nothing to do. docs/requests.md
// follows one through it.
//
// There are two ways in. A Session owns the text so far, and generate() returns when it is written:
// for programs that do one thing after the other. Engine::submit() returns at once, and tells what
// comes to callbacks: for servers. Threads may use the engine, and sessions of it, at the same
// time; one session is for one thread at a time. Errors are thrown as quantspec::Error; times are
// in milliseconds, sizes in bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/request_id.h"
#include "engine/engine_options.h"
#include "engine/folder_counts.h"
#include "engine/model_report.h"
#include "engine/token_event.h"
#include "model/config.h"
#include "sampler/sampling_params.h"
#include "speculative/round_stats.h"
#include "tokenizer/tokenizer.h"

namespace quantspec {

// Throws what Engine::plans() of this model would throw for such a spec, as far as that is known
// without weights.
void require_plan(std::string_view spec, const EngineOptions& options, const ModelConfig& model,
                  KvBudget budget = {});

// How a text is continued.
struct GenerateOptions {
  int predict = -1;  // tokens to generate; -1: until the model stops or the context is full
  std::vector<std::string> stop = {};  // text that ends the generation; it is no part of the output
  std::vector<TokenId> stop_ids = {};  // tokens that do
  bool ignore_eos = false;
  // The model's generation_config.json is the caller's to read. Equal prompts of equal seeds may
  // get equal texts: a request has a seed of its own.
  SamplingParams sampling = {};
  std::vector<LogitBias> logit_bias = {};  // added to logits before penalties
  int min_tokens = 0;  // before so many were chosen neither a token nor a text ends it
  SpecSampling spec_sampling = SpecSampling::kRejection;  // kCoupled: a seed repeats its text
  std::optional<int> draft_len = {};                      // nullopt: chosen; 0: plain decoding
  // What the answer may be (Request::proposed): needs kCoupled. What comes out is the same without.
  std::vector<TokenId> proposed = {};
  // What the answer may be but for changes: looked up in from its first token on, beside the text
  // (Plan::lookup(), which the engine must have for it). What is greedy or coupled is the same
  // without. At most as long as the context.
  std::vector<TokenId> prediction = {};
  bool log_probs = false;  // of every token
  int top_log_probs = 0;   // and of so many of the likeliest at its place, at most kMostTopLogProbs
  // And of the prompt's tokens: nothing that others have read of it is used then.
  bool prompt_log_probs = false;
  ProgressCallback progress = {};  // of the prefill
  // On whose behalf: owners share the engine fairly. Greater priorities go first.
  OwnerId owner = 0;
  int priority = 0;
  // Prefixes that were read for requests of another salt are not found: owners who must not learn
  // from times what others asked have salts of their own, and so has what is to be timed.
  std::string salt = {};
  // What is read of its prompt may go to EngineOptions::cache_folder, and its text be kept for
  // lookup_history.
  bool to_folder = true;
};

struct Timings {
  double prefill_ms = 0;
  double decode_ms = 0;
  double prefill_tokens_per_second = 0;  // of those that were read: cached ones are not
  double decode_tokens_per_second = 0;   // of the tokens after the first, which prefill gives
};

struct GenerateResult {
  std::string text;
  std::vector<TokenId> tokens;              // all, those of a stop string too
  std::vector<float> log_probs;             // of each token, where they were asked for
  std::vector<TokenLogProb> top_log_probs;  // for each of those, as many as were asked for
  PromptLogProbs prompt_log_probs;
  int prompt_tokens = 0;
  int cached_tokens = 0;  // of the text before what was generated: others had read them
  StopReason stop_reason = StopReason::kLength;
  Timings timings;
  RoundStats speculation;
  bool drafts_off = false;   // the cost model switched drafting off: it did not pay
  std::string draft_choice;  // one line: what the cost model chose, and why
  MemoryPlan memory;         // as used, for the tokens that the session holds
};

// How a submitted request ended. With an error it has what was generated before, and its
// stop_reason says nothing; with nothing but that memory ran out, there was none to say more. What
// a callback throws that is no quantspec::Error comes as kInternal.
struct Outcome {
  GenerateResult result;
  std::optional<Error> error = {};
};

// Who is told of a submitted request, by the engine's thread: others wait meanwhile. Callbacks may
// submit and cancel; they may not wait for another request, nor end the engine, be it by what they
// own: that ends the program. One that throws, progress among them, ends its own request with that
// error, and nothing else. The first may come before submit() returns.
struct PromptProgress;  // request_loop.h
struct Listener {
  std::function<void(const PromptProgress&)> on_prompt = {};            // as it is read
  std::function<void(const PromptLogProbs&)> on_prompt_log_probs = {};  // before the first token
  TokenCallback on_token = {};
  std::function<void(Outcome)> on_end = {};  // once, after all else
};

class ChatPrompts;
class Communicator;  // comm/comm.h
class Engine;
class Model;
class PagePool;
class RequestLoop;
struct Plan;

// A submitted request. A value; may be dropped. From any thread, also from callbacks, as long as
// the engine lives; of a request that has ended nothing happens.
class Ticket {
 public:
  RequestId id() const { return id_; }
  void cancel() const;
  // After the round at hand a paused request is told nothing: for a reader that does not keep up.
  // It keeps what it has while nobody else wants it, and goes on as if nothing had been.
  void pause() const;
  void resume() const;

 private:
  friend class Engine;
  Ticket(RequestLoop& loop, RequestId id) : loop_(&loop), id_(id) {}
  RequestLoop* loop_;
  RequestId id_;
};

// A text being continued. REQUIRES: its engine outlives it.
class Session {
 public:
  explicit Session(Engine& engine) : engine_(engine) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Continues the session's text with `prompt` and then with generated tokens. The first prompt
  // gets what the tokenizer puts before a text (BOS). A request that is refused leaves the session
  // as it was; whatever else is thrown, also by a callback, leaves it empty.
  // Callbacks are called by the calling thread, and may generate with other sessions. A second call
  // while one runs is refused, and so is one by the engine's thread. Throws kCorruptFile where the
  // checkpoint was written to since it was loaded: the text may be of no model.
  // All of the text before the generated tokens counts as a prompt (docs/design.md, section 3): a
  // second generate() reads again what the first one generated, and gives what one longer prompt
  // gives, bit for bit. Whole chunks of it are found where the cache still has them.
  GenerateResult generate(std::string_view prompt, const GenerateOptions& options,
                          const TokenCallback& on_token = {});
  GenerateResult generate(std::span<const TokenId> prompt, const GenerateOptions& options,
                          const TokenCallback& on_token = {});

  const std::vector<TokenId>& text() const { return text_; }  // all, what was generated as well
  // The text to and from a file, as Engine::save_text() does. load() returns the note.
  void save(const std::filesystem::path& file, std::string_view note = {}) const;
  std::string load(const std::filesystem::path& file);

 private:
  class Busy;
  class News;
  GenerateResult run(std::span<const TokenId> prompt, const GenerateOptions& options,
                     const TokenCallback& on_token);
  static GenerateResult follow(News& news, const Ticket& ticket, const GenerateOptions& options,
                               const TokenCallback& on_token);
  int room() const;

  Engine& engine_;
  std::vector<TokenId> text_;
  std::atomic<bool> generates_ = false;
};

class Engine {
 public:
  // Refuses, before it loads anything large, what does not fit this machine's memory. With ctx_size
  // 0 the context is what the model was made for or, with a warning in the log, what fits. The CPU
  // reads the checkpoint where it is mapped: see MappedFile::survive_losses() (base/mapped_file.h).
  static std::unique_ptr<Engine> load(const EngineOptions& options);
  // For a process that is another rank of an engine in EngineOptions::processes: loads its share,
  // goes through the passes of that engine, and returns when it ends. Of the options those that
  // follow from memory are that engine's. Throws what a rank may throw, here or there.
  static void follow(const EngineOptions& options, Communicator& ranks);
  // Where options.ranks is kLaunchedRanks the processes of the launcher meet (launched_ranks() of
  // comm/comm.h), options.processes is for load() or follow(), and options.device this one's.
  // Returns the rank; 0 where there are no others. Where so many cannot share the model nobody
  // waits for the others: rank 0 throws as load(), and at the others there are no processes, so
  // nothing to follow.
  static int meet_launched(EngineOptions& options);
  // Cancels all that live; they have been told when it returns. Tickets and sessions end before it.
  ~Engine();

  const ModelConfig& config() const;
  const Tokenizer& tokenizer() const;
  // Conversations as prompts (engine/chat_prompts.h). submit() and sessions continue what they get.
  const ChatPrompts& chat_prompts() const;
  std::string backend_name() const;         // "cpu", never "auto"
  std::string backend_description() const;  // one line
  int ctx_size() const;
  int page_size() const;  // tokens
  int sequences() const;  // requests that are in the cache at once
  int ranks() const;      // that share the model
  // What tokens are a function of beside the request (docs/design.md, section 3): equal where they
  // are. Begins with "b", as llama.cpp's do. Reads every byte of the checkpoint, at the first
  // call. Throws kCorruptFile where it was written to since it was loaded.
  const std::string& fingerprint() const;
  double load_ms() const;
  std::unique_ptr<Session> create_session() { return std::make_unique<Session>(*this); }

  // Continues a text, which begins with what the tokenizer puts before one (BOS), or these tokens.
  // Throws kInvalidRequest for what can never be, naming the field where there is one,
  // kOutOfMemory where too many requests wait (1,024; of one owner three times the places that are
  // left, thus 768 alone), kCorruptFile where the checkpoint was written to since it was loaded,
  // and what start() throws. Nobody is told of what is refused.
  Ticket submit(std::string_view prompt, const GenerateOptions& options, Listener listener);
  Ticket submit(std::vector<TokenId> prompt, const GenerateOptions& options, Listener listener);
  // A text with which somebody will probably go on, as a conversation's next turn does: it is read
  // while there is nothing else to do (RequestLoop::read_ahead). For requests of the same salt.
  // Throws kInvalidRequest for tokens that the model has not, and what start() throws.
  void read_ahead(std::vector<TokenId> text, std::string salt = {}, bool to_folder = true);
  // Takes the memory of requests, times passes of the model (a second at most, for drafts that pay
  // from the first token on) and starts the thread. Else the first request waits for that.
  void start();
  // A text on disk with what is kept of it, so that another process goes on without reading it
  // again: what it generates is what this one would have, bit for bit. `note`: text of the
  // program's own. A file is the old one or the new one, whole, whatever happens meanwhile. Both
  // start the engine, read every byte of the checkpoint (fingerprint()), and hold up what it
  // decodes. Throw kInvalidRequest and kCorruptFile naming the file, for one of another engine too;
  // kOutOfMemory where the disk has no room.
  struct SavedText {
    std::vector<TokenId> tokens;
    std::string note;
  };
  void save_text(const std::filesystem::path& file, std::span<const TokenId> tokens,
                 std::string_view note = {});
  SavedText load_text(const std::filesystem::path& file);

  // For statistics, which any thread may ask for (engine/request_loop.h has them); null before
  // start() and the first request.
  const RequestLoop* requests() const;
  FolderCounts folder_counts() const;  // of EngineOptions::cache_folder; zeros where there is none

  // The ids of a prompt, as Tokenizer::encode(). One that has more than `room` is refused soon,
  // however long it is.
  std::vector<TokenId> encode(std::string_view prompt, bool add_special, int room) const;
  // Those of a prediction (GenerateOptions). It has no more than the context.
  std::vector<TokenId> encode_prediction(std::string_view text) const;
  // Whether a plan by which requests draft reads a part of the cache, thus keeps to draft_budget.
  bool drafts_by_budget() const;

  // --- for measurements, below the sessions: who asks includes model/model.h ---
  // The plans of this name (model/plan.h; `auto` is several, of which those are left out whose
  // weights are not kept), for texts of any length. budget: what sparse ones read; none given: a
  // quarter, and for `auto` a sixteenth as well. Plans of 4-bit weights read the head at 8 bits
  // where a draft store keeps the head so, unless a plan file says 4. Throws kInvalidRequest for an
  // unknown name, a budget that is too small, and weights that are not kept.
  std::vector<Plan> plans(std::string_view spec, KvBudget budget = {}) const;
  // The same for prompts of so many tokens, as plan_at() has them; but `auto` without a budget does
  // as ever.
  std::vector<Plan> plans_at(int prompt_tokens, std::string_view spec, KvBudget budget = {}) const;
  // By which requests draft.
  const std::vector<Plan>& draft_plans() const;
  const Model& model() const;
  PagePool& pool();
  // Calls f with the engine of every rank, at once, and returns when all have returned. Every rank
  // must go through the same passes: a Decoder is of rank_communicator(). Before start(), of ranks
  // that are threads; throws kInvalidRequest for processes, and what f throws at rank 0. Of an
  // engine that throws there are no more passes.
  void at_every_rank(const std::function<void(Engine& own)>& f);
  Communicator* rank_communicator() const;  // null: there is one rank
  std::size_t target_weights_bytes() const;
  std::string target_weights() const;  // in what they are kept (Weights::target_description)

 private:
  friend class Session;
  class Generation;
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  static void follow_to_its_end(const EngineOptions& options, Communicator& ranks);
  static std::unique_ptr<Engine> load_rank(const EngineOptions& options, Communicator* ranks);
  std::string make_fingerprint() const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace quantspec
