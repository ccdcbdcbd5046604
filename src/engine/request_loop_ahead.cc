// What a RequestLoop reads while there is nothing else to do: texts with which somebody will
// probably go on. Each is a request of nobody, of which one token is generated and dropped.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/request_loop_impl.h"

namespace quantspec {

namespace {

bool begins_with(const std::vector<TokenId>& text, const std::vector<TokenId>& beginning) {
  return text.size() >= beginning.size() &&
         std::ranges::equal(std::span(text).first(beginning.size()), beginning);
}

}  // namespace

// A text that it goes on with is read by reading it.
void RequestLoop::Impl::remember_ahead(Request request) {
  {
    const std::lock_guard lock(inbox_mutex);
    std::erase_if(ahead, [&](const Request& other) {
      return other.salt == request.salt && begins_with(request.prompt, other.prompt);
    });
    ahead.push_front(std::move(request));
    if (ahead.size() > kMostAhead) ahead.pop_back();
  }
  inbox_changed.notify_one();
}

std::optional<Request> RequestLoop::Impl::next_ahead() {
  const std::lock_guard lock(inbox_mutex);
  if (ahead.empty()) return std::nullopt;
  Request next = std::move(ahead.front());
  ahead.pop_front();
  return next;
}

RequestId RequestLoop::Impl::next_id() {
  const auto next = [this] {
    const std::lock_guard lock(inbox_mutex);
    return ++last_id;
  };
  return agreement.on(next());
}

// Returns whether there is more to do.
bool RequestLoop::Impl::begin_ahead() {
  if (now() - idle_since < options.read_ahead_after) return false;
  auto next = agreed_ahead();
  if (!next) return false;
  const int tokens = static_cast<int>(next->prompt.size());
  const bool is_known = tails.find(next->salt, next->prompt).end == tokens;
  const RequestInfo info{.id = 0, .prompt_tokens = tokens, .most_new_tokens = 1};
  const bool fits = scheduler.can_ever_fit(info) == Scheduler::Submission::kAccepted;
  if (!fits || is_known) return true;
  auto reader = std::make_unique<Live>();
  reader->request = std::move(*next);
  reader->queued = false;  // nobody submitted it
  const RequestId id = reader->id = next_id();
  arrive(std::move(reader));
  const auto made = live.find(id);
  if (made != live.end()) reads_ahead = made->second.get();
  return true;
}

// Whether a request finds what is read, and so waits for it.
bool RequestLoop::Impl::is_ahead_of(const Request& request) const {
  if (!waits_for_ahead() || request.prompt_log_probs) return false;
  const Request& text = reads_ahead->request;
  return request.salt == text.salt && request.prompt.size() > text.prompt.size() &&
         begins_with(request.prompt, text.prompt);
}

// It is read another time; its whole chunks stay.
void RequestLoop::Impl::stop_ahead() {
  if (reads_ahead == nullptr) return;
  Live& reader = *reads_ahead;
  try {
    const std::lock_guard lock(inbox_mutex);
    if (agreement.leads() && ahead.size() < kMostAhead) ahead.push_front(reader.request);
  } catch (...) {
    log_caught("what is read ahead");
  }
  end(reader, {RequestEnd::kCancelled});
}

}  // namespace quantspec
