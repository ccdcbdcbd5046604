// What the server counts, in Prometheus' text format: by the names of vLLM, which dashboards and
// routers know, of llama.cpp, and by our own. Thread-safe. Private to api/.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace quantspec::api {

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds);  // ascending
  void observe(double value);
  // The lines of its samples.
  void write(std::string_view name, std::string& out) const;

 private:
  std::vector<double> bounds_;
  std::vector<std::uint64_t> counts_;  // of each bound, and of what is above all
  double sum_ = 0;
};

// Names with their help and type, each once, and samples.
class Exposition {
 public:
  void number(std::string_view name, std::string_view type, std::string_view help, double value,
              std::string_view labels = {});
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram);
  std::string take() { return std::move(text_); }

 private:
  void head(std::string_view name, std::string_view type, std::string_view help);
  std::string last_;  // the name whose head was written
  std::string text_;
};

// Of one answer of a request.
struct EndedChoice {
  const GenerateResult* result;
  std::string_view finish;  // "stop", "length", "cancelled", "error"
  double first_token_seconds = 0;
  double seconds = 0;
  int max_tokens = -1;
};

class Metrics {
 public:
  Metrics();
  void answered(std::string_view path, int status);
  void refused(std::string_view cause);    // of requests of generation, before they began
  void cancelled(std::string_view cause);  // closed set
  void first_token(double seconds);
  void next_token(double seconds);  // after the one before
  void choice_ended(const EndedChoice& choice);
  void request_ended(int n);

  // What is known here. The rest is the engine's (statistics.cc).
  void write(Exposition& out) const;
  double tokens_per_request() const;  // generated, on average
  std::uint64_t tokens() const;       // computed of prompts, and generated

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::uint64_t> answers_;
  std::map<std::string, std::uint64_t, std::less<>> refusals_;
  std::map<std::string, std::uint64_t, std::less<>> cancels_;
  std::map<std::string, std::uint64_t, std::less<>> finishes_;
  Histogram ttft_, itl_, e2e_, decode_, prompt_sizes_, generated_sizes_, ns_, max_tokens_;
  std::uint64_t prompt_tokens_ = 0, cached_tokens_ = 0, generated_tokens_ = 0, ended_ = 0;
  double prompt_seconds_ = 0, generated_seconds_ = 0;
  std::uint64_t rounds_ = 0, drafted_ = 0, accepted_ = 0, looked_up_ = 0, looked_up_accepted_ = 0;
  std::vector<std::uint64_t> accepted_at_;
  std::uint64_t most_tokens_ = 0;
};

}  // namespace quantspec::api
