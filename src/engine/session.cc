#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/error.h"
#include "engine/engine_impl.h"
#include "engine/session_file.h"

namespace quantspec {

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

// What the engine's thread tells of a request, until the session's takes it. Both have it: a
// session that throws is gone before its request has ended.
class Session::News {
 public:
  struct Told {
    TokenEvent event;
    std::string text;               // the event's
    std::vector<TokenId> rejected;  // likewise
  };
  struct Batch {
    std::vector<Told> told = {};
    double read = -1;  // share of the prompt; negative: no news
    std::optional<Outcome> outcome = {};
  };

  void read(double share) {
    add([&](Batch& batch) { batch.read = share; });
  }
  void tell(const TokenEvent& event) {
    add([&](Batch& batch) {
      batch.told.push_back(
          {event, std::string(event.text), {event.rejected.begin(), event.rejected.end()}});
      batch.told.back().event.top_log_probs = {};  // the result has them
    });
  }
  void end(Outcome outcome) {
    add([&](Batch& batch) { batch.outcome = std::move(outcome); });
  }
  // What came since the last call; waits while that is nothing.
  Batch next() {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [this] { return any_; });
    any_ = false;
    return std::exchange(batch_, {});
  }

 private:
  void add(const auto& change) {
    {
      const std::lock_guard lock(mutex_);
      change(batch_);
      any_ = true;
    }
    came_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable came_;
  Batch batch_;
  bool any_ = false;
};

void Session::save(const std::filesystem::path& file, std::string_view note) const {
  engine_.save_text(file, text_, note);
}

std::string Session::load(const std::filesystem::path& file) {
  const Busy busy(*this);
  Engine::SavedText saved = engine_.load_text(file);
  text_ = std::move(saved.tokens);
  return std::move(saved.note);
}

int Session::room() const { return engine_.ctx_size() - static_cast<int>(text_.size()); }

GenerateResult Session::generate(std::string_view prompt, const GenerateOptions& options,
                                 const TokenCallback& on_token) {
  const Busy busy(*this);
  const bool first = text_.empty();
  if (first && prompt.empty()) Engine::Impl::fail_empty_prompt();
  return run(engine_.encode(prompt, first, std::max(room(), 0)), options, on_token);
}

GenerateResult Session::generate(std::span<const TokenId> prompt, const GenerateOptions& options,
                                 const TokenCallback& on_token) {
  const Busy busy(*this);
  return run(prompt, options, on_token);
}

GenerateResult Session::run(std::span<const TokenId> prompt, const GenerateOptions& options,
                            const TokenCallback& on_token) {
  if (engine_.impl_->is_own_thread()) {
    fail(ErrorKind::kInvalidRequest,
         "a callback of submit() cannot wait for a session; it may submit another request");
  }
  Engine::Impl::require_room(prompt.size(), room());
  std::vector<TokenId> text = text_;
  text.insert(text.end(), prompt.begin(), prompt.end());
  const auto news = std::make_shared<News>();
  GenerateOptions wanted = options;
  wanted.progress = [news](std::string_view, double share) { news->read(share); };
  const Ticket ticket = engine_.submit(
      text, wanted,
      {.on_token = [news](const TokenEvent& event) { return news->tell(event), true; },
       .on_end = [news](Outcome outcome) { news->end(std::move(outcome)); }});
  text_.clear();
  try {
    GenerateResult result = follow(*news, ticket, options, on_token);
    result.prompt_tokens = static_cast<int>(prompt.size());
    text.insert(text.end(), result.tokens.begin(), result.tokens.end());
    text_ = std::move(text);
    return result;
  } catch (...) {
    ticket.cancel();
    throw;
  }
}

// The engine goes on while the caller takes its time: of what came after its last word nothing is
// in the result.
GenerateResult Session::follow(News& news, const Ticket& ticket, const GenerateOptions& options,
                               const TokenCallback& on_token) {
  std::string text;
  std::size_t count = 0;
  bool wants_more = true;
  for (;;) {
    News::Batch batch = news.next();
    if (options.progress && batch.read >= 0) options.progress("prefill", batch.read);
    for (auto& [event, shown, rejected] : batch.told) {
      if (!wants_more) break;
      event.text = shown;
      event.rejected = rejected;
      text += shown;
      if (!event.more_text) ++count;
      wants_more = !on_token || on_token(event);
      if (!wants_more) ticket.cancel();
    }
    if (!batch.outcome) continue;
    if (batch.outcome->error) throw Error(*batch.outcome->error);
    GenerateResult result = std::move(batch.outcome->result);
    const bool ended_itself =
        result.stop_reason == StopReason::kEos || result.stop_reason == StopReason::kStop;
    if (wants_more || (ended_itself && count == result.tokens.size())) return result;
    result.stop_reason = StopReason::kCancelled;
    result.text = std::move(text);
    result.tokens.resize(count);
    if (!result.log_probs.empty()) result.log_probs.resize(count);
    result.top_log_probs.resize(result.log_probs.size() * options.top_log_probs);
    return result;
  }
}

// --- texts in files ---

namespace {

// What a program that writes one text knows: prefixes of no salt.
constexpr std::string_view kSavedSalt;

}  // namespace

void Engine::save_text(const std::filesystem::path& file, std::span<const TokenId> tokens,
                       std::string_view note) {
  if (note.size() > SessionInfo::kMostNoteBytes) {
    fail(ErrorKind::kInvalidRequest, "{}: a note of {} bytes; {} are the most", file.string(),
         note.size(), SessionInfo::kMostNoteBytes);
  }
  NewFile::require_possible(file);
  NewFile::remove_abandoned(file);
  SessionInfo info{
      .fingerprint = fingerprint(), .note = std::string(note), .tokens = tokens.size()};
  std::optional<SessionFileWriter> written;
  impl_->running_loop().read_prefix(
      kSavedSalt, tokens,
      [&](const RequestLoop::KeptPrefix& kept) {
        info.chunks = kept.chunks;
        info.chunk_bytes = kept.chunk_bytes;
        info.tail_tokens = kept.tail_tokens;
        info.tail_bytes = kept.tail_bytes;
        written.emplace(file, info);
        written->add(std::as_bytes(tokens));
      },
      [&](std::span<const std::byte> part) { written->add(part); });
  written->finish();
}

Engine::SavedText Engine::load_text(const std::filesystem::path& file) {
  const SessionFile saved(file);
  const SessionInfo& info = saved.info();
  const std::string here = fingerprint();
  if (info.fingerprint != here) {
    fail(ErrorKind::kInvalidRequest,
         "{}: was written by another engine ({}, this is {}): only the same model on the same kind "
         "of processor goes on with it",
         file.string(), info.fingerprint, here);
  }
  SavedText text{saved.tokens(), info.note};
  for (const TokenId token : text.tokens) {
    if (token >= 0 && token < config().vocab_size) continue;
    fail(ErrorKind::kCorruptFile, "{}: has the token {}; the model's are 0 to {}", file.string(),
         token, config().vocab_size - 1);
  }
  impl_->running_loop().write_prefix(
      kSavedSalt, text.tokens, {info.chunks, info.chunk_bytes, info.tail_tokens, info.tail_bytes},
      [&](std::uint64_t index) { return saved.chunk(index); }, [&] { return saved.tail(); });
  return text;
}

}  // namespace quantspec
