// What all parts of the Api share. Private to api/.
//
//     api.cc          the door: routes, keys, who may do what
//     routes.cc       the table of endpoints
//     generate.cc     a body becomes a Completion
//     completion.cc   a request of generation, from its admission to its answer; what it tells of
//                     tokens as they come is in completion_tokens.cc
//     frames.cc       what it is answered, as JSON
//     live.cc         what the engine does: its last steps, and the page that shows them
//     info.cc         everything else: models, health, tokens, templates
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "api/api.h"
#include "api/front_pool.h"
#include "api/keys.h"
#include "api/metrics.h"
#include "api/refusal.h"
#include "base/clock.h"
#include "engine/engine.h"

namespace quantspec::api {

struct Route;
class Completion;

// One request of HTTP on its way.
struct Call {
  HttpRequest request;
  std::shared_ptr<Reply> reply;
  const Route* route = nullptr;
  std::string rest = {};   // what stands for {id} in its path
  std::string id = {};     // X-Request-Id
  std::string trace = {};  // traceparent
  Headers headers = {};    // that every answer has
  Caller caller = {};
  Stopwatch clock = {};
};

// Requests of generation that have no whole answer yet. Thread-safe.
class Live {
 public:
  void add(std::uint64_t id, std::shared_ptr<Completion> completion, std::size_t prompt_tokens);
  void remove(std::uint64_t id, std::size_t prompt_tokens);
  std::vector<std::shared_ptr<Completion>> all() const;
  std::size_t count() const;
  std::size_t prompt_tokens() const;

  // Of the engine, which calls back for them.
  void engine_begins();
  void engine_ended();
  void wait();  // until there are none, and the engine calls back for none

 private:
  mutable std::mutex mutex_;
  std::condition_variable none_;
  std::map<std::uint64_t, std::shared_ptr<Completion>> all_;
  std::size_t prompt_tokens_ = 0;
  std::size_t in_engine_ = 0;
};

struct Core {
  Core(Engine& used, ApiOptions given);

  void log(const std::string& line, bool is_failure = false) const;
  // Names a field that is not known, the first time.
  void note_unknown(const std::string& name);
  // Why a request of generation finds no room; nullopt: it does.
  std::optional<Refusal> full(std::size_t prompt_tokens);
  int retry_after() const;                    // seconds
  std::optional<std::string> broken() const;  // why the engine takes no more requests
  // Whether the engine moves, or has nothing to do. tick() looks about every second.
  bool healthy() const { return healthy_; }
  void tick();

  Engine& engine;
  const ApiOptions options;  // without keys
  SamplingParams defaults;
  OrderedJson defaults_from;  // {"temperature": {"value": 1, "from": "default"}, ...}
  Keys keys;
  Metrics metrics;
  Live live;
  std::atomic<bool> draining = false;
  std::atomic<bool> stopping = false;
  std::atomic<std::uint64_t> beats = 0;  // of the engine: it called back
  std::atomic<std::uint64_t> last_id = 0;
  const std::int64_t started;        // seconds of the epoch
  std::unique_ptr<FrontPool> front;  // reads requests, and makes whole answers of generation

 private:
  std::mutex unknown_mutex_;
  std::set<std::string> unknown_;
  std::atomic<bool> healthy_ = true;
  bool told_why_ = false;  // in the log, that it is broken for good
  std::uint64_t beats_seen_ = 0;
  double seconds_seen_ = 0;
  Stopwatch since_beat_;
};

std::int64_t seconds_of_epoch();

// --- answers that are whole ---
void answer(Core& core, const Call& call, int status, const OrderedJson& body, Headers more = {});
void answer(Core& core, const Call& call, const Refusal& refusal);
void answer_text(Core& core, const Call& call, std::string_view type, std::string text);

// The log's line of a request's end. why: of an error, or empty.
void log_request_end(const Core& core, const Call& call, int status, const std::string& measured,
                     const std::string& why);

// --- handlers (routes.cc) ---
void serve_chat(Core& core, Call call);
void serve_completions(Core& core, Call call);
void serve_models(Core& core, Call call);
void serve_model(Core& core, Call call);
void serve_alive(Core& core, Call call);
void serve_ready(Core& core, Call call);
void serve_metrics(Core& core, Call call);
void serve_input_tokens(Core& core, Call call);
void serve_tokenize(Core& core, Call call);
void serve_detokenize(Core& core, Call call);
void serve_template(Core& core, Call call);
void serve_tokenizer_info(Core& core, Call call);
void serve_props(Core& core, Call call);
void serve_page(Core& core, Call call);
void serve_steps(Core& core, Call call);
void serve_version(Core& core, Call call);
void serve_openapi(Core& core, Call call);

OrderedJson make_openapi(const std::string& version);
// What the engine counts, added to what Metrics has.
void write_statistics(const Core& core, Exposition& out);

}  // namespace quantspec::api
