// Which layers matter most, and a plan that spends its bytes on them.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/fields.h"
#include "eval/attention_entropy.h"
#include "eval/eval.h"
#include "eval/fields.h"
#include "eval/forced_pass.h"
#include "eval/memory.h"
#include "eval/partial.h"
#include "eval/plan_choice.h"

namespace quantspec {

namespace {

// What can be set apart from the rest: a layer's weights, a layer's KV, or the head's weights.
struct Part {
  std::optional<int> layer;  // nullopt: the head
  bool is_kv;
};

// A value that a part can have.
struct Change {
  std::string name;
  WeightRead weights;  // unless the part is KV
  KvAccess kv;
};

WeightRead& weights_of(const Part& part, Plan& plan) {
  return part.layer ? plan.layers[*part.layer].weights : plan.head;
}

void apply(const Part& part, const Change& change, Plan& plan) {
  if (part.is_kv) {
    plan.layers[*part.layer].kv = change.kv;
  } else {
    weights_of(part, plan) = change.weights;
  }
}

std::vector<Part> parts_of(int num_layers) {
  std::vector<Part> parts;
  for (int layer = 0; layer < num_layers; ++layer) {
    parts.push_back({layer, true});
    parts.push_back({layer, false});
  }
  parts.push_back({std::nullopt, false});
  return parts;
}

// What the part may read in a draft: the fewest bytes first, last what the target reads.
std::vector<Change> changes_of(const Part& part, int page_size, int context) {
  if (!part.is_kv) {
    return {{"weights: 4 bits", WeightRead::kUpper, {}},
            {"weights: 8 bits", WeightRead::kBoth, {}},
            {"weights: full", WeightRead::kTarget, {}}};
  }
  std::vector<Change> changes = {{"KV: ring only", {}, {KvRead::kUpper, KvTokens::kNone}}};
  for (const int share : {16, 4}) {
    const int budget = context / share / page_size * page_size;
    if (budget < 2 * page_size) continue;  // the first page, and one to choose
    changes.push_back({fmt::format("KV: 4 bits, {} tokens by mass", budget),
                       {},
                       {KvRead::kUpper, KvTokens::kByMass, budget}});
  }
  changes.push_back({"KV: 4 bits", {}, {KvRead::kUpper}});
  changes.push_back({"KV: 8 bits", {}, {KvRead::kBoth}});
  return changes;
}

// 1 - acceptance grows as the square root of KL (docs/eval.md); the factor is the model's own.
double predict_acceptance(double kl, const ScoreSummary& known) {
  if (known.kl.value <= 0) return 1;
  const double factor = (1 - known.acceptance.value) / std::sqrt(known.kl.value);
  return std::max(0.0, 1 - factor * std::sqrt(std::max(0.0, kl)));
}

class Study {
 public:
  Study(const EvalModel& model, std::span<const Prompt> prompts, const SensitivityOptions& options,
        const ProgressCallback& progress)
      : model_(model),
        prompts_(prompts),
        options_(options),
        progress_(progress),
        num_layers_(model.model.config().num_layers),
        context_(static_cast<int>(prompts.front().tokens.size())),
        target_(Plan::uniform("target", num_layers_, WeightRead::kTarget, {KvRead::kBoth})) {
    for (const Part& part : parts_of(num_layers_)) {
      auto changes = changes_of(part, model.pool.shape().page_size, context_);
      std::erase_if(changes, [&](const Change& change) {
        return !model.model.reads(with(target_, part, change));
      });
      parts_.push_back({part, std::move(changes), {}});
    }
  }

  // Throws where the caches of the widest stage do not fit: one for each layer's target.
  void require_room() const {
    const int capacity = static_cast<int>(whole_text(prompts_.front()).size());
    std::vector<Plan> plans = {options_.base};
    for (const Trial& trial : trials()) plans.push_back(trial.plan);
    require_memory(model_,
                   std::max(variants_bytes(model_, layer_targets(), capacity),
                            drafts_bytes(model_, plans, capacity)) +
                       prefill_bytes(model_, capacity),
                   context_);
  }

  // Throws where no plan fits the budgets.
  void require_budgets() const {
    const std::size_t least = bytes(lightest());
    if (draft_budget() < least) {
      fail(ErrorKind::kInvalidRequest,
           "{} {}: the lightest plan reads {} bytes in a draft step after {} tokens",
           field::kDraftBytes, draft_budget(), least, context_);
    }
    if (options_.target_bytes > 0 && options_.target_bytes < full_layer_bytes()) {
      fail(ErrorKind::kInvalidRequest,
           "{} {}: one layer's KV in fp16 takes {} bytes after {} tokens", field::kTargetBytes,
           options_.target_bytes, full_layer_bytes(), context_);
    }
  }

  void measure(SensitivityResult& result) {
    attention_entropies(
        model_, prompts_, [&](double done) { report_progress("entropy", done); }, result.entropies);
    measure_drafts(result.rows);
    measure_targets(result.rows);
  }

  void choose(SensitivityResult& result) const {
    Plan plan = target_;
    plan.name = "chosen";
    plan.target_full_layers = full_layers_;
    std::vector<std::vector<const Change*>> changes;
    std::vector<std::vector<Setting>> settings;
    std::vector<std::size_t> base;  // its settings, as far as they are among these
    for (const StudiedPart& part : parts_) {
      changes.emplace_back();
      settings.emplace_back();
      for (std::size_t c = 0; c < part.changes.size(); ++c) {
        if (!is_possible(part.part, part.changes[c])) continue;
        if (part.has(options_.base, c)) base.push_back(changes.back().size());
        changes.back().push_back(&part.changes[c]);
        settings.back().push_back({part.harm[c], bytes_above_lightest(part, part.changes[c])});
      }
    }
    std::optional<std::vector<std::size_t>> known;
    const bool fits = bytes(options_.base) <= draft_budget();
    if (fits && base.size() == parts_.size()) known = std::move(base);
    const auto chosen = choose_settings(settings, draft_budget() - bytes(lightest()), known);
    check(chosen.has_value(), "the lightest plan fits");
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      apply(parts_[p].part, *changes[p][(*chosen)[p]], plan);
    }
    result.draft_budget = draft_budget();
    result.base_outcome = predict(options_.base);
    result.chosen_outcome = predict(plan);
    result.chosen = std::move(plan);
  }

  // What the plans do on prompts that had no say.
  void verify(std::span<const Prompt> held_out, SensitivityResult& result) const {
    std::vector<Variant> variants = kv_variants(model_.model);
    variants.resize(2);  // fp16, and the target as it is
    variants.push_back({"chosen", Plan::target(num_layers_, result.chosen->target_full_layers)});
    std::vector<std::vector<Score>> base, chosen, base_target, chosen_target;
    const auto measure = [&] {
      for (const Prompt& prompt : held_out) {
        const auto done = [&](double) {
          report_progress("verify", static_cast<double>(base.size()) / held_out.size());
        };
        const std::vector<TokenId> tokens = whole_text(prompt);
        const auto draft = [&](const Plan& plan) {
          return score_drafts(model_, {plan}, tokens, context_, {.round = options_.round}, done)[0];
        };
        auto targets = score_variants(model_, variants, tokens, context_, context_, done);
        auto chosen_scores = draft(*result.chosen);
        base.push_back(draft(options_.base));
        chosen.push_back(std::move(chosen_scores));
        base_target.push_back(std::move(targets[1]));
        chosen_target.push_back(std::move(targets[2]));
      }
    };
    measure_and_conclude(measure, [&] {
      result.base_outcome.measured = summarize(base);
      result.base_outcome.target = summarize(base_target);
      result.chosen_outcome.measured = summarize(chosen);
      result.chosen_outcome.target = summarize(chosen_target);
      result.acceptance_change = mean_change(base, chosen, &Score::overlap);
      result.kl_change = mean_change(base, chosen, &Score::kl);
    });
  }

 private:
  struct StudiedPart {
    Part part;
    std::vector<Change> changes;
    std::vector<double> harm;  // of each change: the KL of a target with it alone

    bool has(Plan plan, std::size_t change) const {
      const Plan before = plan;
      apply(part, changes[change], plan);
      return plan == before;
    }
  };

  // A plan that differs from another in one part.
  struct Trial {
    std::size_t part;
    std::size_t change;
    bool lowers;  // the target; else it raises the base
    Plan plan;
  };

  void report_progress(std::string_view stage, double done) const {
    if (progress_) progress_(stage, done);
  }
  std::size_t bytes(const Plan& plan) const {
    const Model& model = model_.model;
    return pass_bytes(model.weights(), model.backend(), model_.pool.shape(), plan, context_);
  }
  std::size_t draft_budget() const { return options_.draft_bytes.value_or(bytes(options_.base)); }
  std::size_t full_layer_bytes() const {
    const KvShape& shape = model_.pool.shape();
    return shape.fp16_token_bytes() / shape.num_layers * context_;
  }
  Plan with(Plan plan, const Part& part, const Change& change) const {
    apply(part, change, plan);
    return plan;
  }
  Plan lightest() const {
    Plan plan = target_;
    for (const StudiedPart& part : parts_) apply(part.part, part.changes.front(), plan);
    return plan;
  }
  std::size_t bytes_above_lightest(const StudiedPart& part, const Change& change) const {
    return bytes(with(target_, part.part, change)) -
           bytes(with(target_, part.part, part.changes.front()));
  }
  // A target in full precision gives no masses to choose by.
  bool is_possible(const Part& part, const Change& change) const {
    const bool full = part.layer && std::ranges::count(full_layers_, *part.layer) > 0;
    return !(full && part.is_kv && change.kv.tokens == KvTokens::kByMass);
  }

  std::vector<Trial> trials() const {
    std::vector<Trial> trials;
    const std::size_t base_bytes = bytes(options_.base);
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const StudiedPart& part = parts_[p];
      for (std::size_t c = 0; c < part.changes.size(); ++c) {
        const Change& change = part.changes[c];
        if (c + 1 < part.changes.size()) {
          trials.push_back({p, c, true, with(target_, part.part, change)});
        }
        Plan raised = with(options_.base, part.part, change);
        if (bytes(raised) > base_bytes) trials.push_back({p, c, false, std::move(raised)});
      }
    }
    return trials;
  }

  // `score` gives the scores of all readings on a prompt, [readings][rows]; `conclude` gets their
  // summaries, over the prompts that were scored whole, if any were.
  template <typename ScorePrompt, typename Conclude>
  void score_prompts(std::size_t readings, std::string_view stage, const ScorePrompt& score,
                     const Conclude& conclude) const {
    std::vector<std::vector<std::vector<Score>>> scores(readings);
    const auto measure = [&] {
      for (std::size_t p = 0; p < prompts_.size(); ++p) {
        auto one = score(whole_text(prompts_[p]), [&](double done) {
          report_progress(stage, (p + done) / prompts_.size());
        });
        for (std::size_t i = 0; i < readings; ++i) scores[i].push_back(std::move(one[i]));
      }
    };
    measure_and_conclude(measure, [&] {
      if (scores.front().empty()) return;
      std::vector<ScoreSummary> summaries;
      for (const auto& reading : scores) summaries.push_back(summarize(reading));
      conclude(summaries);
    });
  }

  void measure_drafts(std::vector<SensitivityRow>& rows) {
    const std::vector<Trial> all = trials();
    std::vector<Plan> plans = {options_.base};
    for (const Trial& trial : all) plans.push_back(trial.plan);
    score_prompts(
        plans.size(), "drafts",
        [&](std::span<const TokenId> tokens, const Model::Progress& done) {
          return score_drafts(model_, plans, tokens, context_, {.round = options_.round}, done);
        },
        [&](const std::vector<ScoreSummary>& scores) { add_drafts(all, scores, rows); });
  }

  // scores: of the base and of every trial.
  void add_drafts(const std::vector<Trial>& all, const std::vector<ScoreSummary>& scores,
                  std::vector<SensitivityRow>& rows) {
    base_ = scores[0];
    const ScoreSummary target = {.acceptance = {1, 0}, .agreement = {1, 0}};
    for (StudiedPart& part : parts_) part.harm.assign(part.changes.size(), 0);
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Trial& trial = all[i];
      const ScoreSummary& with_change = scores[i + 1];
      StudiedPart& part = parts_[trial.part];
      if (trial.lowers) part.harm[trial.change] = with_change.kl.value;
      add_row(part.part.layer, trial.lowers ? "target" : "draft", part.changes[trial.change].name,
              with_change, trial.lowers ? target : base_,
              static_cast<std::ptrdiff_t>(bytes(trial.plan)) -
                  static_cast<std::ptrdiff_t>(bytes(trial.lowers ? target_ : options_.base)),
              rows);
    }
  }

  static void add_row(std::optional<int> layer, std::string from, std::string change,
                      const ScoreSummary& with, const ScoreSummary& without,
                      std::ptrdiff_t bytes_change, std::vector<SensitivityRow>& rows) {
    rows.push_back({layer, std::move(from), std::move(change), with.kl, with.acceptance,
                    with.kl.value - without.kl.value,
                    with.acceptance.value - without.acceptance.value, bytes_change});
  }

  // fp16, the target as it is, and with each layer's KV in full precision.
  std::vector<Variant> layer_targets() const {
    std::vector<Variant> variants = kv_variants(model_.model);
    variants.resize(2);
    for (int layer = 0; layer < num_layers_; ++layer) {
      variants.push_back({fmt::format("layer {}", layer), Plan::target(num_layers_, {layer})});
    }
    return variants;
  }

  void measure_targets(std::vector<SensitivityRow>& rows) {
    const std::vector<Variant> variants = layer_targets();
    score_prompts(
        variants.size(), "targets",
        [&](std::span<const TokenId> tokens, const Model::Progress& done) {
          return score_variants(model_, variants, tokens, context_, context_, done);
        },
        [&](const std::vector<ScoreSummary>& scores) { add_targets(scores, rows); });
  }

  // scores: of layer_targets().
  void add_targets(const std::vector<ScoreSummary>& scores, std::vector<SensitivityRow>& rows) {
    const ScoreSummary& plain = scores[1];
    std::vector<std::pair<double, int>> by_kl;  // what is left of it, layer
    for (int layer = 0; layer < num_layers_; ++layer) {
      const ScoreSummary& with = scores[layer + 2];
      by_kl.emplace_back(with.kl.value, layer);
      add_row(layer, "target vs fp16", "KV: full", with, plain,
              static_cast<std::ptrdiff_t>(full_layer_bytes()), rows);
    }
    std::ranges::sort(by_kl);
    const std::size_t count =
        std::min<std::size_t>(options_.target_bytes / full_layer_bytes(), num_layers_);
    for (std::size_t i = 0; i < count; ++i) full_layers_.push_back(by_kl[i].second);
    std::ranges::sort(full_layers_);
  }

  // The sum of what its parts do alone. NaN where the study has not tried one of them.
  double predicted_kl(const Plan& plan) const {
    double kl = 0;
    for (const StudiedPart& part : parts_) {
      std::size_t c = 0;
      while (c < part.changes.size() && !part.has(plan, c)) ++c;
      if (c == part.changes.size()) return std::numeric_limits<double>::quiet_NaN();
      kl += part.harm[c];
    }
    return kl;
  }

  PlanOutcome predict(const Plan& plan) const {
    const double kl = predicted_kl(plan);
    return {plan.name, bytes(plan), kl, predict_acceptance(kl, base_), {}, {}};
  }

  const EvalModel& model_;
  std::span<const Prompt> prompts_;
  const SensitivityOptions& options_;
  const ProgressCallback& progress_;
  int num_layers_;
  int context_;
  Plan target_;  // read as a draft would
  std::vector<StudiedPart> parts_;
  ScoreSummary base_;
  std::vector<int> full_layers_;
};

void require_sense(std::span<const Prompt> prompts, std::span<const Prompt> held_out,
                   const SensitivityOptions& options) {
  check(!prompts.empty() && !held_out.empty(), "there are prompts");
  for (const auto& some : {prompts, held_out}) {
    for (const Prompt& prompt : some) {
      check(prompt.tokens.size() == prompts.front().tokens.size(), "prompts of one length");
    }
  }
  if (!options.base.target_full_layers.empty()) {
    fail(ErrorKind::kInvalidRequest,
         "{} {}: its target has layers in full precision; a plan without them works", field::kPlan,
         options.base.name);
  }
}

}  // namespace

void eval_sensitivity(const EvalModel& model, std::span<const Prompt> prompts,
                      std::span<const Prompt> held_out, const SensitivityOptions& options,
                      const ProgressCallback& progress, SensitivityResult& result) {
  require_sense(prompts, held_out, options);
  Study study(model, prompts, options, progress);
  study.require_budgets();
  study.require_room();
  result = {.prompts = static_cast<int>(prompts.size()), .base = options.base};
  study.measure(result);
  study.choose(result);
  study.verify(held_out, result);
}

}  // namespace quantspec
