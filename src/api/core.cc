#include "api/core.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "api/completion.h"
#include "api/routes.h"
#include "base/json.h"
#include "base/shown.h"
#include "engine/request_loop.h"
#include "sampler/parameters.h"

namespace quantspec::api {

std::int64_t seconds_of_epoch() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// --- live requests -------------------------------------------------------------------------------

void Live::add(std::uint64_t id, std::shared_ptr<Completion> completion,
               std::size_t prompt_tokens) {
  const std::lock_guard lock(mutex_);
  all_.emplace(id, std::move(completion));
  prompt_tokens_ += prompt_tokens;
}

void Live::remove(std::uint64_t id, std::size_t prompt_tokens) {
  const std::lock_guard lock(mutex_);
  if (all_.erase(id) > 0) prompt_tokens_ -= prompt_tokens;
  if (all_.empty()) none_.notify_all();
}

std::vector<std::shared_ptr<Completion>> Live::all() const {
  std::vector<std::shared_ptr<Completion>> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, completion] : all_) all.push_back(completion);
  return all;
}

std::size_t Live::count() const {
  const std::lock_guard lock(mutex_);
  return all_.size();
}

std::size_t Live::prompt_tokens() const {
  const std::lock_guard lock(mutex_);
  return prompt_tokens_;
}

void Live::engine_begins() {
  const std::lock_guard lock(mutex_);
  ++in_engine_;
}

void Live::engine_ended() {
  const std::lock_guard lock(mutex_);
  --in_engine_;
  if (in_engine_ == 0) none_.notify_all();
}

void Live::wait() {
  std::unique_lock lock(mutex_);
  none_.wait(lock, [this] { return in_engine_ == 0 && all_.empty(); });
}

// --- the core ------------------------------------------------------------------------------------

namespace {

template <auto member, typename T>
void choose(Core& core, const std::optional<T>& of_model) {
  if (of_model) core.defaults.*member = *of_model;
  constexpr auto param = sampling_param<member>();
  OrderedJson value = core.defaults.*member;
  if constexpr (std::is_same_v<T, float>) {  // with the digits that it has
    value = std::strtod(fmt::format("{}", core.defaults.*member).c_str(), nullptr);
  }
  core.defaults_from[std::string(param.name)] = {
      {"value", std::move(value)}, {"from", of_model ? "generation_config.json" : "server"}};
}

void choose_defaults(Core& core) {
  using P = SamplingParams;
  const GenerationDefaults& model = core.engine.config().generation;
  core.defaults = core.options.sampling;
  choose<&P::temperature>(core, model.do_sample == false ? std::optional(0.0f) : model.temperature);
  choose<&P::top_k>(core, model.top_k);
  choose<&P::top_p>(core, model.top_p);
  choose<&P::min_p>(core, model.min_p);
  choose<&P::repeat_penalty>(core, model.repetition_penalty);
  choose<&P::repeat_last_n>(core, std::optional<int>());
  choose<&P::presence_penalty>(core, std::optional<float>());
  choose<&P::frequency_penalty>(core, std::optional<float>());
  core.defaults.validate();
}

}  // namespace

// NOTE: of keys only the hashes stay.
Core::Core(Engine& used, ApiOptions given)
    : engine(used),
      options([&] {
        ApiOptions all = given;
        all.keys.clear();
        return all;
      }()),
      keys(given.keys),
      started(seconds_of_epoch()),
      front(std::make_unique<FrontPool>(options.front_threads, options.front_queue,
                                        options.front_bytes)) {
  choose_defaults(*this);
  std::string line = "sampling, where a request does not say:";
  for (const auto& [name, one] : defaults_from.items()) {
    line += fmt::format(" {} {} ({})", name, one["value"].dump(), one["from"].get<std::string>());
  }
  log(line);
}

void Core::log(const std::string& line, bool is_failure) const {
  if (options.log) options.log({one_line(line), is_failure});
}

void Core::note_unknown(const std::string& name) {
  constexpr std::size_t kMost = 256;  // clients may make them up
  {
    const std::lock_guard lock(unknown_mutex_);
    if (unknown_.size() >= kMost || !unknown_.insert(shortened(name, 128)).second) return;
  }
  log("a request has a field that is not known, and is ignored: " + shown(name));
}

std::optional<std::string> Core::broken() const {
  const RequestLoop* loop = engine.requests();
  const auto error = loop == nullptr ? std::nullopt : loop->broken();
  if (!error) return std::nullopt;
  return one_line(error->what());
}

std::optional<Refusal> Core::full(std::size_t prompt_tokens) {
  if (const auto why = broken()) return unavailable(*why);
  if (live.count() >= options.max_requests) {
    metrics.refused("requests");
    return too_many(fmt::format("{} requests are here, as many as may", options.max_requests),
                    retry_after());
  }
  const std::size_t here = live.prompt_tokens();
  if (here > 0 && here + prompt_tokens > options.max_prompt_tokens) {
    metrics.refused("tokens");
    return too_many(fmt::format("prompts of {} tokens are here, and of {} may be; this one has {}",
                                here, options.max_prompt_tokens, prompt_tokens),
                    retry_after());
  }
  return std::nullopt;
}

namespace {

double working_seconds(const RequestLoop::Statistics& statistics) {
  return statistics.round_seconds + statistics.slice_seconds;
}

}  // namespace

// By how fast tokens went so far, prompts' among them.
int Core::retry_after() const {
  const RequestLoop* loop = engine.requests();
  if (loop == nullptr) return 1;
  const double seconds = working_seconds(loop->statistics());
  const double done = static_cast<double>(metrics.tokens());
  if (seconds <= 0 || done <= 0) return 1;
  const double waiting = static_cast<double>(live.prompt_tokens()) +
                         static_cast<double>(live.count()) * metrics.tokens_per_request();
  return static_cast<int>(std::clamp(std::ceil(waiting * seconds / done), 1.0, 60.0));
}

void Core::tick() {
  const auto all = live.all();
  for (const auto& completion : all) completion->tick();
  const std::uint64_t beats_now = beats;
  const RequestLoop* loop = engine.requests();
  const double seconds = loop == nullptr ? 0 : working_seconds(loop->statistics());
  const bool moved = beats_now != beats_seen_ || seconds != seconds_seen_;
  const bool waits = !std::ranges::any_of(all, [](const auto& one) { return one->wants_engine(); });
  if (moved || waits) since_beat_.restart();
  beats_seen_ = beats_now;
  seconds_seen_ = seconds;
  const auto why = broken();
  const bool was_healthy = healthy_.exchange(!why && since_beat_.seconds() < options.watchdog);
  if (why) {
    if (!std::exchange(told_why_, true)) log(*why, true);
  } else if (was_healthy && !healthy_) {
    log(fmt::format("the engine has not moved for {:.0f} s, with {} requests at hand",
                    options.watchdog, all.size()),
        true);
  }
}

// --- answers -------------------------------------------------------------------------------------

namespace {

void respond(Core& core, const Call& call, int status, std::string_view type, std::string body,
             Headers more) {
  Headers headers = call.headers;
  headers.emplace_back("Content-Type", type);
  std::ranges::move(more, std::back_inserter(headers));
  core.metrics.answered(call.route == nullptr ? "other" : call.route->path, status);
  call.reply->respond(status, std::move(headers), std::move(body));
}

}  // namespace

void answer(Core& core, const Call& call, int status, const OrderedJson& body, Headers more) {
  respond(core, call, status, "application/json; charset=utf-8", dump_json(body), std::move(more));
}

void answer(Core& core, const Call& call, const Refusal& refusal) {
  answer(core, call, refusal.status, refusal.json(), refusal.headers);
}

void answer_text(Core& core, const Call& call, std::string_view type, std::string text) {
  respond(core, call, 200, type, std::move(text), {});
}

void log_request_end(const Core& core, const Call& call, int status, const std::string& measured,
                     const std::string& why) {
  std::string line =
      fmt::format("request {} {} status {} {}", call.id, call.route->path, status, measured);
  if (!call.caller.name.empty()) line += " key " + call.caller.name;
  if (!call.request.peer.empty()) line += " peer " + call.request.peer;
  if (!call.trace.empty()) line += " trace " + call.trace;
  if (!why.empty()) line += " error " + shown(why);
  core.log(line, status == 500);
}

// --- statistics ----------------------------------------------------------------------------------

namespace {

// As a label's value.
std::string label_value(std::string_view text) {
  std::string value = "\"";
  for (const char c : one_line(text)) {
    if (c == '"' || c == '\\') value += '\\';
    value += c;
  }
  return value + '"';
}

}  // namespace

void write_statistics(const Core& core, Exposition& out) {
  RequestLoop::Statistics s;
  if (const RequestLoop* loop = core.engine.requests()) s = loop->statistics();
  const auto gauge = [&](std::string_view name, std::string_view help, auto value) {
    out.number(name, "gauge", help, static_cast<double>(value));
  };
  const auto counter = [&](std::string_view name, std::string_view help, auto value,
                           std::string_view labels = {}) {
    out.number(name, "counter", help, static_cast<double>(value), labels);
  };
  const std::size_t waiting = s.scheduler.waiting + s.scheduler.preempted;
  const std::size_t free = s.free_pages + s.prefixes.idle_pages;
  const double used = s.pages > free ? static_cast<double>(s.pages - free) : 0;
  gauge("vllm:num_requests_running", "Requests that are in the cache.", s.scheduler.admitted);
  gauge("vllm:num_requests_waiting", "Requests that wait for it.", waiting);
  gauge("vllm:kv_cache_usage_perc", "Share of the cache's pages in use, from 0 to 1.",
        s.pages == 0 ? 0 : used / static_cast<double>(s.pages));
  out.number(
      "vllm:cache_config_info", "gauge", "The cache.", 1,
      fmt::format("block_size=\"{}\",num_gpu_blocks=\"{}\"", core.engine.page_size(), s.pages));
  counter("vllm:num_preemptions_total", "Requests that gave way.", s.scheduler.preemptions);
  gauge("llamacpp:requests_processing", "Requests that are in the cache.", s.scheduler.admitted);
  gauge("llamacpp:requests_deferred", "Requests that wait for it.", waiting);
  counter("llamacpp:n_decode_total", "Rounds.", s.rounds);
  gauge("llamacpp:n_busy_slots_per_decode", "Requests in a round.",
        s.rounds == 0 ? 0 : static_cast<double>(s.turns) / static_cast<double>(s.rounds));

  counter("quantspec_round_seconds_total", "Seconds in rounds.", s.round_seconds);
  counter("quantspec_draft_seconds_total", "Of those, in drafts.", s.draft_seconds);
  counter("quantspec_slice_seconds_total", "Seconds in which prompts were read.", s.slice_seconds);
  counter("quantspec_rejections_total", "Turns of requests that ended in a correction.",
          s.rejections);
  counter("quantspec_swaps_total", "Preemptions of which the host keeps the cache.", s.swaps);
  counter("quantspec_replays_total", "Preemptions after which it is read again.", s.replays);
  gauge("quantspec_tree_chunks", "Chunks of prompts that later ones may find.", s.prefixes.chunks);
  for (const auto& [tier, pages] :
       {std::pair("pages", s.prefixes.pages), std::pair("host", s.prefixes.host_pages)}) {
    out.number("quantspec_tree_pages", "gauge", "Pages of those chunks, by where they are.",
               static_cast<double>(pages), fmt::format("tier=\"{}\"", tier));
  }
  gauge("quantspec_tail_bytes", "Of the ends of prompts, that the host keeps.", s.tail_bytes);
  counter("quantspec_tail_tokens_total", "Tokens that were found in them.", s.tail_tokens);
  counter("quantspec_ahead_tokens_total",
          "Tokens that were read before somebody asked for what comes after them.", s.ahead_tokens);
  const FolderCounts folder = core.engine.folder_counts();
  for (const auto& [what, files] :
       {std::pair("found", folder.found), std::pair("written", folder.written),
        std::pair("removed", folder.removed), std::pair("dropped", folder.dropped)}) {
    counter("quantspec_folder_files_total", "Files of the cache on disk.", files,
            fmt::format("what=\"{}\"", what));
  }
  gauge("quantspec_folder_bytes", "Of those files.", folder.bytes);
  for (const auto& [way, moves] :
       {std::pair("to_host", s.prefixes.to_host), std::pair("from_host", s.prefixes.from_host)}) {
    counter("quantspec_tier_moves_total", "Pages that moved.", moves,
            fmt::format("way=\"{}\"", way));
  }
  gauge("quantspec_requests", "Requests of generation that have no whole answer yet.",
        core.live.count());
  gauge("quantspec_front_queue", "Requests that are not read yet.", core.front->waiting());
  gauge("quantspec_healthy", "Whether the engine moves.", core.healthy() ? 1 : 0);
  out.number("quantspec_build_info", "gauge", "What serves.", 1,
             fmt::format("version={}", label_value(core.options.version)));
}

}  // namespace quantspec::api
