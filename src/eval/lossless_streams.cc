#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <random>

#include "base/error.h"
#include "engine/request_loop.h"
#include "eval/eval.h"
#include "eval/lossless_modes.h"
#include "eval/memory.h"

namespace quantspec {

namespace {

constexpr int kMostPreemptions = 2;  // of a request

// The same everywhere, which the library's distributions are not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : words_(seed) {}
  int below(int end) { return static_cast<int>(words_() % static_cast<std::uint64_t>(end)); }

 private:
  std::mt19937_64 words_;
};

// What a request gave: tokens, and of each the logarithm of its probability.
struct Output {
  std::vector<TokenId> tokens = {};
  std::vector<float> log_probs = {};

  void add(const Step& step) {
    tokens.insert(tokens.end(), step.tokens.begin(), step.tokens.end());
    log_probs.insert(log_probs.end(), step.log_probs.begin(), step.log_probs.end());
  }
  // The first token that is another one or has another probability, to the bit.
  std::optional<int> difference(const Output& other) const {
    const std::optional<int> token = first_difference(tokens, other.tokens);
    const auto at = std::ranges::mismatch(log_probs, other.log_probs).in1 - log_probs.begin();
    if (at == std::ssize(log_probs)) return token;
    return std::min(static_cast<int>(at), token.value_or(static_cast<int>(at)));
  }
};

struct Wanted {
  std::string name;
  std::vector<TokenId> tokens;
};

// The prompts themselves; then such as begin as they do, and go on as another one begins.
std::vector<Wanted> catalogue(std::span<const Prompt> prompts, int streams, Random& random) {
  std::vector<Wanted> all;
  for (int i = 0; i < streams; ++i) {
    const auto count = static_cast<int>(prompts.size());
    const Prompt& prompt = prompts[i % count];
    all.push_back({prompt.name, prompt.tokens});
    const auto length = static_cast<int>(prompt.tokens.size());
    if (i < count || length < 2) continue;
    const int kept = length - 1 - random.below(length / 2);
    const std::vector<TokenId>& other = prompts[(i + 1) % count].tokens;
    std::copy_n(other.begin(), length - kept, all.back().tokens.begin() + kept);
  }
  return all;
}

class Streams {
 public:
  Streams(const EvalModel& model, std::span<const Prompt> prompts, int streams,
          const LosslessOptions& options, const ProgressCallback& progress,
          std::vector<StreamRow>& rows)
      : model_(model),
        options_(options),
        progress_(progress),
        rows_(rows),
        random_(options.seed),
        preempts_(options.seed),
        wanted_(catalogue(prompts, streams, random_)),
        context_(static_cast<int>(prompts.front().tokens.size()) + options.predict) {}

  void run() {
    const std::vector<LosslessMode> modes = lossless_modes(options_);
    // For a mode, every request alone, and twice with each drafter.
    all_ = modes.size() * wanted_.size() * (1 + 2 * options_.drafters.size());
    for (const LosslessMode& mode : modes) {
      expected_.clear();
      for (std::size_t i = 0; i < wanted_.size(); ++i) expected_.push_back(alone(mode, i));
      for (const Drafter& drafter : options_.drafters) {
        // Room for what they leave cached beside what they hold.
        const int page_size = model_.pool.shape().page_size;
        const std::size_t pages = wanted_.size() * ((context_ + page_size - 1) / page_size);
        RequestLoop loop(model_.model, model_.pool.shape(),
                         {.sequences = static_cast<int>(wanted_.size()),
                          .context = context_,
                          .pages = 2 * pages,
                          .plans = drafter.plans});
        for (const bool warm : {false, true}) together(loop, mode, drafter, warm);
        loop.check_integrity();
      }
    }
  }

 private:
  // A request on its way.
  struct Running {
    StreamRow row;
    std::optional<DraftChoice> forced;
    RequestId id = 0;
    Output output = {};
    bool ended = false;
  };

  void report(double part) {
    if (progress_) progress_("generating", (static_cast<double>(done_) + part) / all_);
  }

  SamplingParams sampling(const LosslessMode& mode, std::size_t which) const {
    SamplingParams sampling = mode.options.sampling;
    sampling.seed += which;
    return sampling;
  }

  Output alone(const LosslessMode& mode, std::size_t which) {
    DecodingOptions decoding = mode.options;
    decoding.sampling = sampling(mode, which);
    decoding.log_probs = true;
    Decoder decoder(model_.model);
    Sequence sequence(model_.model, model_.pool, context_, decoding);
    const std::vector<TokenId>& prompt = wanted_[which].tokens;
    const auto reader = decoder.begin_prompt(sequence, prompt);
    for (; !reader->done(); report(0)) reader->step();
    Output output;
    output.add(decoder.end_prompt(sequence));
    for (; std::ssize(output.tokens) < options_.predict; report(0)) {
      output.add(decoder.step(sequence, 1));
    }
    model_.model.weights().require_unchanged();
    ++done_;
    return output;
  }

  Running prepare(const LosslessMode& mode, const Drafter& drafter, bool warm, std::size_t which) {
    Running running;
    const int lengths = static_cast<int>(options_.draft_lens.size());
    running.row.prompt = wanted_[which].name;
    running.row.sampling = mode.name;
    running.row.drafter = drafter.name;
    running.row.draft_len = options_.draft_lens[random_.below(lengths)];
    running.row.warm = warm;
    running.row.arrival = which == 0 ? 0 : random_.below(options_.predict);
    if (running.row.draft_len) {
      const int plan = random_.below(static_cast<int>(drafter.plans.size()));
      if (!drafter.plans[plan].looks_up()) {
        running.forced = DraftChoice{plan, *running.row.draft_len};
      }
    }
    return running;
  }

  void submit(RequestLoop& loop, const LosslessMode& mode, std::size_t which, Running& running) {
    Request request;
    request.prompt = wanted_[which].tokens;
    request.predict = options_.predict;
    request.sampling = sampling(mode, which);
    request.spec_sampling = SpecSampling::kCoupled;
    request.draft_len = running.row.draft_len;
    request.forced = running.forced;
    request.owner = which % 2;
    request.log_probs = true;
    request.on_tokens = [&running](const Step& step) {
      running.output.add(step);
      return true;
    };
    request.on_end = [this, &running](const Request::Ended& end) {
      running.ended = true;
      if (end.error) failure_.emplace(*end.error);  // the loop would log what is thrown
      running.row.cached_tokens = end.cached_tokens;
      running.row.acceptance = end.stats.acceptance_rate();
      running.row.tokens_per_round = end.stats.tokens_per_round();
    };
    running.id = loop.submit(std::move(request));
  }

  // All of them, until the last has ended.
  void together(RequestLoop& loop, const LosslessMode& mode, const Drafter& drafter, bool warm) {
    std::deque<Running> all;
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      all.push_back(prepare(mode, drafter, warm, i));
    }
    const auto has_ended = [](const Running& running) { return running.ended; };
    for (int step = 0; !std::ranges::all_of(all, has_ended); ++step) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (all[i].row.arrival == step) submit(loop, mode, i, all[i]);
      }
      maybe_preempt(loop, all);
      loop.step();
      if (failure_) throw *failure_;
      report(static_cast<double>(std::ranges::count_if(all, has_ended)));
    }
    model_.model.weights().require_unchanged();
    done_ += all.size();
    for (std::size_t i = 0; i < all.size(); ++i) {
      StreamRow& row = all[i].row;
      row.tokens = static_cast<int>(all[i].output.tokens.size());
      row.first_difference = expected_[i].difference(all[i].output);
      rows_.push_back(std::move(row));
    }
  }

  // Now and then, one that decodes.
  void maybe_preempt(RequestLoop& loop, std::deque<Running>& all) {
    if (preempts_.below(8) > 0) return;
    Running& running = all[preempts_.below(static_cast<int>(all.size()))];
    const bool decodes = !running.output.tokens.empty() && !running.ended;
    if (!decodes || running.row.preemptions == kMostPreemptions) return;
    running.row.preemptions += loop.preempt(running.id);
  }

  const EvalModel& model_;
  const LosslessOptions& options_;
  const ProgressCallback& progress_;
  std::vector<StreamRow>& rows_;
  Random random_;
  Random preempts_;  // drawn in every step, of which there are more or fewer by the clock
  std::vector<Wanted> wanted_;
  int context_;
  std::vector<Output> expected_;    // of the mode at hand
  std::optional<Error> failure_;    // of a request
  std::size_t done_ = 0, all_ = 0;  // requests that were computed
};

}  // namespace

void eval_lossless_streams(const EvalModel& model, std::span<const Prompt> prompts, int streams,
                           const LosslessOptions& options, const ProgressCallback& progress,
                           std::vector<StreamRow>& rows) {
  check(
      !options.drafters.empty() && !options.draft_lens.empty() && !prompts.empty() && streams >= 1,
      "there is something to compare");
  const int context = static_cast<int>(prompts.front().tokens.size());
  std::size_t most = 0;
  for (const Drafter& drafter : options.drafters) {
    RequestLoop::require_plans(drafter.plans, 2);
    const KvOptions kv = kv_options(drafter.plans);
    most = std::max(most, cache_bytes(model, context + options.predict, kv));
  }
  const std::size_t beside = prefill_bytes(model, context + options.predict, 0, streams);
  require_memory(model, 2 * streams * most + beside, context);
  Streams(model, prompts, streams, options, progress, rows).run();
}

}  // namespace quantspec
