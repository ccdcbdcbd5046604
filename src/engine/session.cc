#include <algorithm>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/fields.h"
#include "engine/request_loop.h"
#include "engine/stop_matcher.h"
#include "engine/turns.h"

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
       prompt_tokens, room, field::kContext);
}

// A token of so many bytes would be a rare one.
constexpr std::size_t kBytesPerToken = 16;

double per_second(double count, double milliseconds) {
  return milliseconds > 0 ? 1e3 * count / milliseconds : 0.0;
}

void report(const Request::Ended& ended, Engine& engine, GenerateResult& result) {
  result.cached_tokens = ended.cached_tokens;
  result.speculation = ended.stats;
  result.drafts_off = ended.drafts_off;
  result.draft_choice = ended.draft_choice;
  const Weights& weights = engine.model().weights();
  result.memory = {.weights_bytes = weights.checkpoint_bytes(),
                   .draft_weights_bytes = weights.draft_bytes(),
                   .kv_bytes = ended.page_bytes,
                   .ring_bytes = ended.ring_bytes,
                   .gathered_bytes = ended.gathered_bytes,
                   .kv_fp16_bytes = engine.pool().shape().fp16_token_bytes() * ended.tokens};
}

}  // namespace

// A request of a session in its loop. The calling thread steps the loop, when it has the turn, and
// takes what came of its own request between two steps; any other thread that steps the loop brings
// it as well. Left before it has ended, it is cancelled.
class Session::Running {
 public:
  struct News {
    std::vector<std::pair<TokenId, bool>> tokens = {};  // and whether they were drafted
    double read = 0;                                    // share of the prompt
    std::optional<Request::Ended> ended = {};
  };

  // ends: tokens that end the text.
  Running(Turns& turns, RequestLoop& loop, Request request, std::vector<TokenId> ends)
      : turns_(turns), loop_(loop) {
    request.on_progress = [news = news_](double share) { news->read = share; };
    // Who is slow to take its tokens is not decoded beyond the end of its text.
    request.on_tokens = [news = news_, ends = std::move(ends)](const Step& step) {
      for (std::size_t i = 0; i < step.tokens.size(); ++i) {
        news->tokens.emplace_back(step.tokens[i], static_cast<int>(i) < step.accepted);
      }
      return std::ranges::find_first_of(step.tokens, ends) == step.tokens.end();
    };
    request.on_end = [news = news_](const Request::Ended& ended) { news->ended = ended; };
    id_ = loop_.submit(std::move(request));
  }
  ~Running() {
    if (!ended_) cancel();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  // What came since the last call; steps the loop if that is nothing. Throws what ended the
  // request.
  News next() {
    const Turns::Turn turn(turns_, &loop_);
    if (news_->tokens.empty() && !news_->ended) loop_.step();
    News news = *news_;
    news_->tokens.clear();
    ended_ = news.ended.has_value();
    if (ended_ && news.ended->error) throw Error(*news.ended->error);
    return news;
  }

  // Ends it; a caller that still wants to know how gets that of next().
  void cancel() noexcept {
    try {
      loop_.cancel(id_);
      const Turns::Turn turn(turns_, &loop_);
      loop_.step();
    } catch (...) {
      // Whoever steps the loop next meets it again.
    }
  }

 private:
  Turns& turns_;
  RequestLoop& loop_;
  RequestId id_;
  bool ended_ = false;
  std::shared_ptr<News> news_ = std::make_shared<News>();  // written and read in turns of the loop
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
  const Turns::Turn turn(*engine.turns_, nullptr);
  if (!plans.empty()) own_loop_ = engine.make_loop(engine.loop_options(std::move(plans)));
  loop_ = own_loop_ != nullptr ? own_loop_.get() : &engine.shared_loop();
}

Session::~Session() {
  const Turns::Turn turn(*engine_.turns_, nullptr);
  own_loop_.reset();
}

// Of tokens, those of the text and those to come. The last token needs no place in the cache.
int Session::room() const { return engine_.ctx_size_ - static_cast<int>(text_.size()); }

GenerateResult Session::generate(std::string_view prompt, const GenerateOptions& options,
                                 const TokenCallback& on_token) {
  const Busy busy(*this);
  const bool first = text_.empty();
  if (first && prompt.empty()) fail_empty_prompt();
  return run(engine_.encode(prompt, first, std::max(room(), 0)), options, on_token);
}

GenerateResult Session::generate(std::span<const TokenId> prompt, const GenerateOptions& options,
                                 const TokenCallback& on_token) {
  const Busy busy(*this);
  return run(prompt, options, on_token);
}

GenerateResult Session::run(std::span<const TokenId> prompt, const GenerateOptions& options,
                            const TokenCallback& on_token) {
  if (options.predict == 0 || options.predict < -1) {
    fail(ErrorKind::kInvalidRequest, "{} {}: at least 1, or -1 for no limit", field::kPredict,
         options.predict);
  }
  engine_.model_.weights().require_unchanged();  // again at the end: this is before all the work
  require_room(prompt.size());
  Request request;
  request.prompt = text_;
  request.prompt.insert(request.prompt.end(), prompt.begin(), prompt.end());
  const int most = room() - static_cast<int>(prompt.size()) + 1;
  request.predict = options.predict < 0 ? most : std::min(options.predict, most);
  request.sampling = options.sampling;
  request.spec_sampling = options.spec_sampling;
  request.draft_len = options.draft_len;
  request.salt = options.salt;
  std::vector<TokenId> text = request.prompt;

  GenerateResult result;
  result.prompt_tokens = static_cast<int>(prompt.size());
  result.tokens.reserve(request.predict);
  result.stop_reason =
      request.predict == options.predict ? StopReason::kLength : StopReason::kContext;
  Output output(engine_, options, on_token, result);
  // Refuses what cannot be.
  Running running(*engine_.turns_, *loop_, std::move(request),
                  options.ignore_eos ? std::vector<TokenId>() : engine_.config().eos_tokens);
  text_.clear();
  continue_text(running, options, output, result);
  result.timings.prefill_tokens_per_second = per_second(
      static_cast<double>(text.size()) - result.cached_tokens, result.timings.prefill_ms);
  engine_.model_.weights().require_unchanged();
  text.insert(text.end(), result.tokens.begin(), result.tokens.end());
  text_ = std::move(text);
  return result;
}

void Session::continue_text(Running& running, const GenerateOptions& options, Output& output,
                            GenerateResult& result) {
  const Stopwatch clock;
  double first_token_ms = 0;
  bool stopped = false;
  Running::News news;
  for (double told = -1; !news.ended;) {
    news = running.next();
    if (options.progress && result.tokens.empty() && news.read > told) {
      told = news.read;
      options.progress("prefill", told);
    }
    for (const auto& [token, drafted] : news.tokens) {
      if (stopped) break;  // of a round that went beyond the stop
      if (result.tokens.empty()) first_token_ms = clock.milliseconds();
      stopped = output.push(token, drafted);
      if (stopped && !news.ended) running.cancel();
    }
  }
  output.finish();
  result.timings.prefill_ms = first_token_ms;
  result.timings.decode_ms = clock.milliseconds() - first_token_ms;
  result.timings.decode_tokens_per_second =
      per_second(static_cast<double>(result.tokens.size()) - 1, result.timings.decode_ms);
  report(*news.ended, engine_, result);
}

void Session::require_room(std::size_t prompt_tokens) const {
  if (prompt_tokens + text_.size() == 0) fail_empty_prompt();
  const auto left = static_cast<std::size_t>(std::max(room(), 0));
  if (prompt_tokens > left || room() < 0) fail_no_room(fmt::format("{}", prompt_tokens), left);
}

}  // namespace quantspec
