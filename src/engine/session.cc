#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/stop_matcher.h"

namespace quantspec {

// What becomes of tokens on their way out: text, stop rules, the caller.
class Session::Output {
 public:
  Output(const Engine& engine, const GenerateOptions& options, const TokenCallback& on_token,
         GenerateResult& result)
      : eos_(engine.config().eos_tokens),
        ignore_eos_(options.ignore_eos),
        on_token_(on_token),
        decoder_(engine.tokenizer(), /*at_start=*/false),  // a prompt came before
        stops_(options.stop),
        result_(result) {}

  // Takes one token; true when the generation ends with it, for result.stop_reason.
  bool push(TokenId token, bool drafted) {
    result_.tokens.push_back(token);
    const bool eos = !ignore_eos_ && std::find(eos_.begin(), eos_.end(), token) != eos_.end();
    const bool go_on = emit(token, eos ? std::string() : decoder_.push(token), drafted);
    if (eos) return stop(StopReason::kEos);
    if (stops_.stopped()) return stop(StopReason::kStop);
    return !go_on && stop(StopReason::kCancelled);
  }

  // Shows what was held back.
  void finish() {
    if (stops_.stopped() || result_.tokens.empty()) return;
    std::string text = stops_.push(decoder_.flush());
    text += stops_.flush();
    if (!text.empty()) show(result_.tokens.back(), text, false);
  }

 private:
  bool stop(StopReason reason) {
    result_.stop_reason = reason;
    return true;
  }
  bool emit(TokenId token, const std::string& text, bool drafted) {
    return show(token, stops_.push(text), drafted);
  }
  bool show(TokenId token, const std::string& text, bool drafted) {
    result_.text += text;
    return !on_token_ || on_token_({token, text, drafted});
  }

  const std::vector<TokenId>& eos_;
  bool ignore_eos_;
  const TokenCallback& on_token_;
  StreamDecoder decoder_;
  StopMatcher stops_;
  GenerateResult& result_;
};

namespace {

[[noreturn]] void fail_empty_prompt() {
  fail(ErrorKind::kInvalidRequest, "the prompt is empty; give at least one character of text");
}

[[noreturn]] void fail_no_room(std::string_view prompt_tokens, std::size_t room) {
  fail(ErrorKind::kInvalidRequest,
       "the prompt has {} tokens and the context has room for {}; a shorter prompt or a larger {} "
       "works",
       prompt_tokens, room, Field::kContext);
}

// A token of so many bytes would be a rare one.
constexpr std::size_t kBytesPerToken = 16;

double per_second(double count, double milliseconds) {
  return milliseconds > 0 ? 1e3 * count / milliseconds : 0.0;
}

// What the plans need of the cache. Throws kOutOfMemory for what the engine could not plan for: it
// did not know them.
KvOptions session_kv(const std::vector<Plan>& plans, KvStore store, const KvShape& shape,
                     const Backend& backend, int capacity) {
  KvOptions options = kv_options(plans);
  options.store = store;
  const std::size_t needed = KvCache::gathered_bytes_for(shape, backend, options) +
                             KvCache::ring_bytes_for(shape, backend, capacity, options);
  const std::size_t available = backend.available_bytes();
  if (needed > available) {
    fail(
        ErrorKind::kOutOfMemory,
        "{} {}: needs {:.0f} MB for KV in full precision and {:.0f} MB are available; a smaller {} "
        "or {} works",
        Field::kPlan, plans.front().name, needed / 1e6, available / 1e6, Field::kDraftBudget,
        Field::kContext);
  }
  return options;
}

}  // namespace

// A pass of the engine: one at a time, and none inside another, as a progress callback could ask
// for.
class Session::Pass {
 public:
  explicit Pass(Engine& engine) : engine_(engine), turn_(engine.turn_) {
    if (engine.in_pass_) {
      fail(ErrorKind::kInvalidRequest,
           "generate() was called by a progress callback, inside a pass of the same engine; a "
           "callback of tokens may call it for another session");
    }
    engine.in_pass_ = true;
  }
  ~Pass() { engine_.in_pass_ = false; }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

 private:
  Engine& engine_;
  std::lock_guard<std::recursive_mutex> turn_;
};

// While a session generates.
class Session::Busy {
 public:
  explicit Busy(Session& session) : session_(session) {
    if (!session.generates_.exchange(true)) return;
    fail(ErrorKind::kInvalidRequest,
         "this session is generating already; another text needs a session of its own");
  }
  ~Busy() { session_.generates_ = false; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  Session& session_;
};

// Of a text that is much too long only as much is encoded as shows it. What a tokenizer makes of
// the end of a part may be other tokens than it makes of the whole, but not many more.
std::vector<TokenId> Engine::encode(std::string_view text, bool add_special, int room) const {
  constexpr std::size_t kMargin = 64;
  const std::size_t most = static_cast<std::size_t>(room) + kMargin;
  for (std::size_t bytes = kBytesPerToken * most; bytes < text.size(); bytes *= 4) {
    if (tokenizer_->encode(text.substr(0, bytes), false).size() <= most) continue;
    fail_no_room(fmt::format("more than {}", room), room);
  }
  return tokenizer_->encode(text, add_special);
}

Session::Session(Engine& engine, std::vector<Plan> plans) : engine_(engine) {
  const std::lock_guard turn(engine.turn_);
  plans_ = plans.empty() ? engine.own_plans() : std::move(plans);
  sequence_.emplace(engine.model_, engine.pool_, engine.ctx_size_, DecodingOptions{},
                    session_kv(plans_, engine.kv_store_, engine.pool_.shape(), *engine.backend_,
                               engine.ctx_size_));
}

Session::~Session() {
  const std::lock_guard turn(engine_.turn_);
  sequence_.reset();
}

GenerateResult Session::generate(std::string_view prompt, const GenerateOptions& options,
                                 const TokenCallback& on_token) {
  const Busy busy(*this);
  const bool first = sequence_->tokens().empty();
  if (first && prompt.empty()) fail_empty_prompt();
  const int pending = first ? 0 : 1;
  return run(engine_.encode(prompt, first, sequence_->room() - pending), options, on_token);
}

GenerateResult Session::generate(std::span<const TokenId> prompt, const GenerateOptions& options,
                                 const TokenCallback& on_token) {
  const Busy busy(*this);
  return run(prompt, options, on_token);
}

GenerateResult Session::run(std::span<const TokenId> prompt, const GenerateOptions& options,
                            const TokenCallback& on_token) {
  if (options.predict == 0 || options.predict < -1) {
    fail(ErrorKind::kInvalidRequest, "{} {}: at least 1, or -1 for no limit", Field::kPredict,
         options.predict);
  }
  engine_.model_.weights().require_unchanged();  // again at the end: this is before all the work
  require_tokens(prompt);
  require_room(prompt.size());
  sequence_->set_options(decoding_options(options));
  GenerateResult result;
  result.prompt_tokens = static_cast<int>(prompt.size());
  const int room = sequence_->room() - result.prompt_tokens + 1;
  result.tokens.reserve(options.predict < 0 ? room : std::min(options.predict, room));
  Output output(engine_, options, on_token, result);
  try {
    continue_text(prompt, options, output, result);
  } catch (...) {
    const std::lock_guard turn(engine_.turn_);
    sequence_->clear();
    throw;
  }
  result.timings.prefill_tokens_per_second =
      per_second(result.prompt_tokens, result.timings.prefill_ms);
  result.timings.decode_tokens_per_second =
      per_second(static_cast<double>(result.tokens.size()) - 1, result.timings.decode_ms);
  result.speculation = sequence_->stats();
  result.drafts_off = !options.draft_len && sequence_->control().off();
  result.draft_choice = sequence_->control().explain();
  result.memory = memory_used();
  return result;
}

void Session::continue_text(std::span<const TokenId> prompt, const GenerateOptions& options,
                            Output& output, GenerateResult& result) {
  const Stopwatch prefill_clock;
  const TokenId first = prefill(prompt, options.progress);
  result.timings.prefill_ms = prefill_clock.milliseconds();
  const Stopwatch decode_clock;
  if (!output.push(first, false)) decode(options.predict, output, result);
  output.finish();
  result.timings.decode_ms = decode_clock.milliseconds();
  engine_.model_.weights().require_unchanged();
}

TokenId Session::prefill(std::span<const TokenId> prompt, const ProgressCallback& progress) {
  const Pass pass(engine_);
  return engine_.decoder_.prefill(*sequence_, prompt, [&](double done) {
    if (progress) progress("prefill", done);
  });
}

Decoder::Step Session::step(int max_tokens) {
  const Pass pass(engine_);
  return engine_.decoder_.step(*sequence_, max_tokens);
}

// Rounds until a stop rule, the limit or the end of the context.
void Session::decode(int predict, Output& output, GenerateResult& result) {
  const int limit = predict < 0 ? std::numeric_limits<int>::max() : predict;
  while (static_cast<int>(result.tokens.size()) < limit) {
    if (sequence_->room() == 0) {
      result.stop_reason = StopReason::kContext;
      return;
    }
    const std::size_t before = sequence_->tokens().size();
    const int wanted = std::min(limit - static_cast<int>(result.tokens.size()), sequence_->room());
    const Decoder::Step step = this->step(wanted);
    for (std::size_t i = 0; i < step.tokens.size(); ++i) {
      if (output.push(step.tokens[i], static_cast<int>(i) < step.accepted)) {
        sequence_->truncate(before + i + 1);
        return;
      }
    }
  }
  result.stop_reason = StopReason::kLength;
}

DecodingOptions Session::decoding_options(const GenerateOptions& options) const {
  if (options.draft_len &&
      (*options.draft_len < 0 || *options.draft_len > DraftControl::kMaxDraftLen)) {
    fail(ErrorKind::kInvalidRequest, "{} {}: supported are auto and 0 to {}", Field::kDraftLen,
         *options.draft_len, DraftControl::kMaxDraftLen);
  }
  return {options.sampling, options.spec_sampling, options.draft_len, plans_};
}

void Session::require_tokens(std::span<const TokenId> prompt) const {
  const int vocab_size = engine_.config().vocab_size;
  for (const TokenId token : prompt) {
    if (token >= 0 && token < vocab_size) continue;
    fail(ErrorKind::kInvalidRequest, "the prompt has the token {}; the model's are 0 to {}", token,
         vocab_size - 1);
  }
}

void Session::require_room(std::size_t prompt_tokens) const {
  const std::size_t pending = sequence_->tokens().empty() ? 0 : 1;
  if (prompt_tokens + pending == 0) {
    fail_empty_prompt();
  }
  const auto capacity = static_cast<std::size_t>(sequence_->room());
  if (prompt_tokens + pending > capacity) {
    fail_no_room(fmt::format("{}", prompt_tokens), capacity - std::min(capacity, pending));
  }
}

MemoryPlan Session::memory_used() const {
  const KvCache& cache = sequence_->cache();
  MemoryPlan plan;
  plan.weights_bytes = engine_.model_.weights().checkpoint_bytes();
  plan.draft_weights_bytes = engine_.model_.weights().draft_bytes();
  plan.kv_bytes = cache.page_bytes();
  plan.ring_bytes = cache.ring_bytes();
  plan.gathered_bytes = cache.gathered_bytes();
  plan.kv_fp16_bytes = cache.shape().fp16_token_bytes() * cache.length();
  return plan;
}

}  // namespace quantspec
