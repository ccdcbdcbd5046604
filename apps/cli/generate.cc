// quantspec generate
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "apps/cli/command.h"
#include "apps/cli/conversation.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/messages.h"
#include "apps/cli/options.h"
#include "apps/cli/output.h"
#include "apps/cli/progress.h"
#include "apps/cli/report.h"
#include "apps/cli/saved_session.h"
#include "base/error.h"
#include "base/json.h"
#include "base/system_memory.h"
#include "engine/chat_prompts.h"

namespace quantspec::cli {

namespace {

std::unique_ptr<Engine> load(const GenerateArgs& args, Progress& progress) {
  const PolledInterrupts polled;
  auto engine = load_engine(args.engine, progress);
  spdlog::debug("model {}, loaded in {:.2f} s", args.engine.model.string(),
                engine->load_ms() / 1e3);
  spdlog::debug("backend {}", engine->backend_description());
  spdlog::debug("context of {} tokens", engine->ctx_size());
  return engine;
}

// One generation in a session of its own. `output`: where the text goes as it comes, or null.
// salt: no run finds what one of another has read.
Run generate(Engine& engine, const std::vector<TokenId>& prompt, GenerateOptions options,
             Progress& progress, std::string_view stage, std::string_view salt,
             TextOutput* output) {
  const int room = engine.ctx_size() - static_cast<int>(prompt.size());
  const int wanted = options.predict < 0 ? room : std::min(room, options.predict);
  int written = 0;
  options.salt = salt;
  options.progress = progress.callback(prompt.size());
  const auto session = engine.create_session();
  Run run;
  run.backend = engine.backend_description();
  run.result = session->generate(prompt, options, [&](const TokenEvent& event) {
    if (output != nullptr) {
      progress.clear();
      output->write(event.text, event.drafted, event.looked_up);
    } else {
      progress.update(stage, static_cast<double>(++written) / wanted, wanted);
    }
    return !interrupted();
  });
  progress.clear();
  if (output != nullptr) output->finish();
  run.load_ms = engine.load_ms();
  run.peak_rss_bytes = peak_rss_bytes();
  spdlog::debug("{}: {}", stage, run.result.draft_choice);
  return run;
}

// A few tokens, with drafts and without, silently. Of two runs that are compared the first would
// else pay alone for what is done once, such as loading kernels.
void warm_up(Engine& engine, const std::vector<TokenId>& prompt, GenerateOptions options,
             Progress& progress) {
  constexpr std::size_t kTokens = 16;
  options.predict = kTokens;
  options.ignore_eos = true;
  const std::vector<TokenId> begin(prompt.begin(),
                                   prompt.begin() + std::min(kTokens, prompt.size()));
  for (const std::optional<int> draft_len : {options.draft_len, std::optional(0)}) {
    options.draft_len = draft_len;
    generate(engine, begin, options, progress, "warm-up", "warm-up", nullptr);
  }
}

// The same without drafts, silently; nullopt when it was interrupted.
std::optional<Run> generate_plainly(Engine& engine, const std::vector<TokenId>& prompt,
                                    GenerateOptions options, Progress& progress) {
  options.draft_len = 0;
  try {
    Run run = generate(engine, prompt, options, progress, "baseline", "baseline", nullptr);
    if (!interrupted()) return run;
  } catch (const Interrupted&) {
    progress.clear();
  }
  return std::nullopt;
}

bool tints_text(const GenerateArgs& args) { return !args.json && use_color(args.color, stdout); }

void print(const GenerateArgs& args, const std::string& text) {
  if (args.quiet) return;
  say(text + (tints_text(args) ? legend(use_color(args.color, stderr)) : ""));
}

int finish(const GenerateArgs& args, const Run& run) {
  if (args.json) write_output(dump_json(to_json(run)) + "\n");
  print(args, summary(run));
  return interrupted() ? interrupted_exit_code() : 0;
}

int finish(const GenerateArgs& args, const Run& run, const Run& baseline, bool comparable) {
  const Comparison comparison(run, baseline, comparable);
  if (args.json) write_output(dump_json(to_json(run, baseline, comparison)) + "\n");
  print(args, table(run, baseline, comparison));
  if (comparable && !comparison.identical()) {
    fail(ErrorKind::kInternal, "plain decoding gave other tokens, from token {} on",
         *comparison.differs_from);
  }
  return 0;
}

// All that is read: what the session has, and the prompt. Fills the conversation of --chat.
std::vector<TokenId> prompt_tokens(Engine& engine, const GenerateArgs& args,
                                   const std::string& text, SavedSession& session,
                                   Conversation& conversation) {
  if (args.chat && engine.chat_prompts().empty()) {
    fail(ErrorKind::kInvalidRequest,
         "{}: has no chat template, being a base model; without --chat it continues the prompt",
         args.engine.model.string());
  }
  std::vector<TokenId> tokens;
  if (session.given()) tokens = session.load(engine, args.chat ? &conversation : nullptr);
  if (args.chat) {
    if (!args.system.empty()) conversation.set_system(args.system);
    conversation.add_user(text);
    return conversation.tokens(engine);
  }
  const int room = engine.ctx_size() - static_cast<int>(tokens.size());
  const auto prompt = engine.encode(text, tokens.empty(), std::max(room, 0));
  tokens.insert(tokens.end(), prompt.begin(), prompt.end());
  return tokens;
}

void save(SavedSession& session, Engine& engine, const std::vector<TokenId>& prompt,
          const GenerateResult& result, Conversation* conversation) {
  std::vector<TokenId> text = prompt;
  text.insert(text.end(), result.tokens.begin(), result.tokens.end());
  if (conversation != nullptr) conversation->add_answer(result.text);
  session.save(engine, text, conversation);
}

}  // namespace

void require_use_of_budget(const GenerateArgs& args, const Engine& engine) {
  if (!args.engine.draft_budget.given() || engine.drafts_by_budget()) return;
  throw UsageError(fmt::format(
      "--draft-budget {}: {} reads all pages; it is for a sparse plan, such as quantspec+sparse",
      args.engine.draft_budget.text(), args.engine.plan));
}

void warn_of(const GenerateArgs& args, const ChosenSampling& sampling) {
  warn_of_threads(args.engine.num_threads);
  const bool repeats = sampling.mode == SpecSampling::kCoupled || sampling.params.greedy();
  if (!args.sampling.seed || repeats || !args.depends_on_time()) return;
  warn(
      "--spec-sampling rejection: the seed may give another text next time, as what is drafted "
      "follows from times; --spec-sampling coupled repeats it");
}

namespace {

std::string read_prediction(const GenerateArgs& args) {
  if (!args.prediction) return "";
  if (*args.prediction == "-") throw UsageError("--prediction -: name a file; the prompt may be -");
  std::string text = read_text({.file = args.prediction});
  if (text.empty())
    throw UsageError(fmt::format("--prediction {}: is empty", args.prediction->string()));
  return text;
}

}  // namespace

int run(const GenerateArgs& given) {
  set_up_log(given.loudness());
  GenerateArgs args = given;
  if (follows_as_rank(args.engine)) return 0;
  SavedSession session(args.session);
  const std::string text = read_prompt(args.prompt);
  const std::string prediction = read_prediction(args);
  Progress progress(!args.quiet && is_terminal(stderr));
  const auto engine = load(args, progress);

  const ChosenSampling sampling =
      choose_sampling(args.sampling, engine->config().generation, args.compare);
  GenerateOptions options = args.generation;
  options.sampling = sampling.params;
  options.spec_sampling = sampling.mode;
  options.prediction = engine->encode_prediction(prediction);
  spdlog::debug("sampling: {}", describe(sampling));
  warn_of(args, sampling);
  if (!args.chat && !engine->chat_prompts().empty()) {
    spdlog::debug(
        "the model has a chat template, which --chat uses: the prompt is continued as it is");
  }
  // Not polled for interrupts: until the text begins, there is nothing to lose.
  Conversation conversation;
  const std::vector<TokenId> prompt = prompt_tokens(*engine, args, text, session, conversation);
  require_use_of_budget(args, *engine);

  const PolledInterrupts polled;
  TextOutput output(tints_text(args));
  if (args.compare) warm_up(*engine, prompt, options, progress);
  // Where runs are compared, so is prefill.
  Run run = generate(*engine, prompt, options, progress, "decode", args.compare ? "decode" : "",
                     args.json ? nullptr : &output);
  run.sampling = sampling;
  if (session.given()) {
    save(session, *engine, prompt, run.result, args.chat ? &conversation : nullptr);
  }
  if (!args.compare || interrupted()) return finish(args, run);

  auto baseline = generate_plainly(*engine, prompt, options, progress);
  if (!baseline) {
    print(args, "\nthe comparison was interrupted; this is the self-speculative run\n");
    return finish(args, run);
  }
  baseline->sampling = sampling;
  const bool comparable =
      options.sampling.greedy() || options.spec_sampling == SpecSampling::kCoupled;
  return finish(args, run, *baseline, comparable);
}

}  // namespace quantspec::cli
