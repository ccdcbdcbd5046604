// Passes over given text, as decoding would read it: every position sees the cache at the precision
// that section 3 of docs/design.md gives it, whatever the number of tokens in a pass. Private to
// eval/. Not thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "eval/eval.h"

namespace quantspec {

// Rows of one forced pass: few enough that distributions over a large vocabulary stay small.
inline constexpr int kMaxForcedRows = 32;

// The prompt and what truly follows it: two tokens or more.
std::vector<TokenId> whole_text(const Prompt& prompt);

// One variant's cache and how it is read.
class ForcedPass {
 public:
  // capacity: tokens.
  ForcedPass(const EvalModel& model, int capacity, const Variant& variant);
  // Goes on from where `other` is: its prompt need not be read again.
  // REQUIRES: other.shares_prompt(variant).
  ForcedPass(const ForcedPass& other, const Variant& variant);

  // Whether a cache that `variant` reads is like this one, after the same prompt.
  bool shares_prompt(const Variant& variant) const;
  void prefill(std::span<const TokenId> tokens, const Model::Progress& progress = {});
  // The most tokens of the next forward: it may not span a page boundary.
  int max_rows() const;
  // logits: [tokens, vocab_size], of what follows each.
  void forward(std::span<const TokenId> tokens, std::span<float> logits);
  const Model& model() const { return model_; }

 private:
  void quantize_what_left_the_ring();
  void quantize_page(int layer, int first_position);

  const Model& model_;
  const Variant& variant_;
  KvCache cache_;
  int coded_ = 0;  // with a codec: positions below it are quantized
};

// A pass for every variant, which has read the prompt: the first `prompt` tokens. It takes no more
// than `tokens`. The variants outlive it.
std::vector<std::unique_ptr<ForcedPass>> open_passes(const EvalModel& model,
                                                     const std::vector<Variant>& variants,
                                                     std::span<const TokenId> tokens, int prompt,
                                                     const Model::Progress& progress);
// The scores of every variant on the same tokens, against variants[0]: [variants][rows], row r of
// the token at position first_scored + r, which predicts the token after it. The first `prompt`
// tokens are read as prompts are, the others by forced passes.
// REQUIRES: prompt <= first_scored < tokens.size() - 1.
std::vector<std::vector<Score>> score_variants(const EvalModel& model,
                                               const std::vector<Variant>& variants,
                                               std::span<const TokenId> tokens, int prompt,
                                               int first_scored, const Model::Progress& progress);
// The same of passes that have read the prompt, each of its own model.
// REQUIRES: the models have one vocabulary and one page size.
std::vector<std::vector<Score>> score_passes(std::span<const std::unique_ptr<ForcedPass>> passes,
                                             std::span<const TokenId> tokens, int prompt,
                                             int first_scored, const Model::Progress& progress);

// How drafts are tried after a prompt.
struct TrialOptions {
  int round = 5;  // tokens of the target passes by whose attention sparse plans choose their pages
  int chunk = 0;  // as in Variant
};

// Neighbours with one target, which may share a trial.
std::vector<std::vector<Plan>> by_target(const std::vector<Plan>& plans);

// The scores of every draft plan against its target, [plans][rows], one row for each token after
// the first `prompt` but the last. A score is that of the first draft step after the token: the
// draft sees the target's K and V of all tokens before. Pages are chosen by the attention mass of
// the last whole round. REQUIRES: the plans have one target (kv_options).
std::vector<std::vector<Score>> score_drafts(const EvalModel& model, const std::vector<Plan>& plans,
                                             std::span<const TokenId> tokens, int prompt,
                                             const TrialOptions& options,
                                             const Model::Progress& progress);

}  // namespace quantspec
