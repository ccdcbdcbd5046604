#include "eval/report_views.h"

#include "base/fields.h"

namespace quantspec {

namespace {

constexpr const char* kScoresLegend =
    "KL: divergence from the reference; same top-1: share of tokens with the same likeliest one.";

}  // namespace

std::vector<ReportView> perplexity_views() {
  return {{"Perplexity, against the first row",
           {{"KV and weights", "variant"},
            {"windows", "windows"},
            {"tokens", "tokens"},
            {"perplexity", "perplexity"},
            {"Δ nats/token", "delta_nll", "delta_nll_error"}},
           "tokens: scored; Δ: of -log q of the true token, ± standard error over windows."},
          {"Distance from the first row",
           {{"KV and weights", "variant"},
            {"nats/token", "nll"},
            {"KL, nats", "kl_mean"},
            {"KL 99%, nats", "kl_p99"},
            {"same top-1", "top1_agreement"}},
           kScoresLegend}};
}

std::vector<ReportView> perplexity_position_views() {
  return {{"By position in the window",
           {{"KV and weights", "variant"},
            {"positions", "first_position", "last_position", "-"},
            {"tokens", "tokens"},
            {"nats/token", "nll"},
            {"KL, nats", "kl_mean"},
            {"same top-1", "top1_agreement"}},
           kScoresLegend}};
}

std::vector<ReportView> fidelity_views() {
  return {
      {"How often drafts would be accepted",
       {{"reading", "reading"},
        {"against", "reference"},
        {"context", "context"},
        {"prompts", "prompts"},
        {"tokens", "tokens"},
        {"acceptance", "acceptance", "acceptance_error"},
        {"same top-1", "top1_agreement"}},
       "acceptance: mean of sum min(p, q), at temperature 1; same top-1: acceptance when greedy."},
      {"Distance from the reference",
       {{"reading", "reading"},
        {"against", "reference"},
        {"context", "context"},
        {"KL, nats", "kl_mean", "kl_error"},
        {"KL 99%, nats", "kl_p99"},
        {"nats/token", "nll"}},
       "KL: divergence from the reference, ± standard error over prompts; nats/token: -log q."}};
}

std::vector<ReportView> fidelity_position_views() {
  return {{"By tokens after the prompt",
           {{"reading", "reading"},
            {"against", "reference"},
            {"context", "context"},
            {"after", "first_token", "last_token", "-"},
            {"acceptance", "acceptance"},
            {"same top-1", "top1_agreement"},
            {"KL, nats", "kl_mean"}},
           "after: tokens after the prompt, counted from 0; the others as above."}};
}

std::vector<ReportView> target_views() {
  const ReportColumn reading{"target", "reading"}, reference{"against", "reference"},
      context{"context", "context"};
  return {{"Targets against the same model, read otherwise: perplexity",
           {reading,
            reference,
            context,
            {"tokens", "tokens"},
            {"perplexity", "perplexity"},
            {"change", "perplexity_change"},
            {"Δ nats/token", "delta_nll", "delta_nll_error"}},
           "change, Δ: from what it is against; ±: standard error over prompts."},
          {"The same: distance",
           {reading,
            reference,
            context,
            {"KL, nats", "kl_mean", "kl_error"},
            {"KL 99%, nats", "kl_p99"},
            {"same top-1", "top1_agreement"}},
           kScoresLegend}};
}

std::vector<ReportView> prefill_views() {
  const ReportColumn context{"context", "context"}, chunk{"chunk", "chunk"};
  return {{"Targets after prompts in chunks, against those after prompts as one",
           {context,
            chunk,
            {"prompts", "prompts"},
            {"tokens", "tokens"},
            {"KL, nats", "kl_mean", "kl_error"},
            {"KL 99%", "kl_p99"},
            {"same top-1", "top1_agreement"},
            {"Δ nats/token", "delta_nll", "delta_nll_error"}},
           "tokens: after the prompts; ±: standard error over prompts; Δ: of -log q of the true "
           "token."},
          {"Seconds that a prompt takes, in this run",
           {context,
            chunk,
            {"prompts", "prompts"},
            {"in chunks", "seconds", "seconds_error"},
            {"as one", "whole_seconds", "whole_seconds_error"},
            {"ratio", "ratio", "ratio_error"}},
           "ratio: in chunks to as one, prompt by prompt."}};
}

std::vector<ReportView> prefill_draft_views() {
  return {
      {"How often drafts would be accepted after such prompts",
       {{"plan", "plan"},
        {"context", "context"},
        {"chunk", "chunk"},
        {"tokens", "tokens"},
        {"in chunks", "acceptance", "acceptance_error"},
        {"as one", "whole_acceptance", "whole_acceptance_error"},
        {"change", "acceptance_change", "acceptance_change_error"}},
       "Acceptance: mean of sum min(p, q) against the target of the same prompt; change: prompt "
       "by prompt."}};
}

std::vector<ReportView> sensitivity_views() {
  const ReportColumn layer{"layer", "layer"}, change{"change", "change"}, kl{"KL, nats", "kl_mean"},
      acceptance{"acceptance", "acceptance"},
      kilobytes{.heading = "Δ KB", .key = "bytes_change", .scale = 1e-3};
  return {
      {"Lowered: the target with one part changed",
       {change, layer, kl, acceptance, kilobytes},
       "As a draft, against the target; Δ KB: what a draft step reads more than the target.",
       {"from", "target"}},
      {Message::format("Raised: the draft of {} with one part changed", field::kPlan),
       {change,
        layer,
        kl,
        {"Δ KL", "kl_change"},
        acceptance,
        {"Δ acceptance", "acceptance_change"},
        kilobytes},
       Message::format("Δ: against the draft of {} as it is; Δ KB: what a draft step reads more.",
                       field::kPlan),
       {"from", "draft"}},
      {"Full in the target: one layer's KV kept in fp16, against fp16 KV in all",
       {change, layer, kl, {"Δ KL", "kl_change"}, acceptance, kilobytes},
       "Δ: against the target as it is; Δ KB: what memory takes more.",
       {"from", "target vs fp16"}}};
}

std::vector<ReportView> plan_views() {
  const ReportColumn plan{"plan", "plan"};
  return {
      {"The uniform plan and the chosen one, on prompts that had no say: acceptance",
       {plan,
        {.heading = "KB/step", .key = "draft_bytes", .scale = 1e-3},
        {"predicted", "predicted_acceptance"},
        {"acceptance", "acceptance", "acceptance_error"},
        {"same top-1", "top1_agreement"},
        {"tokens", "tokens"}},
       "KB/step: what a draft step reads; acceptance: mean of sum min(p, q), at temperature 1."},
      {"The same: KL divergence, nats",
       {plan,
        {"predicted", "predicted_kl"},
        {"KL", "kl_mean", "kl_error"},
        {"KL 99%", "kl_p99"},
        {"target's KL", "target_kl_mean"},
        {"its same top-1", "target_top1_agreement"}},
       "KL: of the draft from its target; target's: of the plan's target from fp16 KV."}};
}

std::vector<ReportView> entropy_views() {
  return {
      {"Attention entropy, over pages and ring",
       {{"layer", "layer"}, {"entropy, nats", "entropy"}, {"of the greatest", "entropy_relative"}},
       "of the greatest: 1 if all pages and the ring had equal shares."}};
}

std::vector<ReportView> chosen_views() {
  return {
      {"The chosen plan",
       {{"layer", "layer"},
        {"weights, bits", "weights"},
        {"KV", "kv"},
        {"pages", "pages"},
        {"budget, tokens", "budget"},
        {"target's KV", "target_kv"}},
       "KV: planes that are read, upper 4 bits, both 8, full fp16; pages: all, those of most mass, "
       "none."}};
}

std::vector<ReportView> lossless_views() {
  return {{"Generation with speculation against plain decoding",
           {{"prompt", "prompt"},
            {"sampling", "sampling"},
            {"plan", "plan"},
            {"len", "draft_len"},
            {"tokens", "tokens"},
            {"differs", "first_difference"},
            {"accept", "acceptance_rate"},
            {"tok/round", "tokens_per_round"}},
           "len: draft length; differs: the first token that is not the same; accept: share of the "
           "drafted."}};
}

std::vector<ReportView> stream_views() {
  return {{"Many requests at once against each alone",
           {{"prompt", "prompt"},
            {"sampling", "sampling"},
            {"plan", "plan"},
            {"len", "draft_len"},
            {"warm", "warm"},
            {"step", "arrival_step"},
            {"cached", "cached_tokens"},
            {"preempt", "preemptions"},
            {"differs", "first_difference"},
            {"accept", "acceptance_rate"}},
           "warm: the loop had read the prompts before; step: at which it came; cached: tokens of "
           "the prompt that were found; differs: the first token that is not the same, or has "
           "another probability."}};
}

}  // namespace quantspec
