// The OpenAI dialect over an engine: requests of HTTP in, as plain data; JSON and events out. It
// knows no socket. A server reads requests and implements Reply:
//
//     Api api(*engine, {.model = "pg-24m", .version = "1.0"});
//     api.handle(std::move(request), reply);        // on the thread that does I/O; it never blocks
//
// What takes time (to parse a body, to apply a template, to make tokens) runs on a few threads of
// the Api, behind a bounded queue; tokens come from the engine's thread. docs/server.md has every
// endpoint and field; both, and openapi.json, come from the tables of routes and of fields.
//
// Thread-safe. The engine, and what the options refer to, outlive the Api; its end cancels what
// runs, and answers it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_fwd.h"
#include "sampler/sampling_params.h"

namespace quantspec {
class Engine;
}

namespace quantspec::api {

using OrderedJson = nlohmann::ordered_json;
using Headers = std::vector<std::pair<std::string, std::string>>;

// As it came, but for what is HTTP's own: lengths, encodings of the transfer, hop-by-hop fields.
struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // "/v1/models", with its percent signs decoded
  std::string query;   // behind '?', as it came
  Headers headers;     // names in any case
  std::string body;
  std::string peer;  // who asks, for the log

  // The value of a header, or null.
  const std::string* header(std::string_view name) const;
};

// Where the answer goes. Thread-safe: called by the thread of handle(), by the Api's, by the
// engine's and by those that call back. No call blocks, or throws but for memory. Callbacks are
// called while no lock of the Reply is held. After the client has gone, calls do nothing and send()
// returns true.
class Reply {
 public:
  virtual ~Reply() = default;
  // One of the two, once: an answer that is whole, or one that comes piece by piece.
  virtual void respond(int status, Headers headers, std::string body) = 0;
  virtual void begin_stream(int status, Headers headers) = 0;
  // False: there is no room now, and nothing of it was taken; the callback of on_room() is called
  // once there is.
  virtual bool send(std::string_view bytes) = 0;
  virtual void finish() = 0;
  virtual void on_room(std::function<void()> callback) = 0;
  // Called once, soon after the client has gone; at once where it has.
  virtual void on_gone(std::function<void()> callback) = 0;
};

// A prompt from messages: (messages, tools or null, whether the assistant is to begin, further
// variables). Throws Error(kInvalidRequest) for what the template refuses. Called by several
// threads at a time.
using ApplyTemplate =
    std::function<std::string(const OrderedJson& messages, const OrderedJson& tools,
                              bool add_generation_prompt, const OrderedJson& variables)>;

// Of a request's end, of what the engine does, and what is said at the start.
struct LogLine {
  std::string text;  // one line, whatever was in a request
  // It says why the engine failed.
  bool is_failure = false;
};

struct ApiOptions {
  std::string model;    // what it is called, in replies; any other name in a request is served, too
  std::string version;  // of this program, and its commit
  ApplyTemplate apply_template = {};  // empty: the model has none
  std::string chat_template = {};     // its text, for /props
  // What holds where neither a request nor the model's generation_config.json says: OpenAI's.
  SamplingParams sampling = {};
  std::vector<std::string> keys = {};  // none: whoever comes may ask
  std::string model_file;              // its name, without folders
  std::vector<std::string> cors_origins =
      {};               // whose pages may ask; "*": any; "localhost": of this machine
  bool strict = false;  // a field that is not known is refused
  // After an answer what the next turn begins with is read, while there is nothing else to do.
  bool read_ahead = false;
  bool metrics = true;
  bool metrics_open = false;  // /metrics asks for no key

  // Bounds, each of which is answered by a status of its own.
  int most_choices = 128;  // of one request: its prompts times n
  int max_output = 0;      // tokens of a choice; 0: what the context has room for
  std::size_t max_body = std::size_t{8} << 20;  // bytes
  std::size_t max_requests = 512;               // of generation, that are here at once
  std::size_t max_prompt_tokens = 2'000'000;    // of all those
  int front_threads = 2;
  std::size_t front_queue = 128;                    // requests that wait for such a thread
  std::size_t front_bytes = std::size_t{64} << 20;  // of their bodies, together
  // Seconds until: a comment is sent on a stream without news; a client that does not read is given
  // up; an engine that does nothing with work at hand is no longer healthy; a request is ended.
  double ping = 15;
  double stalled = 30;
  double watchdog = 30;
  double request_timeout = 3600;

  std::function<void(const LogLine&)> log = {};
};

class Api {
 public:
  // Logs what requests get where they do not say. Throws kInvalidRequest for sampling that cannot
  // be.
  Api(Engine& engine, ApiOptions options);
  ~Api();
  Api(const Api&) = delete;
  Api& operator=(const Api&) = delete;

  // Answers, now or later. Never blocks.
  void handle(HttpRequest request, std::shared_ptr<Reply> reply);
  // Whether the request is to be handled once it is read to its end. If not, it has been answered
  // when this returns. For a server that has read the head alone: who has no key need not be read.
  bool wants_body(HttpRequest head, std::shared_ptr<Reply> reply);

  void set_keys(const std::vector<std::string>& keys);  // from the next request on
  // Takes no more requests of generation, and is no longer ready. Those that no pass was made for
  // are answered 503; the others go on.
  void drain();
  void cancel_all();         // all that run end with an error
  std::size_t live() const;  // requests of generation that have no whole answer yet
  // Whether the engine moves, or has nothing to do.
  bool healthy() const;
  // What answers carry as system_fingerprint: equal requests that are greedy or have a seed get
  // equal answers by equal fingerprints. Reads the checkpoint once, at the first call or request.
  const std::string& fingerprint();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// While there is no engine yet: 503 for all but /healthz.
void answer_while_loading(const HttpRequest& request, Reply& reply);

// The body of an answer, JSON, for what a server refuses by itself.
std::string error_body(int status, std::string_view message);

// docs/server.md's table of fields, and its list of endpoints.
std::string fields_as_markdown();
std::string routes_as_markdown();

}  // namespace quantspec::api
