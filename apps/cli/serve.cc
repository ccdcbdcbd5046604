// quantspec serve
#include <fmt/format.h>
#include <quantspec/version.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "api/api.h"
#include "apps/cli/about.h"
#include "apps/cli/command.h"
#include "apps/cli/flags.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/limits.h"
#include "apps/cli/messages.h"
#include "apps/cli/option_values.h"
#include "apps/cli/options.h"
#include "apps/cli/output.h"
#include "apps/cli/progress.h"
#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "engine/chat_prompts.h"
#include "net/net.h"
#include "net/notify.h"

namespace quantspec::cli {

namespace {

using namespace std::chrono_literals;
using Milliseconds = std::chrono::milliseconds;

struct ServeArgs {
  EngineOptions engine;
  std::string host = "127.0.0.1";
  int port = 8080;
  std::filesystem::path unix_path;
  std::filesystem::path key_file;
  std::vector<std::string> allowed_hosts, cors_origins;
  std::string name;  // of the model, for clients
  int max_output = 0;
  bool strict = false;
  bool read_ahead = true;
  int drain_seconds = 30;
  bool quiet = false;
  bool verbose = false;
};

// --- between the server and the API --------------------------------------------------------------

class ExchangeReply final : public api::Reply {
 public:
  explicit ExchangeReply(std::shared_ptr<net::Exchange> exchange)
      : exchange_(std::move(exchange)) {}

  void respond(int status, api::Headers headers, std::string body) override {
    exchange_->respond({status, as_net(std::move(headers)), std::move(body)});
  }
  void begin_stream(int, api::Headers headers) override {
    auto stream = exchange_->stream(as_net(std::move(headers)), Milliseconds(0));  // the API pings
    std::function<void()> waits;
    {
      const std::lock_guard lock(mutex_);
      stream_ = stream;
      waits = std::exchange(on_room_, nullptr);
    }
    if (waits) stream->on_room(std::move(waits));
  }
  bool send(std::string_view bytes) override {
    const auto stream = this->stream();
    if (stream == nullptr || stream->is_gone()) return true;
    if (!stream->has_room()) return false;
    stream->send(bytes);
    return true;
  }
  void finish() override {
    if (const auto stream = this->stream()) stream->finish();
  }
  void on_room(std::function<void()> callback) override {
    std::shared_ptr<net::SseStream> stream;
    {
      const std::lock_guard lock(mutex_);
      stream = stream_;
      if (stream == nullptr) on_room_ = std::move(callback);
    }
    if (stream) stream->on_room(std::move(callback));
  }
  void on_gone(std::function<void()> callback) override {
    exchange_->on_gone([callback = std::move(callback)](net::Gone) { callback(); });
  }

 private:
  static net::Headers as_net(api::Headers headers) {
    net::Headers all;
    for (auto& [name, value] : headers) all.push_back({std::move(name), std::move(value)});
    return all;
  }
  std::shared_ptr<net::SseStream> stream() {
    const std::lock_guard lock(mutex_);
    return stream_;
  }

  std::shared_ptr<net::Exchange> exchange_;
  std::mutex mutex_;
  std::shared_ptr<net::SseStream> stream_;
  std::function<void()> on_room_;  // until there is a stream
};

api::HttpRequest as_api(const net::Request& request, std::string body) {
  api::HttpRequest taken;
  taken.method = request.method;
  taken.path = request.path;
  for (const auto& [name, value] : request.query) {
    taken.query += fmt::format("{}{}={}", taken.query.empty() ? "" : "&", name, value);
  }
  for (const auto& [name, value] : request.headers) taken.headers.emplace_back(name, value);
  taken.body = std::move(body);
  taken.peer = request.peer;
  return taken;
}

// An answer that is taken down, for what is refused before a body is read.
class TakenReply final : public api::Reply {
 public:
  void respond(int status, api::Headers headers, std::string body) override {
    answer = {status, {}, std::move(body)};
    for (auto& [name, value] : headers) {
      answer.headers.push_back({std::move(name), std::move(value)});
    }
  }
  void begin_stream(int, api::Headers) override {}
  bool send(std::string_view) override { return true; }
  void finish() override {}
  void on_room(std::function<void()>) override {}
  void on_gone(std::function<void()>) override {}

  net::Answer answer;
};

// --- keys ----------------------------------------------------------------------------------------

// One a line; empty lines and those that begin with # are none.
std::vector<std::string> read_keys(const std::filesystem::path& file) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  std::vector<std::string> keys;
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  std::string text = read_file(file, kMostBytes) + "\n";
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
    std::string key = text.substr(begin, end - begin);
    while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
    if (!key.empty() && key.front() != '#') keys.push_back(std::move(key));
  }
  if (keys.empty()) {
    fail(ErrorKind::kInvalidRequest, "{}: has no key; one a line is read", file.string());
  }
  return keys;
}

std::atomic<bool> reload_wanted = false;
static_assert(std::atomic<bool>::is_always_lock_free);

// A hang-up is a wish for new keys here, as for other servers.
void catch_hang_ups() {
  struct sigaction action {};
  action.sa_handler = [](int) { reload_wanted = true; };
  action.sa_flags = SA_RESTART;
  sigaction(SIGHUP, &action, nullptr);
}

// --- the whole -----------------------------------------------------------------------------------

class Service {
 public:
  explicit Service(const ServeArgs& args) : args_(args) {
    if (!args.key_file.empty()) keys_ = read_keys(args.key_file);
  }

  int run() {
    catch_hang_ups();
    listen();
    load();
    announce();
    wait();
    drain();
    return 0;
  }

 private:
  void listen() {
    net::Options options;
    options.host = args_.host;
    options.port = static_cast<std::uint16_t>(args_.port);
    options.unix_path = args_.unix_path.string();
    options.allowed_hosts = allowed_hosts();
    options.handle = [this](std::shared_ptr<net::Exchange> exchange) { handle(exchange); };
    options.admit = [this](const net::Request& head) { return admit(head); };
    options.refuse = [](int status, std::string_view text) -> net::Answer {
      return {status,
              {{"Content-Type", "application/json; charset=utf-8"}},
              api::error_body(status, text)};
    };
    server_ = std::make_unique<net::Server>(std::move(options));
  }

  // Whether nobody can ask from another machine.
  bool is_local() const {
    return !args_.unix_path.empty() || args_.host.starts_with("127.") || args_.host == "::1" ||
           args_.host == "localhost";
  }

  // What is allowed comes to the names that this machine has for itself.
  std::vector<std::string> allowed_hosts() const {
    std::vector<std::string> hosts = args_.allowed_hosts;
    if (hosts.empty() || !is_local()) return hosts;
    for (const char* own : {"localhost", "127.0.0.1", "[::1]"}) hosts.emplace_back(own);
    hosts.push_back(args_.host);
    return hosts;
  }

  void handle(const std::shared_ptr<net::Exchange>& exchange) {
    std::string body = exchange->take_body();
    api::HttpRequest request = as_api(exchange->request(), std::move(body));
    auto reply = std::make_shared<ExchangeReply>(exchange);
    if (const auto api = api_.load()) {
      api->handle(std::move(request), std::move(reply));
    } else {
      api::answer_while_loading(request, *reply);
    }
  }

  // Who has no key need not be read to its end.
  std::optional<net::Answer> admit(const net::Request& head) {
    const auto api = api_.load();
    if (api == nullptr) return std::nullopt;
    const auto taken = std::make_shared<TakenReply>();
    if (api->wants_body(as_api(head, {}), taken)) return std::nullopt;
    return std::move(taken->answer);
  }

  void load() {
    Progress progress(!args_.quiet && is_terminal(stderr));
    engine_ = load_engine(args_.engine, progress);
    api::ApiOptions api;
    api.model = args_.name.empty() ? name_of_model(args_.engine.model) : args_.name;
    api.model_file = name_of_model(args_.engine.model);
    api.version = fmt::format("{}, commit {}", QUANTSPEC_VERSION, kCommit);
    api.keys = std::exchange(keys_, {});  // the API keeps their hashes
    api.cors_origins = args_.cors_origins;
    api.strict = args_.strict;
    api.read_ahead = args_.read_ahead;
    api.max_output = args_.max_output;
    api.log = [](const api::LogLine& line) {
      spdlog::log(line.is_failure ? spdlog::level::err : spdlog::level::info, "{}", line.text);
    };
    const ChatPrompts& chat = engine_->chat_prompts();
    if (!chat.empty()) {
      api.chat_template = choose_chat_template(chat.templates(), {}, false).source;
      api.apply_template = [&chat](const api::OrderedJson& messages, const api::OrderedJson& tools,
                                   bool add_generation_prompt, const api::OrderedJson& variables) {
        ChatInput input;
        input.messages = &messages;
        if (!tools.is_null()) input.tools = &tools;
        input.add_generation_prompt = add_generation_prompt;
        if (variables.is_object()) input.variables = &variables;
        return chat.text(input);
      };
    }
    const auto made = std::make_shared<api::Api>(*engine_, std::move(api));
    made->fingerprint();  // reads the checkpoint, which the first request does not pay for then
    if (interrupted()) throw Interrupted();
    api_ = made;
  }

  void announce() {
    const bool local = !args_.unix_path.empty();
    const std::string address = local ? server_->address() : "http://" + server_->address();
    const std::string page = local ? "" : fmt::format("/v1, and a page to try it at {}/", address);
    write_output(fmt::format("{} at {}{}\n", name_of_model(args_.engine.model), address, page));
    if (args_.key_file.empty() && !is_local()) {
      warn("whoever reaches " + server_->address() + " may ask: --api-key-file has keys");
    }
    net::notify_service("READY=1");
  }

  // Until the first signal.
  void wait() {
    const auto api = api_.load();
    auto beat = std::chrono::steady_clock::now();
    const auto due = net::watchdog_time();
    while (!interrupted()) {
      std::this_thread::sleep_for(50ms);
      if (reload_wanted.exchange(false)) reload();
      // An engine that hangs is not fed for: the service's manager starts another.
      if (due && api->healthy() && std::chrono::steady_clock::now() - beat >= *due / 2) {
        net::notify_service("WATCHDOG=1");
        beat = std::chrono::steady_clock::now();
      }
    }
  }

  void reload() {
    if (args_.key_file.empty()) return;
    try {
      const std::vector<std::string> keys = read_keys(args_.key_file);
      api_.load()->set_keys(keys);
      spdlog::info("{} keys read from {}", keys.size(), args_.key_file.string());
    } catch (const Error& error) {
      warn(fmt::format("the keys stay as they were: {}", error.what(flag_of)));
    }
  }

  // What runs may end; a second signal kills.
  void drain() {
    polled_.reset();
    const auto api = api_.load();
    net::notify_service("STOPPING=1");
    api->drain();
    say("quantspec: no more requests are taken; those that run may end\n");
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(args_.drain_seconds);
    while (api->live() > 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(20ms);
    }
    api->cancel_all();
    server_->stop(1s);
  }

  const ServeArgs& args_;
  std::optional<PolledInterrupts> polled_{std::in_place};  // until a drain begins
  std::vector<std::string> keys_;                          // until the API has them
  std::unique_ptr<Engine> engine_;
  std::atomic<std::shared_ptr<api::Api>> api_;
  std::unique_ptr<net::Server> server_;  // ends first: its thread asks the API
};

int run(const ServeArgs& given) {
  set_up_log(given.verbose ? Loudness::kVerbose
             : given.quiet ? Loudness::kQuiet
                           : Loudness::kNormal);
  ServeArgs args = given;
  if (follows_as_rank(args.engine)) return 0;
  warn_of_threads(args.engine.num_threads);
  return Service(args).run();
}

}  // namespace

Subcommand add_serve(CLI::App& app) {
  CLI::App* command = add_command(app, "serve", "Serve a model over HTTP, as OpenAI's API has it.");
  const auto args = std::make_shared<ServeArgs>();
  add_engine_options(*command, args->engine);
  add_ranks(*command, args->engine, /*or_launched=*/true);
  add_gpus(*command, args->engine);
  args->engine.sequences = 0;
  add_int(*command, "-c,--ctx-size", "N",
          "tokens of a request's prompt and answer (default: as\nthe model says, or what fits of "
          "that)",
          args->engine.ctx_size, 1, kMostContext);
  add_plan(*command, args->engine.plan);
  command->option_defaults()->group("Server");
  add_value(*command, "--host", "HOST", "address to listen at (default: 127.0.0.1)",
            [args](const std::string& text) { args->host = text; });
  add_int(*command, "--port", "N", "0: any that is free (default: 8080)", args->port, 0, 65535);
  add_path(*command, "--unix", "PATH", "a Unix socket instead", args->unix_path);
  add_path(*command, "--api-key-file", "FILE",
           "keys, one a line, of which a client must have one;\nread again after a SIGHUP",
           args->key_file);
  command
      ->add_option("--allow-host", args->allowed_hosts,
                   "a name by which clients may call this machine; may be\ngiven again")
      ->option_text("NAME")
      ->allow_extra_args(false);
  command
      ->add_option(
          "--cors-origin", args->cors_origins,
          "of web pages that may ask, localhost for those of this\nmachine; may be given again")
      ->option_text("ORIGIN")
      ->allow_extra_args(false);
  add_value(*command, "--name", "NAME", "what clients call the model (default: its file's)",
            [args](const std::string& text) { args->name = text; });
  add_chat_template(*command, args->engine.chat_template);
  add_int(*command, "--parallel", "N",
          "requests that are decoded at once; others wait\n(default: 4)", args->engine.sequences, 1,
          1024);
  add_bytes(
      *command, "--page-memory",
      "bytes of 8-bit pages, of all requests and of prefixes\nthat are kept (default: by what "
      "memory there is)",
      args->engine.page_memory);
  add_bytes(
      *command, "--host-cache",
      "bytes of the host's memory for what pages have no room\nfor (default: on a GPU up to 4 "
      "GiB, else none)",
      args->engine.host_cache);
  add_path(*command, "--cache-disk", "FOLDER",
           "where prefixes go, too, so that the next server finds\nthem",
           args->engine.cache_folder);
  add_bytes(*command, "--cache-disk-size", "bytes that the folder may take (default: 10 GiB)",
            args->engine.cache_folder_bytes);
  add_int(*command, "--lookup-history", "N",
          "tokens of a key's earlier requests and answers in which\ndrafts are looked up, too; "
          "without keys those of all\n(default: 0, none)",
          args->engine.lookup_history, 0, kMostContext);
  command->add_flag_callback(
      "--no-read-ahead", [args] { args->read_ahead = false; },
      "do not read an answer while nobody asks for anything,\nfor the next turn to find it");
  add_int(*command, "--max-output", "N", "tokens of an answer at most (default: the context)",
          args->max_output, 1, kMostTokens);
  command->add_flag("--strict", args->strict, "refuse fields that are not known");
  add_int(*command, "--drain", "N",
          "seconds that running requests have after a SIGTERM\n(default: 30)", args->drain_seconds,
          0, 86400);
  command->option_defaults()->group("Output");
  command->add_flag("-q,--quiet", args->quiet, "nothing on standard error but errors");
  command->add_flag("-v,--verbose", args->verbose, "say what is chosen, and why");
  finish_command(*command,
                 "Examples:\n"
                 "  quantspec serve -m SmolLM2-135M-Instruct.Q4_1.gguf\n"
                 "  curl http://127.0.0.1:8080/v1/chat/completions \\\n"
                 "    -H 'Content-Type: application/json' \\\n"
                 "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}'\n\n"
                 "It prints its address when it is ready. docs/server.md has all endpoints.");
  return {command, [args] {
            args->engine.model = resolve_model(args->engine.model);
            return run(*args);
          }};
}

}  // namespace quantspec::cli
