#include "engine/request_loop.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/request_loop_impl.h"

namespace quantspec {

namespace {

KvOptions cache_options(const RequestLoopOptions& options) {
  KvOptions kv = kv_options(options.plans);
  kv.store = options.store;
  kv.chunk = options.chunk;
  return kv;
}

RoundBytes round_bytes(const Model& model, const KvShape& shape,
                       const RequestLoopOptions& options) {
  const KvOptions kv = cache_options(options);
  return {model, shape, kv.store, Plan::target(model.config().num_layers, kv.full_layers),
          options.plans};
}

bool gathers(const Plan& plan) {
  return std::ranges::any_of(
      plan.layers, [](const LayerPlan& layer) { return layer.run && layer.kv.gathers(); });
}

bool has_own_target(const Plan& plan) { return !plan.target_full_layers.empty(); }

// A prompt's pages are all that its cache has of it.
bool shares_pages(const RequestLoopOptions& options) {
  const auto keeps_more = [](const Plan& plan) { return gathers(plan) || has_own_target(plan); };
  return options.store == KvStore::kHierarchical && std::ranges::none_of(options.plans, keeps_more);
}

}  // namespace
RequestLoop::Impl::Impl(const Model& used, const KvShape& of, RequestLoopOptions given)
    : options(std::move(given)),
      model(used),
      shape(of),
      pool(model.backend(), shape, options.pages),
      host(model.backend(), shape, options.host_bytes),
      tree(pool, options.chunk, &host),
      decoder(model),
      rules(round_bytes(model, shape, options)),
      scheduler({.page_tokens = shape.page_size,
                 .chunk_tokens = options.chunk,
                 .total_pages = options.pages,
                 .context_tokens = options.context,
                 .most_waiting = options.max_waiting,
                 .admission = options.admission}) {
  totals.turns_by_plan.resize(options.plans.size());
  const KvOptions kv = cache_options(options);
  model.reserve_prefill(shape, options.chunk, options.context);
  for (int i = 0; i < options.sequences; ++i) {
    sequences.push_back(std::make_unique<Sequence>(model, pool, options.context,
                                                   DecodingOptions{.plans = options.plans}, kv));
    free_sequences.push_back(sequences.back().get());
  }
  decoder.reserve(free_sequences);
  // A device's memory is taken now: later that would hold up all that run.
  const bool on_device = model.backend().repeats_rounds();
  if (on_device && options.store == KvStore::kHierarchical) pool.reserve(options.pages);
}

// Pages that nobody uses are what the tree is made of.
void RequestLoop::Impl::make_room(std::size_t pages) {
  if (pages > pool.free()) tree.evict(pages - pool.free());
}

// --- requests come and go ------------------------------------------------------------------------

bool RequestLoop::Impl::drain_inbox() {
  std::vector<std::unique_ptr<Live>> arrived;
  std::vector<RequestId> gone;
  std::vector<std::pair<RequestId, bool>> asked;
  {
    const std::lock_guard lock(inbox_mutex);
    arrived.swap(submitted);
    gone.swap(cancelled);
    asked.swap(paused);
  }
  for (std::unique_ptr<Live>& request : arrived) {
    const Request& wanted = request->request;
    const RequestInfo info{.id = request->id,
                           .owner = wanted.owner,
                           .priority = wanted.priority,
                           .prompt_tokens = request->prompt_tokens(),
                           .most_new_tokens = wanted.predict,
                           .arrival = now()};
    Live& known = *(live[request->id] = std::move(request));
    known.drafts = rules.join(wanted.draft_len);
    switch (scheduler.submit(info)) {
      case Scheduler::Submission::kAccepted:
        break;
      case Scheduler::Submission::kQueueFull:
        end(known, RequestEnd::kFailed,
            Error(ErrorKind::kOutOfMemory,
                  Message::format("too many requests wait; one of them has to end first")));
        break;
      case Scheduler::Submission::kExceedsContext:
      case Scheduler::Submission::kExceedsPages:
        end(known, RequestEnd::kFailed,
            Error(ErrorKind::kInvalidRequest,
                  Message::format(
                      "{} tokens of prompt and {} to generate do not fit the {} of a context",
                      info.prompt_tokens, info.most_new_tokens, options.context)));
    }
  }
  for (const RequestId id : gone) {
    if (!scheduler.cancel(id)) continue;
    end(*live.at(id), RequestEnd::kCancelled);
  }
  for (const auto& [id, pause] : asked) {
    pause ? scheduler.pause(id) : scheduler.resume(id);
  }
  return !arrived.empty() || !gone.empty();
}

void RequestLoop::Impl::admit_waiting() {
  while (const auto id = scheduler.candidate(now(), pool_state())) {
    if (!admit(*live.at(*id))) break;
  }
}

bool RequestLoop::Impl::admit(Live& request) {
  // Its prefix is held first: pages that it shares are not to be evicted for its others.
  const Request& wanted = request.request;
  Sequence& sequence = *free_sequences.back();
  if (options.share_prefixes) {
    // Who is admitted has a token to read, also where all comes back.
    const int most = std::min(request.most_found(sequence.cache()), request.prompt_tokens() - 1);
    request.path = tree.match(wanted.salt, std::span(wanted.prompt).first(most));
  }
  const Held found{request.path.tokens(),
                   static_cast<std::size_t>(request.path.tokens() / shape.page_size)};
  if (!scheduler.admit(request.id, found, now(), pool_state())) {
    request.path = {};
    return false;
  }
  request.found_tokens = found.tokens;
  request.cached_tokens = std::max(request.cached_tokens, found.tokens);
  request.sequence = &sequence;
  free_sequences.pop_back();
  sequence.clear();
  sequence.set_options({.sampling = wanted.sampling,
                        .spec_sampling = wanted.spec_sampling,
                        .plans = options.plans,
                        .log_probs = wanted.log_probs});
  if (found.tokens > 0) sequence.attach(request.path.pages());
  request.reader = decoder.begin_prompt(sequence, wanted.prompt);
  if (swap_in(request)) scheduler.found(request.id, held(request));
  return true;
}

void RequestLoop::Impl::give_back(Live& request) {
  if (producer == &request) producer = nullptr;
  request.reader.reset();
  request.path = {};
  if (request.sequence == nullptr) return;
  request.stats += request.sequence->stats();
  request.sequence->clear();
  free_sequences.push_back(std::exchange(request.sequence, nullptr));
}

void RequestLoop::Impl::finish(Live& request, RequestEnd how, std::optional<Error> error) {
  scheduler.finished(request.id);
  end(request, how, std::move(error));
}

// The scheduler knows it no more.
void RequestLoop::Impl::end(Live& request, RequestEnd how, std::optional<Error> error) {
  Request::Ended ended{.end = how, .error = std::move(error)};
  if (request.sequence != nullptr) {
    const KvCache& cache = request.sequence->cache();
    ended.tokens = cache.length();
    ended.page_bytes = cache.page_bytes();
    ended.ring_bytes = cache.ring_bytes();
    ended.gathered_bytes = cache.gathered_bytes();
  }
  give_back(request);
  const auto gone = live.extract(request.id);
  if (!request.request.on_end) return;
  ended.cached_tokens = request.cached_tokens;
  ended.stats = request.stats;
  ended.drafts_off = DraftRules::off(request.drafts);
  ended.draft_choice = DraftRules::explain(request.drafts);
  request.request.on_end(ended);
}

void RequestLoop::Impl::preempt(Live& request) {
  swap_out(request);
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
  if (!in_flight && shares_pages(options) && tree.free_on_host(cache.slots_to_save(host, first))) {
    request.saved = cache.save(host, first);
    totals.pages_swapped_out += request.saved->pages.slots();
    ++totals.swaps;
  } else {
    ++totals.replays;
  }
}

// Brings it back, as soon as the cache holds what goes before. Returns whether it is there. If
// others have the pages by now, the request is preempted again, to be read again.
bool RequestLoop::Impl::swap_in(Live& request) {
  Sequence& sequence = *request.sequence;
  if (!request.saved || sequence.cache().length() != request.saved->first) return false;
  const KvCache::Saved saved = *std::exchange(request.saved, std::nullopt);
  const std::size_t pages = saved.pages.slots();
  if (pages > pool_state().pages()) {
    ++totals.replays;
    give_back(request);
    scheduler.preempted(request.id, now());
    return false;
  }
  make_room(pages);
  sequence.restore(host, saved);
  totals.pages_swapped_in += pages;
  if (saved.length >= request.prompt_tokens()) end_prompt(request);
  return true;
}

// --- the door ------------------------------------------------------------------------------------

namespace {

RequestLoopOptions resolved(const Model& model, const KvShape& shape, RequestLoopOptions options) {
  if (options.sequences > 1) RequestLoop::require_plans(options.plans);
  if (options.chunk == 0) options.chunk = model.backend().prefill_chunk();
  options.share_prefixes &= shares_pages(options);
  if (options.pages == 0) {
    const int each = (options.context + shape.page_size - 1) / shape.page_size;
    options.pages = static_cast<std::size_t>(options.sequences) * each;
  }
  return options;
}

}  // namespace

RequestLoop::RequestLoop(const Model& model, const KvShape& shape, RequestLoopOptions options)
    : impl_(std::make_unique<Impl>(model, shape, resolved(model, shape, std::move(options)))) {}

RequestLoop::~RequestLoop() = default;

void RequestLoop::require_plans(std::span<const Plan> plans) {
  for (const Plan& plan : plans) {
    if (gathers(plan)) {
      fail(ErrorKind::kInvalidRequest,
           "{} {}: drafts that gather tokens are for one sequence at a time; quantspec, its parts "
           "and its sparse forms are for many",
           Field::kPlan, plan.name);
    }
    if (has_own_target(plan)) {
      fail(ErrorKind::kInvalidRequest,
           "{} {}: a target of its own (target_full_layers) is for one sequence at a time",
           Field::kPlan, plan.name);
    }
  }
}

RequestId RequestLoop::submit(Request request) {
  const int vocab = impl_->model.config().vocab_size;
  for (const TokenId token : request.prompt) {
    if (token >= 0 && token < vocab) continue;
    fail(ErrorKind::kInvalidRequest, "the prompt has the token {}; the model's are 0 to {}", token,
         vocab - 1);
  }
  if (request.prompt.empty() || request.predict < 1) {
    fail(ErrorKind::kInvalidRequest, "a request has a prompt and generates a token or more");
  }
  if (request.draft_len && (*request.draft_len < 0 || *request.draft_len > kMaxDraftLen)) {
    fail(ErrorKind::kInvalidRequest, "{} {}: supported are auto and 0 to {}", Field::kDraftLen,
         *request.draft_len, kMaxDraftLen);
  }
  request.sampling.validate();
  auto live = std::make_unique<Live>();
  live->request = std::move(request);
  const std::lock_guard lock(impl_->inbox_mutex);
  live->id = ++impl_->last_id;
  impl_->submitted.push_back(std::move(live));
  return impl_->last_id;
}

void RequestLoop::cancel(RequestId id) {
  const std::lock_guard lock(impl_->inbox_mutex);
  impl_->cancelled.push_back(id);
}

void RequestLoop::pause(RequestId id) {
  const std::lock_guard lock(impl_->inbox_mutex);
  impl_->paused.emplace_back(id, true);
}

void RequestLoop::resume(RequestId id) {
  const std::lock_guard lock(impl_->inbox_mutex);
  impl_->paused.emplace_back(id, false);
}

bool RequestLoop::step() {
  Impl& at = *impl_;
  bool worked = at.drain_inbox();
  while (const auto id = at.scheduler.victim(at.now(), at.pool_state())) {
    at.preempt(*at.live.at(*id));
  }
  at.admit_waiting();
  const std::vector<RequestId> decoding = at.scheduler.decoding();
  if (!decoding.empty()) at.run_round(decoding);
  return at.run_slices() || !decoding.empty() || worked || !at.live.empty();
}

bool RequestLoop::preempt(RequestId id) {
  const auto found = impl_->live.find(id);
  if (found == impl_->live.end() || found->second->sequence == nullptr) return false;
  if (impl_->producer == found->second.get()) return false;
  impl_->preempt(*found->second);
  return true;
}

RequestLoop::Statistics RequestLoop::statistics() const {
  Statistics statistics = impl_->totals;
  statistics.scheduler = impl_->scheduler.statistics();
  statistics.prefixes = impl_->tree.statistics();
  statistics.free_pages = impl_->pool.free();
  statistics.free_slots = static_cast<int>(impl_->free_sequences.size());
  statistics.free_host_pages = impl_->host.free();
  return statistics;
}

bool RequestLoop::inside_chunk() const { return impl_->producer != nullptr; }

void RequestLoop::check_integrity() const {
  impl_->scheduler.check_integrity();
  impl_->tree.check_integrity();
}

}  // namespace quantspec
