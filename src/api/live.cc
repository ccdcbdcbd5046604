// What the engine does, for people.
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "api/core.h"
#include "api/read_body.h"
#include "base/error.h"
#include "base/field.h"
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

}  // namespace quantspec::api
