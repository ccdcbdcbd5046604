// gpu_rounds: whole rounds of decoding on a GPU, of a model whose text may mean nothing: plain
// decoding with an fp16 and with our 8-bit cache, and speculation with dense and sparse drafts,
// whose tokens are accepted with a probability that is given instead of being judged. What a round
// costs is what it would cost with real weights; how many tokens it yields is an assumption, and
// said so. With --streams several sequences decode together, each with a prompt of its own.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "apps/bench/gpu_program.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/random.h"
#include "comm/comm.h"
#include "model/model_files.h"
#include "model/share.h"
#include "model/weight_source.h"
#include "speculative/speculative.h"

namespace quantspec {
namespace {

struct Args {
  std::filesystem::path model, json;
  std::string target = "checkpoint";
  std::string backend = "cuda";
  std::optional<int> device;
  int ranks = 1;
  int context_ranks = 1;
  int streams = 1;
  std::vector<int> contexts = {4096, 32768, 131072};
  std::vector<int> draft_lens = {4, 6, 8};
  std::vector<int> budgets = {4096};
  double acceptance = 0.95;
  int warm_up = 192;
  int tokens = 256;
};

void add_options(CLI::App& app, Args& args) {
  app.get_formatter()->column_width(24);
  app.add_option("-m,--model", args.model,
                 "a GGUF file or a Hugging Face folder; no tokenizer is needed")
      ->option_text("PATH")
      ->required();
  app.add_option("--target-weights", args.target,
                 "checkpoint: as they are; 8: rounded to 8 bits,\nhalf of which drafts read")
      ->option_text("W")
      ->check(CLI::IsMember({"checkpoint", "8"}));
  app.add_option("--ctx-size", args.contexts,
                 "tokens of the prompt, which are random\n"
                 "(default: 4096,32768,131072)")
      ->option_text("N,...")
      ->check(CLI::PositiveNumber)
      ->delimiter(',');
  app.add_option("--draft-len", args.draft_lens,
                 "drafted tokens of a round, 1 to 16\n(default: 4,6,8)")
      ->option_text("N,...")
      ->check(CLI::Range(1, kMaxDraftLen))
      ->delimiter(',');
  app.add_option("--draft-budget", args.budgets,
                 "tokens that sparse drafts read; contexts of\nless than four times as many leave "
                 "them out\n(default: 4096)")
      ->option_text("N,...")
      ->check(CLI::PositiveNumber)
      ->delimiter(',');
  app.add_option("--acceptance", args.acceptance,
                 "the probability with which a drafted token is\naccepted (default: 0.95)")
      ->option_text("P")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--streams", args.streams, "so many sequences decode together (default: 1)")
      ->option_text("N")
      ->check(CLI::Range(1, 256));
  app.add_option("--tokens", args.tokens,
                 "tokens that are timed, of the sequence that has\nthem first (default: 256)")
      ->option_text("N")
      ->check(CLI::PositiveNumber);
  app.add_option("--warm-up", args.warm_up, "tokens before them (default: 192)")
      ->option_text("N")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--json", args.json, "write everything that was measured there")
      ->option_text("FILE")
      ->check(writable_file());
  app.add_option("--backend", args.backend, "what runs it (default: cuda)")->option_text("NAME");
  CLI::Option* device =
      app.add_option("--device", args.device, "which GPU (default: 0)")->option_text("N");
  app.add_option("--ranks", args.ranks,
                 "share the model among so many GPUs, from 0 on:\n2, 4 or 8 (default: 1)")
      ->option_text("N")
      ->check(CLI::IsMember({1, 2, 4, 8}))
      ->excludes(device);
  app.add_option("--context-ranks", args.context_ranks,
                 "so many of them share the context; leaves out\nthe fp16 cache and sparse drafts "
                 "(default: 1)")
      ->option_text("N")
      ->check(CLI::IsMember({1, 2, 4, 8}));
}

// How one kind of decoding went on from the prompts.
struct Run {
  std::string name;
  int draft_len;
  double tokens_per_second;                   // of all sequences
  double round_ms, draft_step_ms, verify_ms;  // per round, per draft pass, per round
  double tokens_per_round;                    // of a sequence
};

// Rounds of several sequences at once.
struct Rounds {
  std::int64_t rounds = 0;
  std::int64_t draft_passes = 0;
  std::int64_t tokens = 0;
  double seconds = 0;
  double draft_seconds = 0;
};

class Lab {
 public:
  // ranks: null where the model is not shared. The first of them says what is measured.
  explicit Lab(const Args& args, Communicator* ranks = nullptr)
      : args_(args),
        ranks_(ranks),
        groups_(groups_of(args, ranks)),
        backend_(make_backend({.name = args.backend,
                               .device = ranks == nullptr ? args.device : ranks->rank(),
                               .ranks = ranks,
                               .groups = groups_})),
        before_(backend_->available_bytes()),
        model_(load(args, *backend_, ranks, groups_)),
        pool_(std::make_unique<PagePool>(*backend_, kv_shape(model_.config(), 0))),
        decoder_(model_) {
    decoder_.reserve(args.streams);
  }

  void run() {
    Json report = {{"device", backend_->description()},
                   {"model", args_.model.filename().string()},
                   {"target_weights", model_.weights().target_description()},
                   {"simulated_acceptance", args_.acceptance},
                   {"ranks", args_.ranks},
                   {"context_ranks", args_.context_ranks},
                   {"streams", args_.streams},
                   {"contexts", Json::array()}};
    print("{}, {}{}, {}: drafted tokens accepted with probability {} (not judged)\n",
          args_.model.filename().string(), backend_->description(),
          ranks_ == nullptr ? ""
                            : fmt::format(" and others, {} ranks, {} share the context",
                                          args_.ranks, args_.context_ranks),
          args_.streams == 1 ? "one sequence" : fmt::format("{} at once", args_.streams),
          args_.acceptance);
    for (const int context : args_.contexts) {
      report["contexts"].push_back(run_context(context));
      if (!args_.json.empty() && tells()) std::ofstream(args_.json) << report.dump(1) << '\n';
    }
  }

 private:
  bool tells() const { return ranks_ == nullptr || ranks_->rank() == 0; }
  template <typename... T>
  void print(fmt::format_string<T...> format, T&&... values) const {
    if (tells()) fmt::print(format, std::forward<T>(values)...);
  }

  static RankGroups groups_of(const Args& args, Communicator* ranks) {
    if (ranks == nullptr || args.context_ranks == 1) return {};
    const auto files = open_model(args.model);
    const auto backend = make_backend({.name = args.backend, .device = ranks->rank()});
    return rank_groups(files->config(), *files->weights(target_of(args), *backend), ranks->size(),
                       args.context_ranks);
  }

  static TargetWeights target_of(const Args& args) {
    return args.target == "8" ? TargetWeights::k8Bits : TargetWeights::kCheckpoint;
  }

  static Model load(const Args& args, Backend& backend, Communicator* ranks,
                    const RankGroups& groups) {
    const auto files = open_model(args.model);
    Share share{files->config(), files->weights(target_of(args), backend)};
    if (ranks != nullptr) {
      share = share_of(share.config, std::move(share.source), ranks->rank(), ranks->size(), groups);
    }
    backend.require_supported(kv_shape(share.config, 0));
    Weights weights(share.config, std::move(share.source), backend);
    weights.make_draft_planes(backend, WeightRead::kUpper);
    return Model(share.config, std::move(weights), backend);
  }

  std::vector<TokenId> prompt(int context, int stream) const {
    const CounterRng rng(7 + stream);
    std::vector<TokenId> tokens(context);
    for (int i = 0; i < context; ++i) {
      tokens[i] = static_cast<TokenId>(rng.bits(i, RandomStream::kSample) %
                                       static_cast<std::uint32_t>(model_.config().vocab_size));
    }
    return tokens;
  }

  // stream: by whose number its drafts are accepted.
  DecodingOptions decoding(int stream, int draft_len, std::vector<Plan> plans) const {
    DecodingOptions options;
    options.sampling.temperature = 0.0f;
    options.sampling.seed += stream;
    options.draft_len = draft_len;
    options.plans = std::move(plans);
    options.simulated_acceptance = static_cast<float>(args_.acceptance);
    return options;
  }

  Json run_context(int context) {
    const int capacity = context + args_.warm_up + args_.tokens + 2 * kMaxDraftLen;
    const int layers = model_.config().num_layers;
    Json runs = Json::array();
    print(
        "\n{:>7} tokens        tokens/s   speed-up   round ms  draft step ms  verify ms  "
        "tokens/round\n",
        context);
    double plain = 0;
    const auto note = [&](const Run& run) {
      if (plain == 0) plain = run.tokens_per_second;
      print("{:<20} {:>9.1f} {:>9.2f}x {:>10.3f} {:>14.3f} {:>10.3f} {:>13.2f}\n",
            run.draft_len > 0 ? fmt::format("{}, {}", run.name, run.draft_len) : run.name,
            run.tokens_per_second, run.tokens_per_second / plain, run.round_ms, run.draft_step_ms,
            run.verify_ms, run.tokens_per_round);
      std::fflush(stdout);
      runs.push_back({{"name", run.name},
                      {"draft_len", run.draft_len},
                      {"tokens_per_second", run.tokens_per_second},
                      {"speed_up", run.tokens_per_second / plain},
                      {"round_ms", run.round_ms},
                      {"draft_step_ms", run.draft_step_ms},
                      {"verify_ms", run.verify_ms},
                      {"tokens_per_round", run.tokens_per_round}});
    };
    double prefill_seconds = 0;
    if (args_.context_ranks == 1) {
      KvOptions full;
      full.store = KvStore::kFull;
      std::vector<Sequence> sequences = made(capacity, full);
      prefill_seconds = prefill(sequences, context);
      note(measure(sequences, "plain, fp16 cache"));
    }
    std::vector<Plan> plans = {Plan::draft(layers, WeightRead::kUpper)};
    for (const int budget : args_.budgets) {
      if (4 * budget > context || args_.context_ranks > 1) continue;
      KvAccess access{KvRead::kUpper, KvTokens::kByMass, budget};
      plans.push_back(
          Plan::uniform(fmt::format("sparse {}", budget), layers, WeightRead::kUpper, access));
      plans.back().head = WeightRead::kUpper;
    }
    plans.front().name = "dense";
    std::vector<Sequence> sequences = made(capacity, kv_options(plans));
    const double warm_prefill_seconds = prefill(sequences, context);
    const auto forked = [&](int draft_len, const std::vector<Plan>& drafts) {
      std::vector<Sequence> forks;
      for (int i = 0; i < args_.streams; ++i) {
        forks.push_back(sequences[i].fork(decoding(i, draft_len, drafts)));
      }
      return forks;
    };
    {
      std::vector<Sequence> eight_bit = forked(0, {});
      note(measure(eight_bit, "plain, 8-bit cache"));
    }
    for (const Plan& plan : plans) {
      for (const int draft_len : args_.draft_lens) {
        std::vector<Sequence> drafting = forked(draft_len, {plan});
        note(measure(drafting, plan.name));
      }
    }
    std::size_t kv_bytes = 0;
    for (const Sequence& sequence : sequences) {
      kv_bytes += sequence.cache().page_bytes() + sequence.cache().ring_bytes();
    }
    // With what rounds took: scratch, graphs, and the pages that the sequences have of their own.
    const std::size_t used = before_ - backend_->available_bytes();
    const KvShape& shape = pool_->shape();
    return {{"context", context},
            {"prefill_seconds", prefill_seconds},
            {"warm_prefill_seconds", warm_prefill_seconds},
            {"device_bytes_used", used},
            {"kv_bytes", kv_bytes},
            {"fp16_kv_bytes", shape.fp16_token_bytes() * context * args_.streams},
            {"weights_bytes", model_.weights().target_bytes()},
            {"draft_weights_bytes", model_.weights().draft_bytes()},
            {"runs", runs}};
  }

  std::vector<Sequence> made(int capacity, const KvOptions& kv) {
    std::vector<Sequence> sequences;
    for (int i = 0; i < args_.streams; ++i) {
      sequences.emplace_back(model_, *pool_, capacity, decoding(i, 0, {}), kv);
    }
    return sequences;
  }

  double prefill(std::vector<Sequence>& sequences, int context) {
    const Stopwatch clock;
    for (int i = 0; i < args_.streams; ++i) decoder_.prefill(sequences[i], prompt(context, i));
    backend_->synchronize();
    print("  (prefill: {:.2f} s)\n", clock.seconds());
    return clock.seconds();
  }

  // Until one of them has so many tokens more.
  Rounds decode(std::vector<Sequence>& sequences, int tokens) {
    const DecodingOptions& options = sequences.front().options();
    std::vector<Lane> lanes;
    for (Sequence& sequence : sequences) lanes.push_back({&sequence, {0, 0}});
    std::vector<int> written(sequences.size());
    Rounds all;
    const Stopwatch clock;
    while (std::ranges::max(written) < tokens) {
      int passes = 0;
      for (Lane& lane : lanes) {
        const int most = std::min(lane.sequence->max_rows(), lane.sequence->room()) - 1;
        lane.choice.draft_len = std::min(options.draft_len.value_or(0), most);
        passes = std::max(passes, lane.choice.draft_len);
      }
      const Decoder::Outcome outcome = decoder_.round(lanes);
      for (std::size_t i = 0; i < lanes.size(); ++i) {
        written[i] += static_cast<int>(outcome.steps[i].tokens.size());
      }
      ++all.rounds;
      all.draft_passes += passes;
      all.draft_seconds += outcome.draft_seconds;
    }
    all.seconds = clock.seconds();
    for (const int count : written) all.tokens += count;
    return all;
  }

  // Some tokens to get going (a draft length has its graph when it has come up a few times; those
  // that a page's end cuts short seldom have), and the ones that count.
  Run measure(std::vector<Sequence>& sequences, const std::string& name) {
    const auto verified = [&] {
      double seconds = 0;
      for (const Sequence& sequence : sequences) seconds += sequence.stats().verify_seconds;
      return seconds;
    };
    decode(sequences, args_.warm_up);
    backend_->synchronize();
    const double before = verified();
    const Rounds all = decode(sequences, args_.tokens);
    const auto rounds = static_cast<double>(all.rounds);
    return {
        name,
        sequences.front().options().draft_len.value_or(0),
        static_cast<double>(all.tokens) / all.seconds,
        1e3 * all.seconds / rounds,
        all.draft_passes > 0 ? 1e3 * all.draft_seconds / static_cast<double>(all.draft_passes) : 0,
        1e3 * (verified() - before) / rounds,
        static_cast<double>(all.tokens) / rounds / static_cast<double>(sequences.size())};
  }

  const Args& args_;
  Communicator* ranks_;
  RankGroups groups_;
  std::unique_ptr<Backend> backend_;
  std::size_t before_;  // bytes available before anything was loaded, the backend made
  Model model_;
  std::unique_ptr<PagePool> pool_;
  Decoder decoder_;
};

void require_usable(const Args& args) {
  if (args.context_ranks > args.ranks) {
    fail(ErrorKind::kInvalidRequest, "--context-ranks {}: no more than --ranks {}",
         args.context_ranks, args.ranks);
  }
  const int rows = args.streams * (1 + std::ranges::max(args.draft_lens));
  if (rows > DraftLengths::kMostRows) {
    fail(ErrorKind::kInvalidRequest,
         "--streams {} with drafts of {}: {} rows; a pass of the engine has {} at most",
         args.streams, std::ranges::max(args.draft_lens), rows, DraftLengths::kMostRows);
  }
}

// Each rank in a thread; throws what the first of them threw.
void run_as_ranks(const Args& args) {
  SharedRanks shared(args.ranks);
  std::vector<std::exception_ptr> errors(args.ranks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < args.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        as_rank(shared, rank, [&](Communicator& ranks) { Lab(args, &ranks).run(); });
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  threads.clear();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace
}  // namespace quantspec

int main(int argc, char** argv) {
  CLI::App app("Times rounds of decoding on a GPU, with drafts that are accepted by chance.",
               "gpu_rounds");
  quantspec::Args args;
  quantspec::add_options(app, args);
  return quantspec::run_program(app, argc, argv, [&] {
    quantspec::require_usable(args);
    args.ranks == 1 ? quantspec::Lab(args).run() : quantspec::run_as_ranks(args);
    return 0;
  });
}
