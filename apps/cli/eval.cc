// quantspec eval: its options. What they do is in eval_run.cc.
#include <fmt/format.h>

#include <memory>

#include "apps/cli/command.h"
#include "apps/cli/eval_args.h"
#include "apps/cli/limits.h"
#include "apps/cli/list_values.h"

namespace quantspec::cli {

namespace {

// --- groups of options ---------------------------------------------------------------------------

void add_dataset(CLI::App& app, EvalArgs& args) {
  app.option_defaults()->group("Text");
  add_value(app, "-d,--dataset", "KIND:PATH",
            "true text; KIND is text, pg19, wikitext, c4, recall\nor tasks",
            [&args](const std::string& text) { args.dataset = text; });
  add_int(app, "--recall-distance", "N",
          "recall: tokens back to the passage that is repeated\n(default: half of the prompt)",
          args.recall_distance, 1, kMostContext);
}

void add_contexts(CLI::App& app, EvalArgs& args, int default_context) {
  args.contexts = {default_context};
  add_list(app, "-c,--ctx-size",
           fmt::format("tokens of the prompts, commas between (default: {})", default_context),
           "whole numbers", args.contexts, 2, kMostContext);
}

void add_context(CLI::App& app, EvalArgs& args, int default_context, const char* what) {
  args.contexts = {default_context};
  add_int(app, "-c,--ctx-size", "N", fmt::format("{} (default: {})", what, default_context),
          args.contexts[0], 2, kMostContext);
}

void add_tokens(CLI::App& app, EvalArgs& args, int default_tokens, const char* what) {
  args.tokens = default_tokens;
  add_int(app, "--tokens", "N", fmt::format("{} (default: {})", what, default_tokens), args.tokens,
          1, kMostTokens);
}

void add_prompts(CLI::App& app, EvalArgs& args, int default_prompts, const char* what) {
  args.prompts = default_prompts;
  add_int(app, "--prompts", "N", fmt::format("{} (default: {})", what, default_prompts),
          args.prompts, 1, kMostPrompts);
}

void add_plans(CLI::App& app, EvalArgs& args, const std::string& default_plans) {
  app.option_defaults()->group("Drafts");
  args.plans = split_plans(default_plans);
  add_plan_list(app,
                fmt::format("what drafts read, with commas between or --plan again;\n"
                            "plan:FILE too (default:{}{})",
                            default_plans.size() < 30 ? " " : "\n", default_plans),
                args.plans);
  add_draft_budget(app,
                   "what sparse drafts read: tokens, or a share such as 1/8\n"
                   "(default: 1/4)",
                   args.budget);
}

void add_round(CLI::App& app, EvalArgs& args) {
  add_int(
      app, "--round", "N",
      "tokens of the target passes by whose attention sparse\ndrafts choose pages: draft length "
      "+ 1 (default: 5)",
      args.round, 1, kMaxDraftLen + 1);
}

void add_output(CLI::App& app, EvalArgs& args, const char* examples) {
  app.option_defaults()->group("Output");
  add_choice<bool>(app, "-o,--output", "FORMAT", "md or json (default: md)",
                   {{"md", false}, {"json", true}}, args.json);
  app.add_flag("-q,--quiet", args.quiet, "no progress bars");
  finish_command(app, examples);
}

// --- what can be measured ------------------------------------------------------------------------

// Of what several ranks can measure.
void add_shared_engine(CLI::App& app, EvalArgs& args) {
  add_engine_options(app, args.engine);
  add_ranks(app, args.engine, /*or_launched=*/false);
  add_gpus(app, args.engine);
}

void add_windows(CLI::App& app, EvalArgs& args) {
  add_context(app, args, 2048, "tokens of a window, BOS included");
  add_int(app, "--stride", "N", "new tokens of each window (default: half of it)", args.stride, 1,
          kMostContext);
  add_tokens(app, args, 8192, "tokens to score, or a few more");
  add_prompts(app, args, 1, "documents they are taken from");
}

void add_perplexity(CLI::App& command, EvalArgs& args) {
  add_dataset(command, args);
  add_windows(command, args);
  add_shared_engine(command, args);
  add_output(command, args,
             "Example:\n"
             "  quantspec eval perplexity -d wikitext:wiki.test.raw -c 4096 --tokens 32768");
}

void add_axes(CLI::App& command, EvalArgs& args) {
  add_dataset(command, args);
  add_windows(command, args);
  add_shared_engine(command, args);
  add_output(command, args, "Example:\n  quantspec eval axes -d text:books/ --prompts 4");
}

void add_fidelity(CLI::App& command, EvalArgs& args) {
  add_dataset(command, args);
  add_contexts(command, args, 4096);
  add_tokens(command, args, 512, "true tokens read after each prompt");
  add_prompts(command, args, 2, "prompts of each length");
  add_plans(command, args, "kv-only,quantspec+w8,quantspec,streaming,snapkv");
  add_round(command, args);
  add_shared_engine(command, args);
  add_output(command, args,
             "Examples:\n"
             "  quantspec eval fidelity -d text:books/ -c 4096,8192 --prompts 4\n"
             "  quantspec eval fidelity -d recall:books/ -c 8192 --tokens 240");
}

void add_targets(CLI::App& command, EvalArgs& args) {
  args.engine.draft_weights = DraftWeights::kFull;  // nothing drafts: no planes are made for it
  add_dataset(command, args);
  add_contexts(command, args, 256);
  add_tokens(command, args, 64, "true tokens read after each prompt");
  add_prompts(command, args, 2, "prompts of each length");
  add_choice<Against>(command, "--against", "WHAT",
                      "reference: the reference backend, in fp32 and very slow;\n"
                      "or checkpoint: the weights as they are, where the target\n"
                      "reads others (--target-weights 8). Either has the plain\n"
                      "cache, and all else as here (default: reference)",
                      {{"reference", Against::kReference}, {"checkpoint", Against::kCheckpoint}},
                      args.against);
  add_target_options(command, args.engine);
  add_output(command, args,
             "Examples:\n"
             "  quantspec eval targets -d text:books/ -c 256 --tokens 64 --prompts 2\n"
             "  quantspec eval targets -d text:books/ -c 4096 --against checkpoint \\\n"
             "    --target-weights 8");
}

void add_prefill(CLI::App& command, EvalArgs& args) {
  add_dataset(command, args);
  add_contexts(command, args, 8192);
  add_list(command, "--chunks",
           "tokens of a prompt that read each other in full\nprecision, commas between; multiples "
           "of the page size\n(default: as the backend reads prompts)",
           "whole numbers", args.chunks, 1, kMostContext);
  add_tokens(command, args, 128, "true tokens read after each prompt");
  add_prompts(command, args, 2, "prompts of each length");
  add_plans(command, args, "quantspec");
  add_round(command, args);
  add_shared_engine(command, args);
  add_output(command, args,
             "Examples:\n"
             "  quantspec eval prefill -d text:books/ --chunks 256,512,1024,2048\n"
             "  quantspec eval prefill -d recall:books/ -c 8192,16384");
}

void add_sensitivity(CLI::App& command, EvalArgs& args) {
  add_dataset(command, args);
  add_context(command, args, 4096, "tokens of the prompts");
  add_tokens(command, args, 128, "true tokens read after each prompt");
  add_prompts(command, args, 2,
              "prompts to measure on; as many others verify, so that\n"
              "the text must have twice as many");
  add_plans(command, args, "quantspec");
  add_round(command, args);
  add_bytes(command, "--bytes",
            "bytes that a draft step of the chosen plan may read\n(default: as --plan does)",
            args.draft_bytes);
  add_bytes(command, "--target-bytes",
            "bytes for fp16 copies of layers' KV, which the target\nthen reads (default: 0)",
            args.target_bytes);
  add_engine_options(command, args.engine);
  command.option_defaults()->group("Output");
  add_path(command, "--plan-file", "FILE", "where the chosen plan is written (default: plan.json)",
           args.plan_file);
  add_output(command, args,
             "Example:\n"
             "  quantspec eval sensitivity -d text:books/ -c 8192 --plan-file layers.json\n"
             "  quantspec bench -d text:books/ -c 8192 --plan quantspec,plan:layers.json");
}

void add_lossless(CLI::App& command, EvalArgs& args) {
  add_dataset(command, args);
  add_context(command, args, 2048, "tokens of the prompts");
  add_tokens(command, args, 256, "tokens to generate after each prompt");
  add_prompts(command, args, 2, "prompts");
  add_int(
      command, "--streams", "N",
      "instead, so many requests at once, each against itself\nalone: they arrive at random, share "
      "what is cached,\ndraft by one of --draft-len each, and some are preempted",
      args.streams, 1, kMostStreams);
  add_plans(command, args, "quantspec,auto");
  args.draft_lens = {1, 4, 8, std::nullopt};
  add_draft_lens(command,
                 fmt::format("tokens to draft each round, 1 to {}, or auto\n(default: 1,4,8,auto)",
                             kMaxDraftLen),
                 args.draft_lens, 1);
  add_value(
      command, "--temp", "X", "temperature of coupled sampling (default: 0.8)",
      [&args](const std::string& text) {
        constexpr float kMost = sampling_param<&SamplingParams::temperature>().high;
        const auto value = parse_number<float>(text);
        if (!value || *value <= 0 || *value > kMost) {
          throw UsageError(fmt::format("--temp '{}': must be above 0, {} at most", text, kMost));
        }
        args.temperature = *value;
      });
  add_seed(command, "of coupled sampling, and of who comes when (default: 0)",
           [&args](std::uint64_t seed) { args.seed = seed; });
  add_shared_engine(command, args);
  add_output(command, args,
             "Example:\n"
             "  quantspec eval lossless -d text:books/ --plan streaming --draft-len 1,8\n"
             "  quantspec eval lossless -d text:books/ --streams 16\n\n"
             "Exit code: 1 if any generation differs from plain decoding.");
}

struct Measurement {
  const char* name;
  const char* what;
  void (*add)(CLI::App&, EvalArgs&);
  int (*run)(const EvalArgs&);
};

constexpr Measurement kMeasurements[] = {
    {"perplexity", "Perplexity by precision of KV and weights.", add_perplexity, run_perplexity},
    {"axes", "Perplexity of 4-bit KV by the axes of its groups.", add_axes, run_axes},
    {"fidelity", "How far targets and drafts are from what they stand for.", add_fidelity,
     run_fidelity},
    {"targets", "How far targets are from fp32, or from the checkpoint.", add_targets, run_targets},
    {"prefill", "What reading prompts in chunks costs.", add_prefill, run_prefill},
    {"sensitivity", "Which layers matter most; writes a plan file.", add_sensitivity,
     run_sensitivity},
    {"lossless", "Generates with and without speculation, and compares.", add_lossless,
     run_lossless},
};

// What was asked for, with its arguments.
struct Chosen {
  EvalArgs args;
  int (*run)(const EvalArgs&) = nullptr;
};

int run_chosen(const Chosen& chosen) {
  if (chosen.run == nullptr) {
    std::string names;
    for (const Measurement& one : kMeasurements) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", one.name);
    }
    throw UsageError("eval needs to know what to measure: " + names);
  }
  if (chosen.args.dataset.empty()) throw UsageError("--dataset KIND:PATH is needed: the text");
  return chosen.run(chosen.args);
}

}  // namespace

Subcommand add_eval(CLI::App& app) {
  CLI::App* command = add_command(app, "eval", "Measure fidelity on true text.");
  const auto chosen = std::make_shared<Chosen>();
  for (const Measurement& measurement : kMeasurements) {
    const auto args = std::make_shared<EvalArgs>();
    CLI::App* one = add_command(*command, measurement.name, measurement.what);
    measurement.add(*one, *args);
    one->callback([=, run = measurement.run] { *chosen = {*args, run}; });
  }
  finish_command(*command,
                 "Example:\n"
                 "  quantspec eval fidelity -d text:books/ -c 4096,8192 --prompts 4\n\n"
                 "quantspec eval MEASUREMENT --help tells more.");
  return {command, [chosen] { return run_chosen(*chosen); }};
}

}  // namespace quantspec::cli
