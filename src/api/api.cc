#include "api/api.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "api/completion.h"
#include "api/core.h"
#include "api/head.h"
#include "api/routes.h"
#include "base/json.h"
#include "base/shown.h"

namespace quantspec::api {

struct Api::Impl {
  Impl(Engine& engine, ApiOptions options)
      : core(engine, std::move(options)), ticker(std::in_place, [this] { core.tick(); }) {}

  std::optional<Call> admit(HttpRequest request, std::shared_ptr<Reply> reply);
  bool may_ask(Call& call, const Found& found);
  std::optional<Refusal> refuse_path(const Call& call, const Found& found) const;
  std::optional<Refusal> refuse_body(const Call& call) const;
  void add_cors(Call& call, bool asks_first) const;
  void dispatch(Call call);

  Core core;
  std::optional<Ticker> ticker;
};

namespace {

std::vector<std::string> paths_there_are() {
  std::vector<std::string> paths;
  for (const Route& route : routes()) {
    if (route.doc != "the same") paths.emplace_back(route.path);
  }
  return paths;
}

std::size_t declared_size(const HttpRequest& request) {
  const std::string* length = request.header("Content-Length");
  std::size_t size = 0;
  if (length != nullptr) std::from_chars(length->data(), length->data() + length->size(), size);
  return std::max(size, request.body.size());
}

// Whether a page comes from this machine, from any port.
bool is_of_this_machine(std::string_view origin) {
  for (const std::string_view own : {"http://localhost", "http://127.0.0.1", "http://[::1]",
                                     "https://localhost", "https://127.0.0.1", "https://[::1]"}) {
    if (!origin.starts_with(own)) continue;
    std::string_view port = origin.substr(own.size());
    if (port.empty()) return true;
    const bool digits = port.size() > 1 && port.front() == ':' &&
                        port.find_first_not_of("0123456789", 1) == port.npos;
    if (digits) return true;
  }
  return false;
}

}  // namespace

// What a page of another origin may ask and see; no cookie is ever looked at.
void Api::Impl::add_cors(Call& call, bool asks_first) const {
  const std::string* origin = call.request.header("Origin");
  const auto& listed = core.options.cors_origins;
  if (listed.empty() || origin == nullptr) return;
  call.headers.emplace_back("Vary", "Origin");
  const auto is_listed = [&](std::string_view one) {
    return std::ranges::find(listed, one) != listed.end();
  };
  const bool here = is_listed("localhost") && is_of_this_machine(*origin);
  if (!is_listed("*") && !is_listed(*origin) && !here) return;
  call.headers.emplace_back("Access-Control-Allow-Origin", one_line(*origin));
  call.headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  if (!asks_first) return;
  call.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST");
  call.headers.emplace_back("Access-Control-Allow-Headers",
                            "Authorization, Content-Type, X-Api-Key, X-Request-Id, traceparent");
  call.headers.emplace_back("Access-Control-Max-Age", "600");
}

bool Api::Impl::may_ask(Call& call, const Found& found) {
  const Access access = found.route == nullptr ? Access::kKey : found.route->access;
  const bool open =
      access == Access::kOpen || (access == Access::kMetrics && core.options.metrics_open);
  if (open) return true;
  auto caller = core.keys.caller_of(call.request);
  if (!caller) return false;
  call.caller = std::move(*caller);
  return true;
}

std::optional<Refusal> Api::Impl::refuse_path(const Call& call, const Found& found) const {
  if (found.route != nullptr) return std::nullopt;
  if (!found.allow.empty()) {
    return Refusal{.status = 405,
                   .message = fmt::format("{} is not for this path; {} work",
                                          shown(call.request.method), found.allow),
                   .headers = {{"Allow", found.allow}}};
  }
  if (found.absent != nullptr) {
    return Refusal{.status = 501,
                   .message = fmt::format("{} is not there: {}; there are {}", found.absent->path,
                                          found.absent->why, fmt::join(paths_there_are(), ", "))};
  }
  return Refusal{.status = 404,
                 .message = fmt::format("there is no {}; there are {}", shown(call.request.path),
                                        fmt::join(paths_there_are(), ", "))};
}

std::optional<Refusal> Api::Impl::refuse_body(const Call& call) const {
  if (!call.route->endpoint) return std::nullopt;
  const std::string* encoding = call.request.header("Content-Encoding");
  if (encoding != nullptr && !is_same_ignoring_case(*encoding, "identity")) {
    return Refusal{.status = 415, .message = "the body must not be compressed"};
  }
  if (!says_json(call.request)) {
    return Refusal{.status = 415,
                   .message =
                       "the body must be JSON and say so; Content-Type: application/json "
                       "works"};
  }
  const std::size_t size = declared_size(call.request);
  if (size <= core.options.max_body) return std::nullopt;
  return Refusal{
      .status = 413,
      .message = fmt::format("a body of {} bytes; at most {} work", size, core.options.max_body)};
}

// The request, if it is to be served; else it is answered.
std::optional<Call> Api::Impl::admit(HttpRequest request, std::shared_ptr<Reply> reply) {
  Call call{.request = std::move(request), .reply = std::move(reply)};
  call.id = request_id_of(call.request);
  call.trace = traceparent_of(call.request);
  call.headers = {{"X-Request-Id", call.id}};
  if (!call.trace.empty()) call.headers.emplace_back("traceparent", call.trace);
  Found found = find_route(call.request.method, call.request.path);
  const bool asks_first = call.request.method == "OPTIONS" && !found.allow.empty();
  add_cors(call, asks_first);
  call.route = found.route;
  call.rest = std::move(found.rest);
  if (asks_first) {
    call.headers.emplace_back("Allow", found.allow);
    core.metrics.answered("other", 200);
    call.reply->respond(200, call.headers, {});
    return std::nullopt;
  }
  if (!may_ask(call, found)) {
    answer(core, call,
           {.status = 401,
            .message = "a key is missing or wrong; Authorization: Bearer KEY works",
            .code = "invalid_api_key",
            .headers = {{"WWW-Authenticate", "Bearer"}}});
    return std::nullopt;
  }
  auto refusal = refuse_path(call, found);
  if (!refusal) refusal = refuse_body(call);
  if (refusal) {
    answer(core, call, *refusal);
    return std::nullopt;
  }
  return call;
}

void Api::Impl::dispatch(Call call) {
  const Route& route = *call.route;
  if (route.place == Place::kHere) return route.serve(core, std::move(call));
  const auto held = std::make_shared<Call>(std::move(call));
  const std::size_t bytes = held->request.body.size();
  const auto serve = [this, held] { held->route->serve(core, std::move(*held)); };
  if (core.front->post(serve, bytes)) return;
  core.metrics.refused("front");
  if (core.stopping) return answer(core, *held, unavailable("the server ends"));
  answer(
      core, *held,
      too_many("as many requests, or bytes of them, wait to be read as may", core.retry_after()));
}

// --- the door ------------------------------------------------------------------------------------

Api::Api(Engine& engine, ApiOptions options)
    : impl_(std::make_unique<Impl>(engine, std::move(options))) {}

Api::~Api() {
  Core& core = impl_->core;
  core.stopping = true;
  impl_->ticker.reset();
  core.front->stop();
  cancel_all();
  cancel_all();  // those that did not read that they were
  core.live.wait();
}

void Api::handle(HttpRequest request, std::shared_ptr<Reply> reply) {
  if (auto call = impl_->admit(std::move(request), std::move(reply))) {
    impl_->dispatch(std::move(*call));
  }
}

bool Api::wants_body(HttpRequest head, std::shared_ptr<Reply> reply) {
  auto call = impl_->admit(std::move(head), std::move(reply));
  if (!call) return false;
  if (call->route->endpoint || call->route->place == Place::kFront) return true;
  impl_->dispatch(std::move(*call));
  return false;
}

void Api::set_keys(const std::vector<std::string>& keys) { impl_->core.keys.set(keys); }

void Api::drain() {
  impl_->core.draining = true;
  for (const auto& completion : impl_->core.live.all()) completion->drain();
}

void Api::cancel_all() {
  for (const auto& completion : impl_->core.live.all()) {
    completion->give_up("end", unavailable("the server ends"));
  }
}

std::size_t Api::live() const { return impl_->core.live.count(); }
bool Api::healthy() const { return impl_->core.healthy(); }
const std::string& Api::fingerprint() { return impl_->core.engine.fingerprint(); }

void answer_while_loading(const HttpRequest& request, Reply& reply) {
  const bool alive = request.path == "/healthz";
  const OrderedJson body =
      alive ? OrderedJson{{"status", "ok"}} : unavailable("Loading model").json();
  reply.respond(alive ? 200 : 503,
                {{"Content-Type", "application/json; charset=utf-8"}, {"Retry-After", "1"}},
                dump_json(body));
}

std::string error_body(int status, std::string_view message) {
  return dump_json(Refusal{.status = status, .message = one_line(message)}.json());
}

}  // namespace quantspec::api
