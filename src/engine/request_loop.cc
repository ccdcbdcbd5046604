#include "engine/request_loop.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "engine/draft_rules.h"

namespace quantspec {

namespace {

// While nobody decodes, slices go on for so long before the loop looks at who came and went.
constexpr double kAloneSeconds = 0.05;

// Of one layer. Fewer would read its weights too often for what they compute.
constexpr int kLeastSliceRows = 32;

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

// One request while it is known.
struct RequestLoop::Live {
  RequestId id = 0;
  Request request;
  std::vector<TokenId> generated;
  int cached_tokens = 0;  // the most found_tokens of all admissions
  DraftRules::Member drafts;
  RoundStats stats;
  // While it is admitted:
  Sequence* sequence = nullptr;
  int found_tokens = 0;
  PrefixTree::Path path;                   // of what was read or found of the prompt
  std::unique_ptr<Model::Prefill> reader;  // while the prompt is read

  int prompt_tokens() const { return static_cast<int>(request.prompt.size()); }
  int left() const { return request.predict - static_cast<int>(generated.size()); }
};

struct RequestLoop::Impl {
  Impl(const Model& used, const KvShape& of, RequestLoopOptions given);

  // --- from other threads ---
  std::mutex inbox_mutex;
  std::vector<std::unique_ptr<Live>> submitted;
  std::vector<RequestId> cancelled;
  std::vector<std::pair<RequestId, bool>> paused;  // or resumed
  RequestId last_id = 0;

  // --- the loop's ---
  RequestLoopOptions options;
  const Model& model;
  KvShape shape;
  PagePool pool;  // before all that holds pages
  PrefixTree tree;
  Decoder decoder;
  DraftRules rules;
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<Sequence*> free_sequences;
  Scheduler scheduler;
  std::map<RequestId, std::unique_ptr<Live>> live;
  Live* producer = nullptr;  // whose chunk is in flight
  double row_seconds = 0;    // of the last slice
  Stopwatch clock;
  Statistics totals;

  int chunk() const { return tree.chunk_tokens(); }
  double now() const { return clock.seconds(); }
  PoolState pool_state() const {
    return {pool.free(), tree.statistics().idle_pages, static_cast<int>(free_sequences.size())};
  }
  Held held(const Live& of) const {
    const KvCache& cache = of.sequence->cache();
    return {cache.length(), static_cast<std::size_t>(cache.num_pages())};
  }
  void make_room(std::size_t pages);

  bool drain_inbox();
  void admit_waiting();
  bool admit(Live& request);
  void give_back(Live& request);
  void end(Live& request, RequestEnd how, std::optional<Error> error = {});
  void finish(Live& request, RequestEnd how, std::optional<Error> error = {});
  void preempt(Live& request);

  void run_round(const std::vector<RequestId>& ids);
  void choose(std::span<Live* const> requests, std::vector<Lane>& lanes);
  void observe(const Decoder::Outcome& outcome);
  void run_alone(std::span<Live* const> requests, std::span<const Lane> lanes);
  bool take(Live& request, const Step& step);
  void count(const Step& step);

  bool run_slices();
  bool find_chunk(Live& request);
  int slice_rows(double seconds) const;
  void run_chunk(Live& request, double seconds);
  void end_prompt(Live& request);

  // Of the round at hand.
  std::vector<DraftRules::Turn> turns;
  std::vector<int> accepted;
};

RequestLoop::Impl::Impl(const Model& used, const KvShape& of, RequestLoopOptions given)
    : options(std::move(given)),
      model(used),
      shape(of),
      pool(model.backend(), shape, options.pages),
      tree(pool, options.chunk),
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
  const std::span<const TokenId> prompt(wanted.prompt);
  if (options.share_prefixes) {
    const int most = sequence.cache().most_attached(request.prompt_tokens());
    request.path = tree.match(wanted.salt, prompt.first(most));
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
  give_back(request);
  scheduler.preempted(request.id, now());
}

// --- rounds --------------------------------------------------------------------------------------

void RequestLoop::Impl::run_round(const std::vector<RequestId>& ids) {
  std::vector<Live*> requests;
  std::vector<Lane> lanes;
  for (const RequestId id : ids) requests.push_back(live.at(id).get());
  choose(requests, lanes);
  make_room(lanes.size());
  const Stopwatch round_clock;
  std::optional<Decoder::Outcome> outcome;
  try {
    outcome = decoder.round(lanes);
  } catch (const Error&) {
    return run_alone(requests, lanes);  // it was one of them; the others are as they were
  }
  observe(*outcome);
  std::vector<Scheduler::RoundResult> results;
  std::vector<Live*> ended;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Step& step = outcome->steps[i];
    if (!take(*requests[i], step)) ended.push_back(requests[i]);
    results.push_back(
        {requests[i]->id, static_cast<int>(step.tokens.size()), held(*requests[i]).pages});
  }
  const double seconds = round_clock.seconds();
  scheduler.round_ran(results, seconds);
  ++totals.rounds;
  totals.round_seconds += seconds;
  totals.draft_seconds += outcome->draft_seconds;
  for (const Step& step : outcome->steps) count(step);
  for (Live* request : ended) finish(*request, RequestEnd::kDone);
}

void RequestLoop::Impl::run_alone(std::span<Live* const> requests, std::span<const Lane> lanes) {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Live& request = *requests[i];
    const Stopwatch round_clock;
    Step step;
    try {
      step = decoder.round(lanes.subspan(i, 1)).steps[0];
    } catch (const Error& error) {
      finish(request, RequestEnd::kFailed, error);
      continue;
    }
    count(step);
    const bool more = take(request, step);
    const Scheduler::RoundResult result{request.id, static_cast<int>(step.tokens.size()),
                                        held(request).pages};
    scheduler.round_ran({&result, 1}, round_clock.seconds());
    if (!more) finish(request, RequestEnd::kDone);
  }
}

// By its own wish, or by what yields most for those that ask for the same.
void RequestLoop::Impl::choose(std::span<Live* const> requests, std::vector<Lane>& lanes) {
  turns.clear();
  for (Live* request : requests) {
    const int cap = std::min(request->sequence->max_rows(), request->left()) - 1;
    turns.push_back({&request->drafts, cap, request->sequence->cache().length()});
    const auto& forced = request->request.forced;
    if (!forced) continue;
    turns.back().member = nullptr;
    turns.back().choice = {forced->plan, std::min(forced->draft_len, cap)};
  }
  rules.choose(turns);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    lanes.push_back({requests[i]->sequence, turns[i].choice, turns[i].records_masses});
  }
}

void RequestLoop::Impl::observe(const Decoder::Outcome& outcome) {
  accepted.clear();
  for (const Step& step : outcome.steps) accepted.push_back(step.accepted);
  rules.observe(accepted, outcome.draft_seconds, outcome.other_seconds);
}

// Whether the request wants more.
bool RequestLoop::Impl::take(Live& request, const Step& step) {
  request.generated.insert(request.generated.end(), step.tokens.begin(), step.tokens.end());
  const bool wants_more = !request.request.on_tokens || request.request.on_tokens(step);
  return wants_more && request.left() > 0;
}

void RequestLoop::Impl::count(const Step& step) {
  const auto [plan, draft_len] = step.choice;
  ++totals.turns;
  totals.drafted += draft_len;
  totals.accepted += step.accepted;
  if (step.accepted < draft_len) ++totals.rejections;
  if (draft_len > 0) ++totals.turns_by_plan[plan];
}

// --- prompts -------------------------------------------------------------------------------------

bool RequestLoop::Impl::run_slices() {
  bool ran = false;
  while (const auto slices = scheduler.prefill(now(), pool_state())) {
    Live& request = *live.at(slices->id);
    ran = true;
    try {
      if (find_chunk(request)) continue;
      run_chunk(request, std::min(slices->seconds, kAloneSeconds));
      // Others may have come meanwhile, or want to read for another loop.
      if (!std::isfinite(slices->seconds) || producer == nullptr) break;
    } catch (const Error& error) {
      scheduler.cancel(request.id);
      end(request, RequestEnd::kFailed, error);
    }
  }
  return ran;
}

// Whether the tree has the next chunk by now, and the cache takes it. If it has not, the request
// becomes its producer.
bool RequestLoop::Impl::find_chunk(Live& request) {
  const KvCache& cache = request.sequence->cache();
  const std::span<const TokenId> prompt(request.request.prompt);
  if (producer == &request || !options.share_prefixes) return false;
  const int begin = cache.length(), end = begin + chunk();
  if (begin % chunk() != 0 || end > std::ssize(prompt) || request.path.tokens() != begin) {
    return false;
  }
  const auto next = request.path.advance(prompt.subspan(begin, chunk()));
  check(next != PrefixTree::Next::kInMaking, "one chunk is in flight");
  if (next == PrefixTree::Next::kYours) return false;
  if (end > cache.most_attached(request.prompt_tokens())) {  // the ring wants some of its tokens
    request.sequence->share(request.path.last_pages());
    return false;
  }
  request.sequence->attach(request.path.last_pages());
  request.found_tokens += chunk();
  request.cached_tokens = std::max(request.cached_tokens, request.found_tokens);
  scheduler.found(request.id, held(request));
  return true;
}

// As many as take about this long; a power of two, since few that are many times the same are
// quicker than odd ones.
int RequestLoop::Impl::slice_rows(double seconds) const {
  int rows = kLeastSliceRows;
  while (rows < chunk() && 2 * rows * row_seconds <= seconds) rows *= 2;
  return rows;
}

// Slices of one chunk, or of what was generated before a preemption.
void RequestLoop::Impl::run_chunk(Live& request, double seconds) {
  const Stopwatch slice_clock;
  Sequence& sequence = *request.sequence;
  const int begin = sequence.cache().length();
  bool in_flight = false, reads = true;
  if (request.reader != nullptr) {
    if (!request.reader->inside_chunk()) make_room(chunk() / shape.page_size + 1);
    producer = &request;  // also while something is thrown
    do {
      const double before = slice_clock.seconds();
      const int rows = request.reader->step(slice_rows(seconds - before));
      row_seconds = (slice_clock.seconds() - before) / rows;
      in_flight = request.reader->inside_chunk();
    } while (in_flight && slice_clock.seconds() < seconds);
    producer = in_flight ? &request : nullptr;
    if (!in_flight && request.path.making()) {
      request.path.seal(sequence.cache().pages_of(begin, begin + chunk()));
    }
    reads = !request.reader->done();
    if (request.request.on_progress) request.request.on_progress(request.reader->share());
    if (!reads) end_prompt(request);
  } else {
    make_room(1);
    decoder.replay(sequence);
  }
  const double spent = slice_clock.seconds();
  totals.slice_seconds += spent;
  scheduler.slices_ran(request.id, held(request), in_flight, spent);
  if (reads || request.left() > 0) return;
  finish(request, RequestEnd::kDone);
}

// The prompt is in the cache: its first token, or those that were generated before a preemption.
void RequestLoop::Impl::end_prompt(Live& request) {
  request.reader.reset();
  if (!request.generated.empty()) return decoder.resume(*request.sequence, request.generated);
  const bool more = take(request, decoder.end_prompt(*request.sequence));
  if (!more) request.request.predict = static_cast<int>(request.generated.size());
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
  return statistics;
}

bool RequestLoop::inside_chunk() const { return impl_->producer != nullptr; }

void RequestLoop::check_integrity() const {
  impl_->scheduler.check_integrity();
  impl_->tree.check_integrity();
}

}  // namespace quantspec
