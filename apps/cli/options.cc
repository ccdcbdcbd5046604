#include "apps/cli/options.h"

#include <quantspec/version.h>

#include <algorithm>
#include <sstream>
#include <utility>
#include <vector>

#include "apps/cli/command.h"
#include "apps/cli/limits.h"
#include "apps/cli/option_values.h"
#include "apps/cli/output.h"
#include "base/error.h"

namespace quantspec::cli {

namespace {

void add_draft_len(CLI::App& app, std::optional<int>& target) {
  add_value(app, "--draft-len", "auto|N",
            "tokens to draft each round, 0 to 16; 0: no speculation\n"
            "(default: auto, what measures fastest, again and again)",
            [&target](const std::string& text) {
              target = parse_number<int>(text);
              const bool fits = target && *target >= 0 && *target <= kMaxDraftLen;
              if (fits || text == "auto") return;
              throw UsageError(fmt::format("--draft-len '{}': must be auto or from 0 to {}", text,
                                           kMaxDraftLen));
            });
}

// --- groups of options ---------------------------------------------------------------------------

void add_engine(CLI::App& app, EngineOptions& engine, bool runs = true) {
  engine.sequences = 1;  // commands generate one text at a time
  app.option_defaults()->group("Model");
  add_int(app, "-c,--ctx-size", "N",
          "tokens of prompt and text (default: as the model says,\nor what fits of that)",
          engine.ctx_size, 1, kMostContext);
  add_int(app, "--page-size", "N",
          "tokens of a page of the cache: 32, 64, 128 or 256\n"
          "(default: 64 for heads of 64 channels, else 128)",
          engine.page_size, 1);
  add_target_weights(app, engine.target_weights);
  add_choice<DraftWeights>(app, "--draft-weights", "W",
                           "bits of the weights that drafts read, over the KV of the\n"
                           "plan quantspec: 4, 8 or full; or auto: 4 and 8 are kept\n"
                           "for plans to read (default: auto)",
                           {{"auto", DraftWeights::kAuto},
                            {"4", DraftWeights::kUpper},
                            {"8", DraftWeights::kBoth},
                            {"full", DraftWeights::kFull}},
                           engine.draft_weights);
  add_path(app, "--draft-store", "FILE",
           "weights that drafts read, from quantspec prepare\n"
           "(default: made while loading)",
           engine.draft_store);
  add_choice<KvStore>(app, "--kv-cache", "KIND",
                      "hierarchical: 8 bits for the target, 4 for drafts; or\n"
                      "full: fp16 for both, the plain cache, as a baseline\n"
                      "(default: hierarchical)",
                      {{"hierarchical", KvStore::kHierarchical}, {"full", KvStore::kFull}},
                      engine.kv_store);
  add_choice<std::string>(
      app, "--backend", "NAME",
      "cuda, cpu, or reference, which is exact and very slow\n"
      "(default: auto, cuda where there is a GPU, else cpu)",
      {{"auto", "auto"}, {"cuda", "cuda"}, {"cpu", "cpu"}, {"reference", "reference"}},
      engine.backend);
  add_device(app, engine.device);
  add_ranks(app, engine, /*or_launched=*/runs);
  add_gpus(app, engine);
}

void add_prompt(CLI::App& app, PromptArgs& prompt, const std::string& what) {
  app.option_defaults()->group("Prompt");
  add_value(app, "-p,--prompt", "TEXT", what,
            [&prompt](const std::string& value) { prompt.text = value; });
  add_value(app, "-f,--file", "FILE",
            "read it from a file or pipe; -: standard input, as\n"
            "without -p and -f; one newline at its end is dropped",
            [&prompt](const std::string& value) { prompt.file = value; });
}

void add_sampling(CLI::App& app, SamplingArgs& sampling) {
  app.option_defaults()->group(
      "Sampling (defaults: the model's generation_config.json, where it says)");
  add_float(app, "--temp", "temperature; 0: always the likeliest (default: 0.8)",
            sampling.temperature);
  add_int(app, "--top-k", "N", "only the N likeliest tokens; 0: off (default: 40)", sampling.top_k,
          0);
  add_float(app, "--top-p", "only the likeliest, up to this share; 1: off\n(default: 0.95)",
            sampling.top_p);
  add_float(app, "--min-p", "only those within this share of the best; 0: off\n(default: 0.05)",
            sampling.min_p);
  add_float(app, "--repeat-penalty", "weakens tokens that came lately; 1: off (default: 1)",
            sampling.repeat_penalty);
  add_int(app, "--repeat-last-n", "N",
          "how many tokens back that is; -1: all, 0: off\n(default: 64)", sampling.repeat_last_n,
          -1);
  add_float(app, "--presence-penalty",
            "lowers logits of tokens that the text has got; 0: off\n(default: 0)",
            sampling.presence_penalty);
  add_float(app, "--frequency-penalty", "the same, each time that it got them (default: 0)",
            sampling.frequency_penalty);
  add_seed(app,
           "of the random numbers: repeats a text (default: another\n"
           "each time, shown by -v). With\n"
           "--spec-sampling rejection it may not, as draft lengths\n"
           "follow from times",
           [&sampling](std::uint64_t seed) { sampling.seed = seed; });
}

LogitBias parse_logit_bias(const std::string& text) {
  const std::size_t sign = text.find_first_of("+-");
  if (sign != std::string::npos) {
    const auto id = parse_number<TokenId>(text.substr(0, sign));
    const auto add = parse_number<float>(text.substr(sign + (text[sign] == '+')));
    if (id && *id >= 0 && add) return {*id, *add};
  }
  throw UsageError(fmt::format(
      "--logit-bias '{}': must be a token's id and what is added, as 15043+5 or 15043-100", text));
}

void add_generation(CLI::App& app, GenerateArgs& args, const char* tokens) {
  app.option_defaults()->group("Length and end");
  add_int(app, "-n,--predict", "N", tokens, args.generation.predict, -1, kMostTokens, 0);
  app.add_option("--stop", args.generation.stop, "end before this text; may be given again")
      ->option_text("TEXT")
      ->allow_extra_args(false);
  add_int(app, "--min-tokens", "N", "tokens that nothing ends the text before (default: 0)",
          args.generation.min_tokens, 0, kMostTokens);
  app.add_option_function<std::vector<std::string>>(
         "--logit-bias",
         [&args](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) {
             args.generation.logit_bias.push_back(parse_logit_bias(text));
           }
         },
         "added to a token's logit, as 15043+5 or 15043-100; may\nbe given again")
      ->option_text("ID+X")
      ->allow_extra_args(false);
  app.add_flag("--ignore-eos", args.generation.ignore_eos, "go on after the model's end of text");
}

void add_speculation(CLI::App& app, GenerateArgs& args) {
  app.option_defaults()->group("Speculation");
  add_draft_len(app, args.generation.draft_len);
  add_plan(app, args.engine.plan);
  add_draft_budget(app,
                   "what sparse plans read, auto's too: tokens, or a share\n"
                   "such as 1/8 (default: 1/4; for auto 1/16 as well)",
                   args.engine.draft_budget);
  add_choice<SpecSampling>(
      app, "--spec-sampling", "HOW",
      "rejection: the text has the model's distribution;\n"
      "coupled: and is, for a seed, always the same, and what\n"
      "--draft-len 0 writes (default: rejection; with --seed\n"
      "or where runs are compared: coupled)",
      {{"rejection", SpecSampling::kRejection}, {"coupled", SpecSampling::kCoupled}},
      args.sampling.mode);
}

void add_color(CLI::App& app, Color& color, Color otherwise, const char* what) {
  color = otherwise;
  add_choice<Color>(app, "--color", "WHEN", what,
                    {{"auto", Color::kAuto}, {"always", Color::kAlways}, {"never", Color::kNever}},
                    color);
}

void add_loudness(CLI::App& app, GenerateArgs& args) {
  app.add_flag("-q,--quiet", args.quiet, "nothing on standard error but errors");
  app.add_flag("-v,--verbose", args.verbose, "say what is chosen, and why");
}

void add_output(CLI::App& app, GenerateArgs& args) {
  app.option_defaults()->group("Output");
  app.add_flag("--json", args.json, "print one JSON object at the end instead of the text");
  add_color(
      app, args.color, Color::kAuto,
      "tint drafted text: auto, always or never (default:\nauto, on a terminal without $NO_COLOR)");
  add_loudness(app, args);
}

// --- subcommands ---------------------------------------------------------------------------------

void add_session(CLI::App& app, std::filesystem::path& session, const char* help) {
  add_path(app, "--session", "FILE", help, session);
}

void add_generate(CLI::App& app, GenerateArgs& args) {
  CLI::App* command = add_command(app, "generate", "Continue a text.");
  args.generation.predict = 256;
  add_prompt(*command, args.prompt, "the text to continue");
  command->add_flag("--chat", args.chat,
                    "the text is what a user says, by the model's chat\ntemplate");
  add_value(*command, "--system", "TEXT", "with --chat: what the model is told before",
            [&args](const std::string& text) { args.system = text; });
  add_chat_template(*command, args.engine.chat_template);
  add_session(*command, args.session, "go on with the text in FILE, and write it back");
  add_model(*command, args.engine.model);
  add_engine(*command, args.engine);
  add_threads(*command, args.engine.num_threads);
  add_generation(*command, args, "tokens to write; -1: until the end (default: 256)");
  add_sampling(*command, args.sampling);
  add_speculation(*command, args);
  add_value(*command, "--prediction", "FILE",
            "what the text may be, but for changes: drafts are\n"
            "looked up there, too",
            [&args](const std::string& value) { args.prediction = value; });
  command->add_flag("--compare", args.compare,
                    "then decode plainly too, and print both side by side");
  add_output(*command, args);
  finish_command(*command,
                 "Examples:\n"
                 "  quantspec generate -p 'It was a dark night' -n 100\n"
                 "  quantspec generate -f book.txt --compare\n"
                 "  cat book.txt | quantspec generate --temp 0 --json > out.json\n\n"
                 "The text goes to standard output, everything else to standard error.\n"
                 "Exit code: 0, 1 for a failure, 2 for a wrong command line, 130 after Ctrl-C,\n"
                 "143 after SIGTERM.");
}

void add_chat(CLI::App& app, ChatArgs& args) {
  CLI::App* command = add_command(app, "chat", "Talk with a model in the terminal.");
  GenerateArgs& generate = args.generate;
  generate.generation.predict = -1;
  command->option_defaults()->group("Conversation");
  add_value(*command, "--system", "TEXT", "what the model is told before you speak",
            [&args](const std::string& text) { args.system = text; });
  add_chat_template(*command, generate.engine.chat_template);
  add_path(*command, "--load", "FILE", "go on with a conversation that /save wrote", args.load);
  add_session(*command, generate.session,
              "go on with the conversation in FILE, and write it\nback after every answer");
  add_model(*command, generate.engine.model);
  add_engine(*command, generate.engine);
  add_threads(*command, generate.engine.num_threads);
  add_generation(*command, generate, "tokens of an answer; -1: until its end (default: -1)");
  add_sampling(*command, generate.sampling);
  add_speculation(*command, generate);
  command->option_defaults()->group("Output");
  add_color(*command, generate.color, Color::kNever,
            "tint drafted text: auto, always or never (default:\nnever)");
  add_loudness(*command, generate);
  finish_command(
      *command,
      "Examples:\n"
      "  quantspec chat -m SmolLM2-135M-Instruct.Q4_1.gguf\n"
      "  quantspec chat --system 'You answer in rhymes.' --temp 0.6\n\n"
      "A line is what you say; one that ends in \\ goes on in the next, and lines\n"
      "between two of \"\"\" are one text. /help lists commands. Ctrl-C stops an answer,\n"
      "Ctrl-D ends. A model without a chat template continues the text instead.");
}

void add_info(CLI::App& app, InfoArgs& args) {
  CLI::App* command = add_command(app, "info", "Print what a model is, and what memory it needs.");
  add_model(*command, args.engine.model);
  add_engine(*command, args.engine, /*runs=*/false);
  command->option_defaults()->group("Output");
  command->add_flag("--json", args.json, "print one JSON object");
  finish_command(*command,
                 "Examples:\n"
                 "  quantspec info -m ~/models/Llama-3.2-1B\n"
                 "  quantspec info -c 100000 --draft-weights 4");
}

void add_tokenize(CLI::App& app, TokenizeArgs& args) {
  CLI::App* command = add_command(app, "tokenize", "Print the tokens of a text.");
  add_prompt(*command, args.prompt, "the text");
  add_model(*command, args.model);
  command->option_defaults()->group("Output");
  command->add_flag("--ids", args.only_ids, "only the ids, on one line");
  command->add_flag("--json", args.json, "print one JSON object");
  command->add_flag("--no-bos", args.no_bos, "without what is put around a text, such as BOS");
  finish_command(*command,
                 "Examples:\n"
                 "  quantspec tokenize -p 'It was a dark night'\n"
                 "  quantspec tokenize -f book.txt --ids > ids.txt");
}

// --- the whole -----------------------------------------------------------------------------------

constexpr std::pair<const char*, const char*> kExclusive[] = {
    {"--prompt", "--file"},
    {"--quiet", "--verbose"},
    {"--ids", "--json"},
    {"--system", "--load"},
    {"--session", "--load"},
    {"--session", "--compare"},
    {"--ranks", "--gpus"},
    {"--gpus", "--backend"},
    {"--plan", "--draft-weights"},
    {"--plan", "--kv-cache"},
    {"--draft-store", "--draft-weights"},
};

void refuse_both(const CLI::App& command, const char* one, const char* other) {
  for (const char* option : {one, other}) {
    const CLI::Option* known = command.get_option_no_throw(option);
    if (known == nullptr || known->count() == 0) return;
  }
  throw UsageError(fmt::format("{} and {} exclude each other", one, other));
}

// The help or the version.
std::string answer(const CLI::App& app, const CLI::Success& asked) {
  std::ostringstream out;
  app.exit(asked, out);
  std::string text = out.str();
  for (std::size_t at; (at = text.find("\n\n\n")) != std::string::npos;) text.erase(at, 1);
  if (!text.ends_with('\n')) text += '\n';
  return text;
}

// How many letters one must add, drop, change or swap with the next to make `a` of `b`.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> least(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        least[i][j] = i + j;
        continue;
      }
      const bool same = a[i - 1] == b[j - 1];
      least[i][j] = std::min(
          {least[i - 1][j] + 1, least[i][j - 1] + 1, least[i - 1][j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) least[i][j] = std::min(least[i][j], least[i - 2][j - 2] + 1);
    }
  }
  return least[a.size()][b.size()];
}

// "; did you mean NAME?" of the name that is near what was typed; empty: none is.
std::string did_you_mean(std::string_view typed, const std::vector<std::string>& names) {
  constexpr std::size_t kLongest = 40;  // of any name, and more
  typed = typed.substr(0, std::min(typed.find('='), kLongest));
  std::string_view best;
  std::size_t least = typed.size() / 3 + 1;  // what is farther is something else
  for (const std::string& name : names) {
    const bool begins = (typed.size() > 3 && name.starts_with(typed)) ||
                        (name.size() > 5 && typed.starts_with(name));
    const std::size_t letters = begins ? 1 : distance(typed, name);
    if (letters >= least) continue;
    best = name;
    least = letters;
  }
  return best.empty() ? std::string() : fmt::format("; did you mean {}?", best);
}

// All that could stand where something unknown stood: commands, or options.
std::vector<std::string> known_names(const CLI::App& app, bool options) {
  std::vector<std::string> names;
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  if (options) {
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  } else {
    for (const CLI::App* one : command->get_subcommands({})) names.push_back(one->get_name());
  }
  return names;
}

// What CLI11 found wrong, in our words where its own are not plain.
std::string describe(const CLI::App& app, const CLI::ParseError& error) {
  const bool wants_command = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  const bool has_extras = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  const auto unknown = app.remaining(true);
  if ((wants_command || has_extras) && !unknown.empty()) {
    const bool option = unknown.front().starts_with('-');
    const bool model = !option && unknown.front().ends_with(".gguf");
    const std::string hint = model ? "; a model comes after -m"
                                   : did_you_mean(unknown.front(), known_names(app, option));
    return fmt::format("unknown {} '{}'{}", option ? "option" : "argument", unknown.front(), hint);
  }
  if (!wants_command) return error.what();
  std::string names;
  for (const std::string& name : known_names(app, false)) {
    names += (names.empty() ? "" : ", ") + name;
  }
  return "a subcommand is needed: " + names;
}

// Options that are good one by one and make no sense together.
void require_sense(const GenerateArgs& args) {
  if (args.engine.draft_budget.given() && args.drafts_by_own_plans()) {
    throw UsageError(
        fmt::format("--draft-budget {}: is for sparse plans; --draft-len 0, --draft-weights and "
                    "--kv-cache full "
                    "have none",
                    args.engine.draft_budget.text()));
  }
  if (args.compare && args.generation.draft_len == 0) {
    throw UsageError("--compare needs drafts to compare; --draft-len 0 is plain decoding");
  }
  if (args.compare && args.quiet && !args.json) {
    throw UsageError("--compare has nowhere to print with --quiet; --json works with both");
  }
  if (!args.system.empty() && !args.chat) {
    throw UsageError("--system: is a message of a conversation; --chat makes one");
  }
  for (const std::string& stop : args.generation.stop) {
    if (stop.empty()) throw UsageError("--stop '': must be some text");
  }
}

template <typename Args>
std::function<int()> runner(Args& args, std::filesystem::path& model) {
  model = resolve_model(model);
  return [args] { return run(args); };
}

}  // namespace

bool GenerateArgs::drafts_by_own_plans() const {
  return engine.draft_weights != DraftWeights::kAuto || engine.kv_store == KvStore::kFull ||
         (generation.draft_len == 0 && read_draft_spec(engine.plan).is_auto());
}

bool GenerateArgs::depends_on_time() const {
  const bool fixed_plan = drafts_by_own_plans() ? engine.draft_weights != DraftWeights::kAuto
                                                : !read_draft_spec(engine.plan).is_auto();
  return generation.draft_len != 0 && !(generation.draft_len && fixed_plan);
}

std::optional<std::function<int()>> parse_command_line(int argc, char** argv) {
  GenerateArgs generate;
  ChatArgs chat;
  InfoArgs info;
  TokenizeArgs tokenize;
  CLI::App app("Runs language models, long texts above all; the model drafts for itself.");
  app.name("quantspec");
  app.get_formatter()->column_width(24);
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  app.set_help_flag("-h,--help", "print this and exit");
  app.set_version_flag("--version", "quantspec " QUANTSPEC_VERSION, "print the version and exit");
  app.require_subcommand(1);
  app.footer(
      "Example:\n  quantspec generate -p 'It was a dark night'\n\n"
      "quantspec COMMAND --help tells more.");
  add_generate(app, generate);
  add_chat(app, chat);
  add_info(app, info);
  add_tokenize(app, tokenize);
  const std::vector<Subcommand> others = add_subcommands(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    write_output(answer(app, asked));
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw UsageError(describe(app, error));
  }
  for (const auto& [one, other] : kExclusive)
    refuse_both(*app.get_subcommands().front(), one, other);
  for (const Subcommand& other : others) {
    if (other.app->parsed()) return other.run;
  }
  if (app.got_subcommand("chat")) {
    require_sense(chat.generate);
    choose_sampling(chat.generate.sampling, {}, false).params.validate();
    return runner(chat, chat.generate.engine.model);
  }
  if (app.got_subcommand("info")) return runner(info, info.engine.model);
  if (app.got_subcommand("tokenize")) return runner(tokenize, tokenize.model);
  require_sense(generate);
  choose_sampling(generate.sampling, {}, generate.compare).params.validate();
  return runner(generate, generate.engine.model);
}

}  // namespace quantspec::cli
