#include "engine/receipt.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <future>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace quantspec {

namespace {

using Ordered = nlohmann::ordered_json;

constexpr int kVersion = 1;

}  // namespace

bool repeatable(const GenerateOptions& options) {
  return options.spec_sampling == SpecSampling::kCoupled || options.sampling.greedy();
}

Receipt make_receipt(std::string fingerprint, const Engine& engine, std::vector<TokenId> prompt,
                     const GenerateOptions& options, const GenerateResult& result) {
  check(repeatable(options), "a receipt is of an answer that comes again");
  Receipt receipt{std::move(fingerprint), std::move(prompt), options, result.tokens};
  // How many an engine may generate follows from its context where nothing else limits them.
  const int most = engine.ctx_size() - static_cast<int>(receipt.prompt.size()) + 1;
  int& predict = receipt.options.predict;
  predict = predict < 0 ? most : std::min(predict, most);
  receipt.stopped =
      result.stop_reason == StopReason::kEos || result.stop_reason == StopReason::kStop;
  return receipt;
}

// --- JSON ---

namespace {

Ordered sampling_of(const SamplingParams& sampling) {
  return {{"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"repeat_penalty", sampling.repeat_penalty},
          {"repeat_last_n", sampling.repeat_last_n},
          {"presence_penalty", sampling.presence_penalty},
          {"frequency_penalty", sampling.frequency_penalty},
          {"seed", sampling.seed}};
}

// Members of an object, each of a type and within limits.
class Members {
 public:
  Members(const nlohmann::json& json, std::string_view where) : json_(json), where_(where) {
    if (!json.is_object()) fail("is no receipt");
  }

  [[noreturn]] void fail(std::string_view what) const {
    quantspec::fail(ErrorKind::kCorruptFile, "{}: {}", where_, what);
  }
  const nlohmann::json& at(const char* name) const {
    const auto found = json_.find(name);
    if (found == json_.end()) fail(fmt::format("a receipt has {}", name));
    return *found;
  }
  std::string text(const char* name) const {
    const auto& value = at(name);
    if (!value.is_string()) fail(fmt::format("{} is text", name));
    return value.get<std::string>();
  }
  bool truth(const char* name) const {
    const auto& value = at(name);
    if (!value.is_boolean()) fail(fmt::format("{} is true or false", name));
    return value.get<bool>();
  }
  float real(const char* name) const {
    const auto& value = at(name);
    if (!value.is_number()) fail(fmt::format("{} is a number", name));
    return value.get<float>();
  }
  std::uint64_t whole(const char* name) const {
    const auto& value = at(name);
    if (!value.is_number_unsigned()) fail(fmt::format("{} is a whole number", name));
    return value.get<std::uint64_t>();
  }
  int number(const nlohmann::json& value, const char* name) const {
    constexpr std::int64_t kMost = std::numeric_limits<int>::max();
    const bool is_whole = value.is_number_integer() &&
                          (!value.is_number_unsigned() || value.get<std::uint64_t>() <= kMost);
    if (!is_whole || value.get<std::int64_t>() < -kMost) {
      fail(fmt::format("{} is a whole number, not as large", name));
    }
    return value.get<int>();
  }
  int number(const char* name) const { return number(at(name), name); }
  const nlohmann::json& list(const char* name) const {
    const auto& value = at(name);
    if (!value.is_array()) fail(fmt::format("{} is a list", name));
    return value;
  }
  std::vector<TokenId> tokens(const char* name) const {
    std::vector<TokenId> tokens;
    for (const auto& token : list(name)) tokens.push_back(number(token, name));
    return tokens;
  }

 private:
  const nlohmann::json& json_;
  std::string_view where_;
};

SamplingParams read_sampling(const nlohmann::json& json, std::string_view where) {
  const Members members(json, where);
  SamplingParams sampling;
  sampling.temperature = members.real("temperature");
  sampling.top_k = members.number("top_k");
  sampling.top_p = members.real("top_p");
  sampling.min_p = members.real("min_p");
  sampling.repeat_penalty = members.real("repeat_penalty");
  sampling.repeat_last_n = members.number("repeat_last_n");
  sampling.presence_penalty = members.real("presence_penalty");
  sampling.frequency_penalty = members.real("frequency_penalty");
  sampling.seed = members.whole("seed");
  return sampling;
}

}  // namespace

// NOTE: JSON has no infinity, which a bias may be: null.
Ordered to_json(const Receipt& receipt) {
  const GenerateOptions& options = receipt.options;
  Ordered biases = Ordered::array();
  for (const LogitBias& bias : options.logit_bias) {
    const bool finite = bias.add > -std::numeric_limits<float>::infinity();
    biases.push_back({bias.id, finite ? Ordered(bias.add) : Ordered(nullptr)});
  }
  return {{"version", kVersion},
          {"system_fingerprint", receipt.fingerprint},
          {"prompt", receipt.prompt},
          {"max_tokens", options.predict},
          {"min_tokens", options.min_tokens},
          {"stop", options.stop},
          {"stop_token_ids", options.stop_ids},
          {"ignore_eos", options.ignore_eos},
          {"logit_bias", std::move(biases)},
          {"sampling", sampling_of(options.sampling)},
          {"tokens", receipt.tokens},
          {"stopped", receipt.stopped}};
}

Receipt read_receipt(const nlohmann::json& json, std::string_view where) {
  const Members members(json, where);
  if (members.number("version") != kVersion) {
    members.fail(
        fmt::format("a receipt of version {}; {} is known", members.number("version"), kVersion));
  }
  Receipt receipt{members.text("system_fingerprint"),
                  members.tokens("prompt"),
                  {},
                  members.tokens("tokens"),
                  members.truth("stopped")};
  GenerateOptions& options = receipt.options;
  options.predict = members.number("max_tokens");
  options.min_tokens = members.number("min_tokens");
  for (const auto& stop : members.list("stop")) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty()) {
      members.fail("stop has texts");
    }
    options.stop.push_back(stop.get<std::string>());
  }
  options.stop_ids = members.tokens("stop_token_ids");
  options.ignore_eos = members.truth("ignore_eos");
  for (const auto& bias : members.list("logit_bias")) {
    if (!bias.is_array() || bias.size() != 2 || !(bias[1].is_number() || bias[1].is_null())) {
      members.fail("logit_bias has pairs of a token and a number");
    }
    options.logit_bias.push_back(
        {members.number(bias[0], "logit_bias"),
         bias[1].is_null() ? -std::numeric_limits<float>::infinity() : bias[1].get<float>()});
  }
  options.sampling = read_sampling(members.at("sampling"), where);
  options.spec_sampling = SpecSampling::kCoupled;
  if (receipt.tokens.empty()) members.fail("an answer has a token");
  if (std::cmp_greater(receipt.tokens.size(), std::max(options.predict, 0))) {
    members.fail("an answer has at most max_tokens");
  }
  return receipt;
}

// --- verification ---

namespace {

// One answer on its way: the engine writes it again, with the answer proposed, up to where it would
// go on otherwise.
class Check {
 public:
  explicit Check(const Receipt& receipt) : receipt_(receipt) {}

  Ticket submit(Engine& engine) {
    GenerateOptions options = receipt_.options;
    options.spec_sampling = SpecSampling::kCoupled;
    options.proposed = receipt_.tokens;
    options.draft_len = 0;
    return engine.submit(receipt_.prompt, options,
                         {.on_token = [this](const TokenEvent& event) { return take(event); },
                          .on_end = [this](Outcome outcome) { end(std::move(outcome)); }});
  }
  Verdict wait() { return done_.get_future().get(); }

 private:
  bool take(const TokenEvent& event) {
    verdict_.text += event.text;
    if (event.more_text) return true;
    const std::vector<TokenId>& tokens = receipt_.tokens;
    if (next_ < tokens.size() && event.id == tokens[next_]) return ++next_, true;
    verdict_.differs = next_;
    verdict_.own = event.id;
    return false;
  }
  void end(Outcome outcome) {
    if (outcome.error) {
      return done_.set_exception(std::make_exception_ptr(Error(*outcome.error)));
    }
    const StopReason reason = outcome.result.stop_reason;
    const bool stopped = reason == StopReason::kEos || reason == StopReason::kStop;
    // Tokens behind an end, or an end of another kind.
    if (verdict_.good() && (next_ < receipt_.tokens.size() || stopped != receipt_.stopped)) {
      verdict_.differs = next_;
    }
    if (verdict_.good()) verdict_.text = outcome.result.text;
    verdict_.cached_tokens = outcome.result.cached_tokens;
    done_.set_value(verdict_);
  }

  const Receipt& receipt_;
  std::size_t next_ = 0;  // token of the answer
  Verdict verdict_;
  std::promise<Verdict> done_;
};

}  // namespace

std::vector<Verdict> verify(Engine& engine, std::span<const Receipt> receipts) {
  const std::string here = engine.fingerprint();
  for (const Receipt& receipt : receipts) {
    if (receipt.fingerprint == here) continue;
    fail(ErrorKind::kInvalidRequest,
         "the answer was written by another engine ({}, this is {}): the same model on the same "
         "kind of processor can check it",
         receipt.fingerprint, here);
  }
  engine.start();
  const Stopwatch clock;
  std::vector<std::unique_ptr<Check>> checks;
  std::vector<Verdict> verdicts;
  std::vector<Ticket> tickets;
  std::exception_ptr error;
  // As many at once as an engine lets wait of one owner; whoever was submitted calls back.
  constexpr std::size_t kAtOnce = 256;
  for (std::size_t first = 0; first < receipts.size() && !error; first += kAtOnce) {
    const auto some = receipts.subspan(first, std::min(kAtOnce, receipts.size() - first));
    checks.clear();
    tickets.clear();
    try {
      for (const Receipt& receipt : some) {
        checks.push_back(std::make_unique<Check>(receipt));
        tickets.push_back(checks.back()->submit(engine));
      }
    } catch (...) {
      error = std::current_exception();
      for (const Ticket& ticket : tickets) ticket.cancel();
    }
    for (std::size_t i = 0; i < tickets.size(); ++i) {
      try {
        verdicts.push_back(checks[i]->wait());
      } catch (...) {
        if (!error) error = std::current_exception();
      }
    }
  }
  if (error) std::rethrow_exception(error);
  for (Verdict& verdict : verdicts) verdict.seconds = clock.seconds();
  return verdicts;
}

}  // namespace quantspec
