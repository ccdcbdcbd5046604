// quantspec verify
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "apps/cli/command.h"
#include "apps/cli/messages.h"
#include "apps/cli/option_values.h"
#include "apps/cli/options.h"
#include "apps/cli/output.h"
#include "apps/cli/progress.h"
#include "apps/cli/prompt.h"
#include "apps/cli/terminal.h"
#include "base/error.h"
#include "base/json.h"
#include "base/shown.h"
#include "engine/receipt.h"
#include "tokenizer/tokenizer.h"

namespace quantspec::cli {

namespace {

struct VerifyArgs {
  EngineOptions engine;
  std::vector<std::string> files;
  bool json = false;
  bool quiet = false;
};

// An answer to check, and what shows it.
struct Answer {
  std::string name;  // of the file, and which of its answers
  Receipt receipt;
  std::optional<std::string> text = {};  // as it was shown; none: by its tokens alone
};

// A choice's text, of a chat or a completion.
std::optional<std::string> text_of(const Json& choice) {
  if (!choice.is_object()) return std::nullopt;
  const auto message = choice.find("message");
  const Json& holder = message != choice.end() && message->is_object() ? *message : choice;
  const auto text = holder.find(message != choice.end() ? "content" : "text");
  if (text == holder.end() || !text->is_string()) return std::nullopt;
  return text->get<std::string>();
}

void read_answers(const std::string& file, std::vector<Answer>& answers) {
  const std::string where = file == "-" ? "standard input" : file;
  PromptArgs source;
  source.file = file;
  const Json json = parse_json(read_prompt(source), where);
  const bool is_reply = json.is_object() && json.contains("receipts");
  const Json& receipts = is_reply ? json["receipts"] : json;
  if (!receipts.is_array() || receipts.empty()) {
    fail(ErrorKind::kCorruptFile,
         "{}: has no receipts; the server's replies have, where a request asks for them by "
         "\"receipt\": true",
         where);
  }
  const bool has_choices = is_reply && json.contains("choices") && json["choices"].is_array() &&
                           json["choices"].size() == receipts.size();
  for (std::size_t i = 0; i < receipts.size(); ++i) {
    const std::string name = receipts.size() == 1 ? where : fmt::format("{}, answer {}", where, i);
    answers.push_back({name, read_receipt(receipts[i], name)});
    if (has_choices) answers.back().text = text_of(json["choices"][i]);
  }
}

// What is wrong with it; empty: nothing.
std::string describe(const Engine& engine, const Answer& answer, const Verdict& verdict) {
  const Tokenizer& tokenizer = engine.tokenizer();
  const auto shown_token = [&](TokenId id) {
    return fmt::format("{} '{}'", id, shown(tokenizer.token_bytes(id)));
  };
  const std::vector<TokenId>& tokens = answer.receipt.tokens;
  if (verdict.good()) {
    if (answer.text && *answer.text != verdict.text) return "its text is not that of its tokens";
    return "";
  }
  const std::size_t at = *verdict.differs;
  if (at < tokens.size() && verdict.own) {
    return fmt::format("token {} is {}, and the model writes {}", at, shown_token(tokens[at]),
                       shown_token(*verdict.own));
  }
  if (at < tokens.size()) return fmt::format("the model ends the answer before token {}", at);
  return verdict.own ? fmt::format("the model goes on after its {} tokens with {}", at,
                                   shown_token(*verdict.own))
                     : fmt::format("after its {} tokens the model ends otherwise", at);
}

int run(VerifyArgs args) {
  set_up_log(args.quiet ? Loudness::kQuiet : Loudness::kNormal);
  args.engine.model = resolve_model(args.engine.model);
  if (follows_as_rank(args.engine)) return 0;
  warn_of_threads(args.engine.num_threads);
  std::vector<Answer> answers;
  for (const std::string& file : args.files) read_answers(file, answers);
  Progress progress(!args.quiet && is_terminal(stderr));
  const auto engine = load_engine(args.engine, progress);
  std::vector<Receipt> receipts;
  for (const Answer& answer : answers) receipts.push_back(answer.receipt);
  const std::vector<Verdict> verdicts = verify(*engine, receipts);

  std::size_t tokens = 0, wrong = 0;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const std::string fault = describe(*engine, answers[i], verdicts[i]);
    tokens += receipts[i].tokens.size();
    wrong += !fault.empty();
    if (!args.json) {
      write_output(fmt::format("{}: {}\n", answers[i].name, fault.empty() ? "ok" : fault));
      continue;
    }
    list.push_back({{"answer", answers[i].name},
                    {"ok", fault.empty()},
                    {"tokens", receipts[i].tokens.size()},
                    {"differs", nullptr},
                    {"why", fault}});
    if (verdicts[i].differs) list.back()["differs"] = *verdicts[i].differs;
  }
  const double seconds = verdicts.empty() ? 0 : verdicts.front().seconds;
  if (args.json) {
    write_output(dump_json(nlohmann::ordered_json{{"answers", std::move(list)},
                                                  {"wrong", wrong},
                                                  {"tokens", tokens},
                                                  {"seconds", seconds},
                                                  {"load_ms", engine->load_ms()}}) +
                 "\n");
  }
  if (!args.quiet) {
    say(fmt::format(
        "{} of {} answers are the model's own; {} tokens in {:.2f} s, prompts and all\n",
        answers.size() - wrong, answers.size(), tokens, seconds));
  }
  return wrong > 0 ? 1 : 0;
}

}  // namespace

Subcommand add_verify(CLI::App& app) {
  CLI::App* command = add_command(app, "verify", "Check that answers are the model's own.");
  const auto args = std::make_shared<VerifyArgs>();
  command
      ->add_option(
          "FILE", args->files,
          "replies of quantspec serve to requests with\n\"receipt\": true; -: standard input")
      ->required()
      ->option_text(" ");
  add_target_options(*command, args->engine);
  add_ranks(*command, args->engine, /*or_launched=*/true);
  add_gpus(*command, args->engine);
  add_chat_template(*command, args->engine.chat_template);
  command->option_defaults()->group("Output");
  command->add_flag("--json", args->json, "print one JSON object");
  command->add_flag("-q,--quiet", args->quiet, "nothing on standard error but errors");
  finish_command(*command,
                 "Examples:\n"
                 "  quantspec verify answer.json\n"
                 "  quantspec verify -m model.gguf answers/*.json --json\n\n"
                 "Answers that were written greedily or with a seed come again: the model\n"
                 "reads each, many tokens in a pass, and says where it would have written\n"
                 "another. Exit code: 0, 1 where one is wrong or cannot be checked, 2 for a\n"
                 "wrong command line.");
  return {command, [args] { return run(*args); }};
}

}  // namespace quantspec::cli
