// From a body to a Completion, on one of the Api's threads.
#include <fmt/format.h>

#include <utility>

#include "api/body_json.h"
#include "api/completion.h"
#include "api/prompt_tokens.h"
#include "api/read_body.h"
#include "api/request_fields.h"
#include "api/routes.h"
#include "base/error.h"
#include "base/shown.h"

namespace quantspec::api {

Wanted read_body(Core& core, const Call& call, std::string_view body) {
  std::vector<std::string> unknown;
  Wanted wanted = read_wanted(*call.route->endpoint, parse_body(body), core.defaults, unknown);
  if (unknown.empty()) return wanted;
  if (core.options.strict) {
    fail(ErrorKind::kInvalidRequest, "{}: is not known; docs/server.md has all fields",
         Field{unknown.front()});
  }
  for (const std::string& name : unknown) core.note_unknown(name);
  return wanted;
}

void guarded(Core& core, const Call& call, const std::function<void()>& work) {
  const auto refuse = [&](const Refusal& refusal, const std::string& why) {
    log_request_end(core, call, refusal.status, fmt::format("ms {:.1f}", call.clock.milliseconds()),
                    refusal.status >= 500 ? why : "");
    answer(core, call, refusal);
  };
  try {
    work();
  } catch (const Refused& refused) {
    refuse(refused.refusal(), refused.what());
  } catch (...) {
    const Error error = current_error("a request");
    refuse(refusal_of(error, call.id), error.what());
  }
}

namespace {

// The text of a prompt that is a part of the answer: as it was given, or of its ids.
std::string echo_of(const Engine& engine, const Prompt& prompt) {
  std::string text;
  for (const PromptPart& part : prompt) {
    if (const auto* ids = std::get_if<std::vector<TokenId>>(&part)) {
      text += engine.tokenizer().decode(*ids);
    } else {
      text += std::get<std::string>(part);
    }
  }
  return text;
}

std::vector<PromptTokens> prompts_of(Core& core, const Wanted& wanted) {
  if (wanted.endpoint == Endpoint::kChat) return {{conversation_tokens(core, wanted)}};
  std::vector<PromptTokens> prompts;
  for (const Prompt& prompt : wanted.prompts) {
    prompts.push_back({tokens_of(core.engine, prompt, wanted.add_special.value_or(true))});
    if (prompts.back().ids.empty()) {
      fail(ErrorKind::kInvalidRequest, "{}: is empty; give at least one token", Field{"prompt"});
    }
    if (wanted.echo) prompts.back().echo = echo_of(core.engine, prompt);
  }
  return prompts;
}

void require_choices(const Core& core, const Wanted& wanted) {
  const std::size_t choices = std::max<std::size_t>(1, wanted.prompts.size()) * wanted.n;
  const auto most = static_cast<std::size_t>(core.options.most_choices);
  if (choices <= most) return;
  fail(ErrorKind::kInvalidRequest, "{}: {} for each of {} prompts are {} answers; at most {} work",
       Field{"n"}, wanted.n, wanted.prompts.size(), choices, most);
}

// The engine's queue is full: others may take it. What it says of memory is of this request alone.
void start(Completion& completion, Core& core, std::vector<PromptTokens> prompts) {
  try {
    completion.start(std::move(prompts));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kOutOfMemory) throw;
    core.metrics.refused("queue");
    throw Refused(too_many(one_line(error.what(json_name)), core.retry_after()));
  }
}

void generate(Core& core, Call call) {
  const std::string body = std::move(call.request.body);
  const Call copy = call;  // answers what fails before there is a Completion
  guarded(core, copy, [&] {
    if (core.draining || core.stopping) {
      throw Refused(unavailable("the server ends, and takes no more requests"));
    }
    Wanted wanted = read_body(core, call, body);
    require_choices(core, wanted);
    std::vector<PromptTokens> prompts = prompts_of(core, wanted);
    wanted.prediction = core.engine.encode_prediction(std::exchange(wanted.prediction_text, {}));
    const auto completion = std::make_shared<Completion>(core, std::move(call), std::move(wanted));
    start(*completion, core, std::move(prompts));
  });
}

}  // namespace

void serve_chat(Core& core, Call call) { generate(core, std::move(call)); }
void serve_completions(Core& core, Call call) { generate(core, std::move(call)); }

}  // namespace quantspec::api
