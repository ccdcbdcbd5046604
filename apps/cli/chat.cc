// quantspec chat
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "apps/cli/command.h"
#include "apps/cli/conversation.h"
#include "apps/cli/flags.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/lines.h"
#include "apps/cli/messages.h"
#include "apps/cli/options.h"
#include "apps/cli/output.h"
#include "apps/cli/progress.h"
#include "apps/cli/saved_session.h"
#include "base/error.h"
#include "engine/chat_prompts.h"
#include "tokenizer/tokenizer.h"

namespace quantspec::cli {

namespace {

constexpr int kContinued = 256;  // tokens, of a model that does not answer

constexpr std::string_view kHelp =
    "/reset        forget what was said\n"
    "/system TEXT  what the model is told before all else; without a text: nothing\n"
    "/save FILE    write the conversation as JSON\n"
    "/load FILE    go on with one that was written\n"
    "/stats        what the last answer took\n"
    "/exit         end, as Ctrl-D does\n"
    "Arrow keys edit a line and bring back those before it.\n"
    "A line that ends in \\ goes on in the next; those between two \"\"\" are one text.\n"
    "Ctrl-C stops an answer.\n";

class Chat {
 public:
  explicit Chat(const ChatArgs& args)
      : args_(args.generate),
        system_(args.system),
        conversation_(args.system),
        session_(args.generate.session),
        typed_(isatty(STDIN_FILENO) == 1),
        lines_(typed_ && is_terminal(stdout)),
        progress_(!args_.quiet && is_terminal(stderr)) {
    if (!args.load.empty()) conversation_.load(args.load);
  }

  int run() {
    load();
    const PolledInterrupts polled;
    while (const auto said = next_text()) {
      if (!said->quoted && said->text.starts_with('/')) {
        if (!obey(said->text)) break;
      } else if (!said->text.empty()) {
        answer(said->text);
      }
    }
    if (typed_ && is_terminal(stdout)) write_output("\n");
    return 0;
  }

 private:
  void load() {
    const PolledInterrupts polled;
    engine_ = load_engine(args_.engine, progress_);
    sampling_ = choose_sampling(args_.sampling, engine_->config().generation, false);
    spdlog::debug("backend {}", engine_->backend_description());
    spdlog::debug("sampling: {}", describe(sampling_));
    require_use_of_budget(args_, *engine_);
    warn_of(args_, sampling_);
    if (session_.given()) {
      session_.load(*engine_, &conversation_);
      if (!system_.empty()) conversation_.set_system(system_);
    }
    if (args_.quiet) return;
    say(fmt::format("{} on {}; a context of {} tokens. /help lists commands.\n",
                    name_of_model(args_.engine.model), engine_->backend_name(),
                    engine_->ctx_size()));
    if (conversation_.turns() > 0) {
      say(fmt::format("It goes on after {} messages.\n", conversation_.turns()));
    }
    if (engine_->chat_prompts().empty()) {
      say("This model has no chat template: it was not made to answer, and continues the text.\n");
      if (args_.generation.predict < 0)
        say(fmt::format("-n 2000 has it write more than {} tokens.\n", kContinued));
    }
  }

  struct Said {
    std::string text;
    bool quoted = false;  // it is no command
  };

  // Of one line or several; empty where it was given up, nullopt: there is no more.
  std::optional<Said> next_text() {
    auto line = lines_.next("> ");
    const bool quoted = line && *line == "\"\"\"";
    std::string text;
    if (quoted) {
      while ((line = lines_.next("")) && *line != "\"\"\"") text += *line + "\n";
      if (!text.empty()) text.pop_back();
    } else {
      while (line && line->ends_with('\\')) {
        line->back() = '\n';
        text += *line;
        line = lines_.next("  ");
      }
      if (line) text += *line;
    }
    if (lines_.given_up()) return Said{};
    if (!line && text.empty()) return std::nullopt;
    return Said{std::move(text), quoted};
  }

  // False: the conversation ends.
  bool obey(const std::string& line) {
    const std::size_t space = line.find(' ');
    const std::string command = line.substr(0, space);
    const std::string rest = space == line.npos ? std::string() : line.substr(space + 1);
    try {
      if (command == "/exit" || command == "/quit") return false;
      if (command == "/help") {
        say(kHelp);
      } else if (command == "/reset") {
        conversation_.reset();
        text_.clear();
        save_session();
        say("All is forgotten but what /system says.\n");
      } else if (command == "/system") {
        conversation_.set_system(rest);
      } else if (command == "/stats") {
        say(last_.empty() ? "There was no answer yet.\n" : last_);
      } else if ((command == "/save" || command == "/load") && !rest.empty()) {
        command == "/save" ? conversation_.save(rest) : conversation_.load(rest);
        say(fmt::format("{} messages {} {}.\n", conversation_.turns(),
                        command == "/save" ? "written to" : "read from", rest));
      } else {
        say(command == "/save" || command == "/load"
                ? fmt::format("{} needs a file: {} FILE\n", command, command)
                : fmt::format("There is no command {}; /help lists them.\n", command));
      }
    } catch (const Error& error) {
      complain(error);
    }
    return true;
  }

  static void complain(const Error& error) {
    say_line(error.kind() == ErrorKind::kInternal ? "internal error" : "error",
             error.what(flag_of));
  }

  // What is refused is as if it had not been said.
  void answer(const std::string& text) {
    conversation_.add_user(text);
    try {
      require_text(text, "standard input");
      std::vector<TokenId> tokens = conversation_.tokens(*engine_);
      GenerateResult result = generate(tokens);
      conversation_.add_answer(result.text);
      last_ = describe_answer(result);
      tokens.insert(tokens.end(), result.tokens.begin(), result.tokens.end());
      text_ = std::move(tokens);
      save_session();
      if (result.stop_reason == StopReason::kContext) {
        tell("(the context is full: /reset, or a larger --ctx-size, makes room)\n");
      }
      spdlog::debug("{}", result.draft_choice);
      read_ahead();
    } catch (const Interrupted&) {  // before there was an answer
      progress_.clear();
      conversation_.drop_last();
    } catch (const Error& error) {
      progress_.clear();
      if (!ends_line_) write_output("\n");
      conversation_.drop_last();
      if (!typed_) throw;
      complain(error);
    }
    if (interrupted()) {
      if (!typed_ || interrupted_exit_code() != 130) throw Interrupted();
      forget_interrupt();
      tell("(stopped)\n");
    }
  }

  // While somebody reads the answer and thinks about the next question. Where there is no room for
  // one, asking it says so.
  void read_ahead() {
    try {
      engine_->read_ahead(conversation_.next_tokens(*engine_));
    } catch (const Error&) {
    }
  }

  // NOTE: what was said stays said where it cannot be written.
  void save_session() {
    if (!session_.given()) return;
    try {
      session_.save(*engine_, text_, &conversation_);
    } catch (const Error& error) {
      if (!typed_) throw;
      complain(error);
    }
  }

  void tell(std::string_view text) const {
    if (!args_.quiet) say(text);
  }

  GenerateResult generate(const std::vector<TokenId>& prompt) {
    GenerateOptions options = args_.generation;
    options.sampling = sampling_.params;
    // A base model rarely ends a text.
    if (options.predict < 0 && engine_->chat_prompts().empty()) options.predict = kContinued;
    options.spec_sampling = sampling_.mode;
    options.progress = progress_.callback(prompt.size());
    TextOutput output(use_color(args_.color, stdout));
    ends_line_ = true;
    // What was said before is found in the cache.
    GenerateResult result =
        engine_->create_session()->generate(prompt, options, [&](const TokenEvent& event) {
          progress_.clear();
          output.write(event.text, event.drafted, event.looked_up);
          if (!event.text.empty()) ends_line_ = event.text.ends_with('\n');
          return !interrupted();
        });
    progress_.clear();
    if (!ends_line_) write_output("\n");
    ends_line_ = true;
    return result;
  }

  static std::string describe_answer(const GenerateResult& result) {
    std::string text = fmt::format(
        "{} tokens of prompt, {} of them found; first token after {:.0f} ms\n"
        "{} tokens of answer, {:.1f} tokens/s\n",
        result.prompt_tokens, result.cached_tokens, result.timings.prefill_ms, result.tokens.size(),
        result.timings.decode_tokens_per_second);
    const RoundStats& drafts = result.speculation;
    if (drafts.drafted == 0) return text + "nothing was drafted\n";
    return text + fmt::format("{} of {} drafted tokens accepted, {:.2f} tokens a round\n",
                              drafts.accepted, drafts.drafted, drafts.tokens_per_round());
  }

  const GenerateArgs& args_;
  std::string system_;  // as it was given
  Conversation conversation_;
  SavedSession session_;
  bool typed_;  // by somebody who can mend what is refused
  Lines lines_;
  Progress progress_;
  std::unique_ptr<Engine> engine_;
  ChosenSampling sampling_;
  std::string last_;
  std::vector<TokenId> text_;  // of the last answer, with its prompt
  bool ends_line_ = true;      // what was written of an answer
};

}  // namespace

int run(const ChatArgs& given) {
  set_up_log(given.generate.loudness());
  ChatArgs args = given;
  if (follows_as_rank(args.generate.engine)) return 0;
  warn_of_threads(args.generate.engine.num_threads);
  return Chat(args).run();
}

}  // namespace quantspec::cli
