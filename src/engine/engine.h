// The library's public door: load a model folder, open a session, generate text.
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
// with the first request and sleeps while there is nothing to do. docs/requests.md follows one
// through it.
//
// There are two ways in. A Session owns the text so far, and generate() returns when it is written:
// for programs that do one thing after the other. Engine::submit() returns at once, and tells what
// comes to callbacks: for servers. Threads may use the engine, and sessions of it, at the same
// time; one session is for one thread at a time. Errors are thrown as quantspec::Error; times are
// in milliseconds, sizes in bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/request_id.h"
#include "engine/token_event.h"
#include "speculative/speculative.h"
#include "tokenizer/tokenizer.h"

namespace quantspec {

// Which weights a draft may read. kAuto: 4 and 8 bits, chosen round by round by the cost model.
enum class DraftWeights : std::uint8_t { kAuto, kUpper, kBoth, kFull };

// A stage of something that takes a while: its name and the share done in [0, 1]. May throw to
// cancel.
using ProgressCallback = std::function<void(std::string_view stage, double done)>;

struct EngineOptions {
  std::filesystem::path model;  // a Hugging Face folder
  std::string backend = "auto";
  std::optional<int> device = {};  // the GPU, by ordinal: as in BackendOptions
  int num_threads = 0;             // 0: physical cores
  int ctx_size = 0;   // tokens of a session; 0: what the model was made for, if that fits
  int page_size = 0;  // 0: by head_dim
  DraftWeights draft_weights = DraftWeights::kAuto;
  std::filesystem::path draft_store = {};  // from `quantspec prepare`; empty: made while loading
  KvStore kv_store = KvStore::kHierarchical;
  // By which requests draft, as Engine::plans() has them; `auto` keeps to draft_weights and to what
  // the cache has. Other names exclude draft_weights.
  std::string plan = "auto";
  KvBudget draft_budget = {};
  // Requests that are in the cache at once; further ones wait. 0: 4, or 1 of a cache in full
  // precision, whose memory is not shared.
  int sequences = 0;
  // Bytes of their pages, and of those of prefixes that are kept for later ones: one context's or
  // more. 0: by what memory there is beside all else, at most twice what they can come to hold. Of
  // a device's a sixteenth is left, and the pages are taken when they are first used; of the host's
  // they may use half, and take what they do.
  std::size_t page_memory = 0;
  // Bytes of the host's memory for what preempted requests hold and for prefixes that pages have no
  // room for. 0: none, such requests read again. Not said: on a device an eighth of what the host
  // has available, at most 4 GiB and what the pages take; none elsewhere.
  std::optional<std::size_t> host_cache = {};
  ProgressCallback progress = {};
};

// What memory goes where for a context of so many tokens.
struct MemoryPlan {
  std::size_t weights_bytes = 0;        // the checkpoint, mapped
  std::size_t draft_weights_bytes = 0;  // the planes that drafts read
  std::size_t kv_bytes = 0;             // quantized pages
  std::size_t ring_bytes = 0;           // recent tokens in full precision
  std::size_t gathered_bytes = 0;       // tokens that a draft keeps for itself
  std::size_t prefill_bytes = 0;        // one layer in full precision, and activations
  std::size_t kv_fp16_bytes = 0;        // what an fp16 cache of the same tokens would take
  // Where other requests and what they leave need more than kv_bytes: all pages that there may be,
  // and the host's memory for what they have no room for. No part of total().
  std::size_t page_memory_bytes = 0;
  std::size_t host_cache_bytes = 0;

  std::size_t total() const {
    return weights_bytes + draft_weights_bytes + kv_bytes + ring_bytes + gathered_bytes +
           prefill_bytes;
  }
};

// How a text is continued.
struct GenerateOptions {
  int predict = -1;  // tokens to generate; -1: until the model stops or the context is full
  std::vector<std::string> stop = {};  // text that ends the generation; it is no part of the output
  std::vector<TokenId> stop_ids = {};  // tokens that do
  bool ignore_eos = false;
  SamplingParams sampling = {};
  SpecSampling spec_sampling = SpecSampling::kRejection;
  std::optional<int> draft_len = {};  // nullopt: chosen; 0: plain decoding
  bool log_probs = false;             // of every token
  ProgressCallback progress = {};     // of the prefill
  // On whose behalf: owners share the engine fairly. Greater priorities go first.
  OwnerId owner = 0;
  int priority = 0;
  // Prefixes that were read for requests of another salt are not found: owners who must not learn
  // from times what others asked have salts of their own, and so has what is to be timed.
  std::string salt = {};
};

struct Timings {
  double prefill_ms = 0;
  double decode_ms = 0;
  double prefill_tokens_per_second = 0;  // of those that were read: cached ones are not
  double decode_tokens_per_second = 0;   // of the tokens after the first, which prefill gives
};

struct GenerateResult {
  std::string text;
  std::vector<TokenId> tokens;
  std::vector<float> log_probs;  // of each token, where they were asked for
  int prompt_tokens = 0;
  int cached_tokens = 0;  // of the text before what was generated: others had read them
  StopReason stop_reason = StopReason::kLength;
  Timings timings;
  RoundStats speculation;
  bool drafts_off = false;   // the cost model switched drafting off: it did not pay
  std::string draft_choice;  // one line: what the cost model chose, and why
  MemoryPlan memory;         // as used, for the tokens that the session holds
};

// How a submitted request ended. With an error it has what was generated before.
struct Outcome {
  GenerateResult result;
  std::optional<Error> error = {};
};

// Who is told of a submitted request, by the engine's thread: others wait meanwhile. Callbacks may
// submit and cancel; they may not wait for another request. One that throws ends its own request
// with that error, and nothing else.
struct Listener {
  TokenCallback on_token = {};
  std::function<void(const Outcome&)> on_end = {};  // once, after all else
};

class Engine;
class RequestLoop;

// A submitted request. A value; may be dropped. From any thread, also from callbacks, as long as
// the engine lives; of a request that has ended nothing happens.
class Ticket {
 public:
  RequestId id() const { return id_; }
  void cancel() const;
  // From soon on a paused request is told nothing: for a reader that does not keep up. It keeps
  // what it has while nobody else wants it, and goes on as if nothing had been.
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
  ~Engine();

  const ModelConfig& config() const { return model_.config(); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  std::string backend_description() const { return backend_->description(); }
  int ctx_size() const { return options_.ctx_size; }
  double load_ms() const { return load_ms_; }
  std::unique_ptr<Session> create_session() { return std::make_unique<Session>(*this); }

  // Continues a text, which begins with what the tokenizer puts before one (BOS), or these tokens.
  // Throws what RequestLoop::submit() does: kInvalidRequest, naming the field, for what can never
  // be, and kOutOfMemory where too many requests wait. Nobody is told of what is refused.
  Ticket submit(std::string_view prompt, const GenerateOptions& options, Listener listener);
  Ticket submit(std::vector<TokenId> prompt, const GenerateOptions& options, Listener listener);
  // Its requests: for statistics, which any thread may ask for. Made with the first.
  const RequestLoop& requests();

  // The ids of a prompt, as Tokenizer::encode(). One that has more than `room` is refused soon,
  // however long it is.
  std::vector<TokenId> encode(std::string_view prompt, bool add_special, int room) const;
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
  const std::vector<Plan>& draft_plans() const { return plans_; }

  // --- for measurements, below the sessions ---
  const Model& model() const { return model_; }
  PagePool& pool() { return pool_; }
  std::size_t checkpoint_bytes() const { return model_.weights().checkpoint_bytes(); }

 private:
  friend class Session;
  class Generation;
  Engine(EngineOptions options, std::unique_ptr<Backend> backend, Model model,
         std::unique_ptr<Tokenizer> tokenizer);
  std::vector<Plan> make_plans() const;
  RequestLoop& running_loop();
  bool is_own_thread() const;
  void require_room(std::size_t prompt_tokens, int room) const;
  [[noreturn]] static void fail_empty_prompt();

  EngineOptions options_;  // resolved
  std::unique_ptr<Backend> backend_;
  Model model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  PagePool pool_;
  std::vector<Plan> plans_;
  double load_ms_ = 0;
  mutable std::mutex loop_mutex_;  // of its start
  std::unique_ptr<RequestLoop> loop_;
  std::thread thread_;  // that runs it
};

// What `quantspec info` prints; of the checkpoint only the header is read.
struct ModelReport {
  ModelConfig config;
  int page_size = 0;
  std::string backend;              // and whose memory it is
  std::size_t available_bytes = 0;  // that it can still give
  // The most of the model's tokens that fit it, and that can be computed; 0: none do with these
  // weights for drafts.
  int largest_context = 0;
  Message advice;  // what would fit, where none do
  // More than those would fit: what ends them is the model's sliding window.
  bool limited_by_window = false;
  std::vector<std::string> unread_tensors;        // of the checkpoint, that the model does not use
  std::vector<std::pair<int, MemoryPlan>> plans;  // by context length
};
ModelReport report_model(const EngineOptions& options, std::span<const int> contexts);

}  // namespace quantspec
