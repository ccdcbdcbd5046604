// What the engine does, for people: the last steps, and a page that shows a text as it comes.
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/core.h"
#include "api/live_page.h"
#include "api/read_body.h"
#include "base/error.h"
#include "base/field.h"
#include "base/sha256.h"
#include "engine/request_loop.h"

namespace quantspec::api {

// --- /debug/steps --------------------------------------------------------------------------------

namespace {

// The number in "after=N", the one thing that may be asked; 0 where nothing is.
std::uint64_t after_of(std::string_view query) {
  constexpr std::string_view kName = "after=";
  std::uint64_t number = 0;
  if (query.empty()) return number;
  const char* end = query.data() + query.size();
  if (query.starts_with(kName) && query.size() > kName.size()) {
    const auto [rest, error] = std::from_chars(query.data() + kName.size(), end, number);
    if (error == std::errc() && rest == end) return number;
  }
  fail(ErrorKind::kInvalidRequest, "{}: must be a step's number, as in /debug/steps?after=120",
       Field{"after"});
}

OrderedJson to_json(const StepRecord::Turn& turn, const std::vector<std::string>& plans) {
  const auto [plan, drafted] = turn.choice;
  OrderedJson name = nullptr;
  if (drafted > 0) name = plan == DraftChoice::kProposed ? "proposed" : plans.at(plan);
  return {{"request", turn.request},
          {"tokens", turn.tokens},
          {"plan", std::move(name)},
          {"drafted", drafted},
          {"accepted", turn.accepted}};
}

OrderedJson to_json(const StepRecord& step, const std::vector<std::string>& plans) {
  const auto rate = [](double value) { return value > 0 ? OrderedJson(value) : OrderedJson(); };
  OrderedJson turns = OrderedJson::array();
  for (const StepRecord::Turn& turn : step.turns) turns.push_back(to_json(turn, plans));
  OrderedJson prompt;
  if (step.prompt != 0) {
    prompt = {
        {"request", step.prompt}, {"tokens", step.prompt_tokens}, {"share", step.prompt_share}};
  }
  return {{"step", step.number},
          {"begin", step.begin},
          {"ms", 1e3 * step.seconds},
          {"draft_ms", 1e3 * step.draft_seconds},
          {"waiting", step.waiting},
          {"free_pages", step.free_pages},
          {"expected_per_second", rate(step.expected.chosen)},
          {"expected_plain_per_second", rate(step.expected.plain)},
          {"turns", std::move(turns)},
          {"prompt", std::move(prompt)}};
}

}  // namespace

void serve_steps(Core& core, Call call) {
  guarded(core, call, [&] {
    const std::uint64_t after = after_of(call.request.query);
    OrderedJson steps = OrderedJson::array();
    if (const RequestLoop* loop = core.engine.requests()) {
      const std::vector<std::string> plans = loop->plan_names();
      for (const StepRecord& step : loop->steps_after(after)) steps.push_back(to_json(step, plans));
    }
    answer(core, call, 200, {{"steps", std::move(steps)}});
  });
}

// --- the page ------------------------------------------------------------------------------------

namespace {

std::string base64(const Sha256& digest) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < digest.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t j = i; j < i + 3; ++j) bits = bits << 8 | (j < digest.size() ? digest[j] : 0);
    for (int shift = 18; shift >= 0; shift -= 6) text += kDigits[bits >> shift & 63];
  }
  text.back() = '=';  // 32 bytes are ten threes and two
  return text;
}

// Of what stands between these tags in the page, so that a browser runs that and nothing else.
std::string hash_of(std::string_view open, std::string_view close) {
  const std::size_t begin = kLivePage.find(open) + open.size();
  return base64(sha256(kLivePage.substr(begin, kLivePage.find(close, begin) - begin)));
}

}  // namespace

void serve_page(Core& core, Call call) {
  static const std::string policy = fmt::format(
      "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; "
      "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
      hash_of("<script>", "</script>"), hash_of("<style>", "</style>"));
  call.headers.emplace_back("Content-Security-Policy", policy);
  call.headers.emplace_back("X-Content-Type-Options", "nosniff");
  call.headers.emplace_back("Referrer-Policy", "no-referrer");
  call.headers.emplace_back("Cache-Control", "no-cache");
  answer_text(core, call, "text/html; charset=utf-8", std::string(kLivePage));
}

}  // namespace quantspec::api
