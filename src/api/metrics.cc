#include "api/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace quantspec::api {

namespace {

// vLLM's, so that its dashboards fit.
const std::vector<double> kFirstToken = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                         1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const std::vector<double> kNextToken = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                        .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const std::vector<double> kRequest = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                      30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const std::vector<double> kTokens = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                     1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
const std::vector<double> kNs = {1, 2, 5, 10, 20};

}  // namespace

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

void Histogram::observe(double value) {
  const auto bound = std::ranges::lower_bound(bounds_, value);
  ++counts_[bound - bounds_.begin()];
  sum_ += value;
}

void Histogram::write(std::string_view name, std::string& out) const {
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < bounds_.size(); ++i) {
    count += counts_[i];
    out += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, bounds_[i], count);
  }
  count += counts_.back();
  out +=
      fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name, count, sum_);
}

void Exposition::head(std::string_view name, std::string_view type, std::string_view help) {
  if (last_ == name) return;
  last_ = name;
  text_ += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

void Exposition::number(std::string_view name, std::string_view type, std::string_view help,
                        double value, std::string_view labels) {
  head(name, type, help);
  const std::string braces = labels.empty() ? "" : fmt::format("{{{}}}", labels);
  text_ += fmt::format("{}{} {}\n", name, braces, value);
}

void Exposition::histogram(std::string_view name, std::string_view help,
                           const Histogram& histogram) {
  head(name, "histogram", help);
  histogram.write(name, text_);
}

Metrics::Metrics()
    : ttft_(kFirstToken),
      itl_(kNextToken),
      e2e_(kRequest),
      decode_(kRequest),
      prompt_sizes_(kTokens),
      generated_sizes_(kTokens),
      ns_(kNs),
      max_tokens_(kTokens) {
  for (const char* finish : {"stop", "length", "cancelled", "error"}) finishes_[finish] = 0;
  for (const char* cause : {"gone", "stalled", "timeout", "drain", "end"}) cancels_[cause] = 0;
  for (const char* cause : {"front", "requests", "tokens", "queue"}) refusals_[cause] = 0;
}

void Metrics::answered(std::string_view path, int status) {
  const std::lock_guard lock(mutex_);
  ++answers_[{std::string(path), status}];
}

void Metrics::refused(std::string_view cause) {
  const std::lock_guard lock(mutex_);
  ++refusals_.find(cause)->second;
}

void Metrics::cancelled(std::string_view cause) {
  const std::lock_guard lock(mutex_);
  ++cancels_.find(cause)->second;
}

void Metrics::first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  ttft_.observe(seconds);
}

void Metrics::next_token(double seconds) {
  const std::lock_guard lock(mutex_);
  itl_.observe(seconds);
}

void Metrics::choice_ended(const EndedChoice& choice) {
  const GenerateResult& result = *choice.result;
  const std::lock_guard lock(mutex_);
  const auto finish = finishes_.find(choice.finish);
  ++finish->second;
  ++ended_;
  const std::size_t generated = result.tokens.size();
  prompt_tokens_ += result.prompt_tokens;
  cached_tokens_ += result.cached_tokens;
  generated_tokens_ += generated;
  prompt_seconds_ += result.timings.prefill_ms / 1e3;
  generated_seconds_ += result.timings.decode_ms / 1e3;
  e2e_.observe(choice.seconds);
  if (generated > 0) decode_.observe(result.timings.decode_ms / 1e3);
  prompt_sizes_.observe(result.prompt_tokens);
  generated_sizes_.observe(static_cast<double>(generated));
  if (choice.max_tokens > 0) max_tokens_.observe(choice.max_tokens);
  rounds_ += result.speculation.drafted_at.front();
  drafted_ += result.speculation.drafted;
  accepted_ += result.speculation.accepted;
  looked_up_ += result.speculation.looked_up;
  looked_up_accepted_ += result.speculation.looked_up_accepted;
  const auto& at = result.speculation.accepted_at;
  accepted_at_.resize(at.size());
  for (std::size_t i = 0; i < at.size(); ++i) accepted_at_[i] += at[i];
  most_tokens_ = std::max<std::uint64_t>(most_tokens_, result.prompt_tokens + generated);
}

void Metrics::request_ended(int n) {
  const std::lock_guard lock(mutex_);
  ns_.observe(n);
}

double Metrics::tokens_per_request() const {
  const std::lock_guard lock(mutex_);
  return ended_ == 0 ? 0 : static_cast<double>(generated_tokens_) / static_cast<double>(ended_);
}

std::uint64_t Metrics::tokens() const {
  const std::lock_guard lock(mutex_);
  return prompt_tokens_ - cached_tokens_ + generated_tokens_;
}

namespace {

double ratio(double a, double b) { return b > 0 ? a / b : 0; }

}  // namespace

void Metrics::write(Exposition& out) const {
  const std::lock_guard lock(mutex_);
  const auto counter = [&](std::string_view name, std::string_view help, auto value,
                           std::string_view labels = {}) {
    out.number(name, "counter", help, static_cast<double>(value), labels);
  };
  const auto gauge = [&](std::string_view name, std::string_view help, double value) {
    out.number(name, "gauge", help, value);
  };
  const std::uint64_t computed = prompt_tokens_ - cached_tokens_;

  counter("vllm:prompt_tokens_total", "Tokens of prompts.", prompt_tokens_);
  counter("vllm:generation_tokens_total", "Generated tokens.", generated_tokens_);
  counter("vllm:prefix_cache_queries_total", "Tokens of prompts that were looked for.",
          prompt_tokens_);
  counter("vllm:prefix_cache_hits_total", "Those that the cache had.", cached_tokens_);
  for (const auto& [finish, count] : finishes_) {
    counter("vllm:request_success_total", "Answers, by how they ended.", count,
            fmt::format("finished_reason=\"{}\"", finish));
  }
  for (const auto& [cause, count] : refusals_) {
    counter("vllm:admission_rejections_total", "Requests that found no room.", count,
            fmt::format("reason=\"{}\"", cause));
  }
  out.histogram("vllm:time_to_first_token_seconds", "From a request to its first token.", ttft_);
  out.histogram("vllm:inter_token_latency_seconds", "From a token to the next.", itl_);
  out.histogram("vllm:e2e_request_latency_seconds", "From a request to its end.", e2e_);
  out.histogram("vllm:request_decode_time_seconds", "From the first token to the end.", decode_);
  out.histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", prompt_sizes_);
  out.histogram("vllm:request_generation_tokens", "Tokens of an answer.", generated_sizes_);
  out.histogram("vllm:request_params_n", "Answers that a request asks for.", ns_);
  out.histogram("vllm:request_params_max_tokens", "Tokens that a request allows.", max_tokens_);
  counter("vllm:spec_decode_num_drafts_total", "Rounds that drafted.", rounds_);
  counter("vllm:spec_decode_num_draft_tokens_total", "Drafted tokens.", drafted_);
  counter("vllm:spec_decode_num_accepted_tokens_total", "Those that were accepted.", accepted_);
  for (std::size_t i = 0; i < accepted_at_.size(); ++i) {
    counter("vllm:spec_decode_num_accepted_tokens_per_pos_total",
            "Accepted tokens, by their place in a draft.", accepted_at_[i],
            fmt::format("position=\"{}\"", i));
  }

  counter("quantspec_lookup_tokens_total", "Drafted tokens that were looked up.", looked_up_);
  counter("quantspec_lookup_accepted_tokens_total", "Those that were accepted.",
          looked_up_accepted_);
  counter("llamacpp:prompt_tokens_total", "Tokens of prompts that were computed.", computed);
  counter("llamacpp:prompt_seconds_total", "Seconds until first tokens.", prompt_seconds_);
  counter("llamacpp:tokens_predicted_total", "Generated tokens.", generated_tokens_);
  counter("llamacpp:tokens_predicted_seconds_total", "Seconds after first tokens.",
          generated_seconds_);
  counter("llamacpp:prompt_tokens_cached_total", "Tokens of prompts that the cache had.",
          cached_tokens_);
  counter("llamacpp:spec_decode_num_drafts_total", "Rounds that drafted.", rounds_);
  counter("llamacpp:spec_decode_num_draft_tokens_total", "Drafted tokens.", drafted_);
  counter("llamacpp:spec_decode_num_accepted_tokens_total", "Those that were accepted.", accepted_);
  counter("llamacpp:n_tokens_max", "Tokens of the longest text.", most_tokens_);
  gauge("llamacpp:prompt_tokens_seconds", "Tokens of prompts a second.",
        ratio(static_cast<double>(computed), prompt_seconds_));
  gauge("llamacpp:predicted_tokens_seconds", "Generated tokens a second.",
        ratio(static_cast<double>(generated_tokens_), generated_seconds_));

  for (const auto& [cause, count] : cancels_) {
    counter("quantspec_cancelled_total", "Requests that were given up.", count,
            fmt::format("cause=\"{}\"", cause));
  }
  for (const auto& [answer, count] : answers_) {
    counter("quantspec_http_requests_total", "Answers, by endpoint and status.", count,
            fmt::format("path=\"{}\",status=\"{}\"", answer.first, answer.second));
  }
}

}  // namespace quantspec::api
