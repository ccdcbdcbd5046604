// How requests come to a RequestLoop, are admitted and preempted, and end.
//
// Whatever is thrown on the way belongs to one request, which ends by it: the inbox is taken one by
// one, and the scheduler, the slots and the pages are as they were without it.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/request_loop_impl.h"

namespace quantspec {

namespace {

// Whatever is thrown by it, what follows is done.
void try_to(const auto& act, std::string_view who) noexcept {
  try {
    act();
  } catch (...) {
    log_caught(who);
  }
}

}  // namespace

// Ranks hear of it: what one did not do, none can go on with.
RequestLoop::Impl::Ending RequestLoop::Impl::failure() const {
  const Error error = current_error("the engine");
  agreement.give_up(error.what());
  return {RequestEnd::kFailed, error};
}

// Who comes meanwhile is for the next step. Returns whether anything is changed by it.
bool RequestLoop::Impl::drain_inbox() {
  RequestId last = 0;
  {
    const std::lock_guard lock(inbox_mutex);
    last = last_id;
  }
  bool changed = false;
  while (auto arrived = agreed_arrival(last)) {
    arrive(std::move(arrived));
    changed = true;
  }
  for (auto next = agreed_wish(0, last); next; next = agreed_wish(next->first, last)) {
    grant(*live.at(next->first), next->second);
    changed = true;
  }
  return changed;
}

void RequestLoop::Impl::grant(Live& request, Wish wanted) {
  if (wanted == Wish::kCancel) return end(request, {RequestEnd::kCancelled});
  try {
    set_paused(request, wanted == Wish::kPause);
  } catch (...) {
    end(request, failure());
  }
}

void RequestLoop::Impl::arrive(std::unique_ptr<Live> arrived) {
  Live& request = *arrived;
  const Request& wanted = request.request;
  if (!is_ahead_of(wanted)) stop_ahead();
  try {
    live.try_emplace(request.id).first->second = std::move(arrived);
    request.generated.reserve(wanted.predict);
    request.drafts = rules.join(wanted.draft_len);
    const auto submission = scheduler.submit({.id = request.id,
                                              .owner = wanted.owner,
                                              .priority = wanted.priority,
                                              .prompt_tokens = request.prompt_tokens(),
                                              .most_new_tokens = wanted.predict,
                                              .arrival = now()});
    check(submission == Scheduler::Submission::kAccepted, "what fits was submitted");
  } catch (...) {
    end(request, failure());
  }
}

// A paused request is told when it goes on how far its prompt is read, and its first token.
void RequestLoop::Impl::set_paused(Live& request, bool paused) {
  request.paused = paused;
  paused ? scheduler.pause(request.id) : scheduler.resume(request.id);
  if (paused) return;
  if (const auto share = std::exchange(request.untold_share, std::nullopt)) {
    if (const auto ending = tell_share(request, *share)) return end(request, *ending);
  }
  if (!request.untold) return;
  const Live::Untold untold = *std::exchange(request.untold, std::nullopt);
  Step step{.tokens = {&untold.token, 1},
            .accepted = 0,
            .choice = {},
            .log_probs = untold.log_prob,
            .top_log_probs = untold.top_log_probs};
  if (request.request.prompt_log_probs) step.prompt = &request.prompt_log_probs;
  if (const auto ending = tell(request, step)) {
    end(request, *ending);
  }
}

// Returns whether somebody was admitted or gave way.
bool RequestLoop::Impl::admit_waiting() {
  if (waits_for_ahead()) return false;
  for (bool changed = false;; changed = true) {
    const auto id = scheduler.candidate(now(), pool_state());
    if (id && admit(*live.at(*id))) continue;
    const auto paused = scheduler.gives_way(now());
    if (!paused) return changed;
    preempt(*live.at(*paused));
  }
}

// Returns whether it waits no longer: it was admitted, or ended by what was thrown.
bool RequestLoop::Impl::admit(Live& request) {
  const Request& wanted = request.request;
  try {
    // Its prefix is held first: pages that it shares are not to be evicted for its others.
    find_tail(request);
    if (options.share_prefixes) {
      // Who is admitted has a token to read, also where all comes back.
      const int most =
          std::min(request.most_found(free_sequences.back()->cache()), request.prompt_tokens() - 1);
      request.path = tree.match(wanted.salt, std::span(wanted.prompt).first(most));
    }
    const int found = request.path.tokens();
    const Held held{found, static_cast<std::size_t>(found / shape.page_size)};
    if (!scheduler.admit(request.id, held, now(), pool_state())) {
      request.path.disown();
      request.tail = {};
      return false;
    }
    leave_queue(request);
    begin(request, found);
  } catch (...) {
    end(request, failure());
  }
  return true;
}

void RequestLoop::Impl::begin(Live& request, int found_tokens) {
  const Request& wanted = request.request;
  request.sequence = free_sequences.back();
  free_sequences.pop_back();
  Sequence& sequence = *request.sequence;
  sequence.clear();
  const bool tells_prompt = wanted.prompt_log_probs && request.generated.empty();
  sequence.set_options({.sampling = wanted.sampling,
                        .spec_sampling = wanted.spec_sampling,
                        .plans = options.plans,
                        .reference = reference_of(wanted),
                        .log_probs = wanted.log_probs,
                        .top_log_probs = wanted.top_log_probs,
                        .prompt_log_probs = tells_prompt ? &request.prompt_log_probs : nullptr,
                        .biases = wanted.biases});
  if (found_tokens > 0) sequence.attach(request.path.pages(), request.tail.tail.get());
  request.found_until(found_tokens);
  request.reader = decoder.begin_prompt(sequence, wanted.prompt);
  if (request.tail.tail) request.reader->take(request.tail.tail, request.tail.end);
  if (swap_in(request)) scheduler.found(request.id, held(request));
}

// A text of its own is likelier than what its owner had before, and is looked up in alone.
std::vector<TokenId> RequestLoop::Impl::reference_of(const Request& wanted) {
  if (!wanted.reference.empty()) return wanted.reference;
  // Nothing is proposed that follows from the noise of the draws to come.
  std::optional<std::uint64_t> own_draws;
  if (wanted.spec_sampling == SpecSampling::kRejection && !wanted.sampling.greedy()) {
    own_draws = wanted.sampling.seed;
  }
  return kept_texts.find(wanted.owner, wanted.salt, own_draws);
}

// For the next ones of its owner.
void RequestLoop::Impl::keep_text(const Live& request) {
  const Request& ended = request.request;
  if (options.lookup_history == 0 || !ended.to_folder) return;
  KeptText text{ended.salt, ended.sampling.seed, {}};
  text.tokens.reserve(ended.prompt.size() + request.generated.size());
  for (const auto* part : {&ended.prompt, &request.generated}) {
    text.tokens.insert(text.tokens.end(), part->begin(), part->end());
  }
  kept_texts.keep(ended.owner, std::move(text));
}

// Who wants the prompt's log-probabilities reads all of it; what was saved comes back by itself.
void RequestLoop::Impl::find_tail(Live& request) {
  const Request& wanted = request.request;
  request.tail = {};
  if (wanted.prompt_log_probs || request.saved) return;
  if (has_folder && !std::exchange(request.folder_asked, true)) find_tail_in_folder(request);
  request.tail = tails.find(wanted.salt, std::span(wanted.prompt).first(wanted.prompt.size() - 1));
}

// Before the prompt's last chunk.
void RequestLoop::Impl::begin_tail(Live& request) {
  const Request& wanted = request.request;
  if (wanted.prompt_log_probs || request.saved) return;
  const int in_ring = request.sequence->cache().in_ring();
  request.new_tail = tails.begin(wanted.salt, wanted.prompt, in_ring);
  if (request.new_tail) request.reader->save(request.new_tail);
}

void RequestLoop::Impl::leave_queue(Live& request) {
  if (!std::exchange(request.queued, false)) return;
  const std::lock_guard lock(inbox_mutex);
  --num_queued;
  const auto of_owner = queued_of.find(request.request.owner);
  if (--of_owner->second == 0) queued_of.erase(of_owner);
}

void RequestLoop::Impl::leave_inbox(Live& request) {
  leave_queue(request);
  const std::lock_guard lock(inbox_mutex);
  const auto known = wishes.find(request.id);
  if (known == wishes.end()) return;
  num_wishes -= known->second != Wish::kNone;
  wishes.erase(known);
}

void RequestLoop::Impl::give_back(Live& request) {
  if (producer == &request) producer = nullptr;
  request.reader.reset();
  request.path = {};
  request.tail = {};
  request.new_tail = {};
  if (request.sequence == nullptr) return;
  request.stats += request.sequence->stats();
  request.sequence->clear();
  free_sequences.push_back(std::exchange(request.sequence, nullptr));
}

// Of the scheduler, too, unless it never knew it. Throws nothing: at last it is told.
void RequestLoop::Impl::end(Live& request, const Ending& ending) {
  const bool is_done = ending.how == RequestEnd::kDone && &request != reads_ahead;
  const auto finish = [&] {
    // Of a text that is read ahead it is told nothing, as it learns from how much is written.
    if (is_done) scheduler.finished(request.id);
  };
  // What one of several ranks did not do, the others have alone: they hear of it.
  const auto at_all = [this](const auto& act) {
    return [&] {
      try {
        act();
      } catch (...) {
        if (agreement.shared()) failure();
        throw;
      }
    };
  };
  try_to(at_all(finish), "the scheduler");
  const auto cancel = [&] { scheduler.cancel(request.id); };  // where it is still known
  try_to(at_all(cancel), "the scheduler");
  leave_inbox(request);
  Request::Ended ended{.end = ending.how};
  if (request.sequence != nullptr) {
    const KvCache& cache = request.sequence->cache();
    ended.tokens = cache.length();
    ended.page_bytes = cache.page_bytes();
    ended.ring_bytes = cache.ring_bytes();
  }
  const auto give = [&] { give_back(request); };
  try_to(at_all(give), "the engine");
  const auto keep = [&] { keep_text(request); };
  if (is_done) try_to(at_all(keep), "texts that are kept");
  if (reads_ahead == &request) {
    reads_ahead = nullptr;
    if (ending.how == RequestEnd::kDone) {
      totals.ahead_tokens += request.prompt_tokens() - request.cached_tokens;
    }
  }
  ended.cached_tokens = request.cached_tokens;
  ended.stats = request.stats;
  const auto gone = live.extract(request.id);
  try {
    ended.error = ending.error;
  } catch (...) {  // who failed is told so, if not by what
    ended.error = memory_ran_out();
  }
  const auto explain = [&] {
    if (request.drafts.rule == nullptr) return;
    ended.drafts_off = DraftRules::off(request.drafts);
    ended.draft_choice = DraftRules::explain(request.drafts);
  };
  try_to(explain, "what explains drafts");
  const auto tell_end = [&] {
    if (request.request.on_end) request.request.on_end(ended);
  };
  try_to(tell_end, "who was told the end of a request");
}

void RequestLoop::Impl::end_all(const Ending& ending) {
  while (!live.empty()) end(*live.begin()->second, ending);
}

void RequestLoop::Impl::preempt(Live& request) {
  try {
    swap_out(request);
    put_back(request);
  } catch (...) {
    end(request, failure());
  }
}

// To those that wait.
void RequestLoop::Impl::put_back(Live& request) {
  give_back(request);
  scheduler.preempted(request.id, now());
}

// What the tree has not of it goes to the host's memory, where there is room beside what others
// hold; cached prefixes make room.
void RequestLoop::Impl::swap_out(Live& request) {
  const KvCache& cache = request.sequence->cache();
  const int first = request.path.tokens();
  const bool in_flight = producer == &request;
  if (request.saved) return;                          // it is there already
  if (cache.length() <= first && !in_flight) return;  // the tree has it
  try {
    if (!in_flight && saves_caches && tree.free_on_host(cache.slots_to_save(host, first))) {
      request.saved = cache.save(host, first);
      totals.pages_swapped_out += request.saved->pages.slots();
      ++totals.swaps;
      return;
    }
  } catch (...) {  // it is read again, as where there is no room
    rethrow_for_ranks();
  }
  ++totals.replays;
}

// Brings it back, as soon as the cache holds what goes before. If others have the pages by now, or
// it does not come, the request waits again, to be read again. Returns whether it does not.
bool RequestLoop::Impl::swap_in(Live& request) {
  Sequence& sequence = *request.sequence;
  if (!request.saved || sequence.cache().length() != request.saved->first) return true;
  const auto saved = std::exchange(request.saved, std::nullopt);
  const std::size_t pages = saved->pages.slots();
  bool is_back = false;
  if (pages <= pool_state().pages()) {
    try {
      make_room(pages);
      sequence.restore(host, *saved);
      is_back = true;
    } catch (...) {
      rethrow_for_ranks();
    }
  }
  if (is_back) {
    totals.pages_swapped_in += pages;
    if (saved->lengths.length() >= request.prompt_tokens()) end_prompt(request);
  } else {
    ++totals.replays;
    put_back(request);
  }
  return is_back;
}

}  // namespace quantspec
