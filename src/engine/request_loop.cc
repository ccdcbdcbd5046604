#include "engine/request_loop.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/error.h"
#include "engine/fields.h"
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
  return options.store == KvStore::kHierarchical &&
         std::ranges::none_of(options.plans, has_own_target);
}

}  // namespace
RequestLoop::Impl::Impl(const Model& used, const KvShape& of, RequestLoopOptions given)
    : options(std::move(given)),
      agreement(options.ranks),
      model(used),
      shape(of),
      pool(model.backend(), shape, options.pages),
      host(model.backend(), shape, options.host_bytes),
      tree(pool, options.chunk, &host),
      tails(model.backend(), shape, options.chunk, options.share_prefixes ? options.tail_bytes : 0),
      shards(agreement, model.backend(), shape),
      decoder(model, options.ranks),
      rules(round_bytes(model, shape, options)),
      kept_texts(options.lookup_history),
      saves_caches(shares_pages(options)),
      scheduler({.page_tokens = shape.page_size,
                 .chunk_tokens = options.chunk,
                 .total_pages = options.pages,
                 .context_tokens = options.context,
                 .most_waiting = options.max_waiting,
                 .admission = options.admission}) {
  totals.turns_by_plan.resize(options.plans.size());
  const KvOptions kv = cache_options(options);
  const bool paged = options.store == KvStore::kHierarchical;
  model.reserve_prefill(shape, options.chunk, paged ? options.context : 0);
  for (int i = 0; i < options.sequences; ++i) {
    sequences.push_back(std::make_unique<Sequence>(model, pool, options.context,
                                                   DecodingOptions{.plans = options.plans}, kv));
    free_sequences.push_back(sequences.back().get());
  }
  decoder.reserve(options.sequences);
  rules.reserve(free_sequences.size());
  // What a round gave is told to all, so there is room to note it.
  const auto most = static_cast<std::size_t>(options.sequences);
  decoding.reserve(most);
  requests.reserve(most);
  lanes.reserve(most);
  turns.reserve(most);
  accepted.reserve(most);
  results.reserve(most);
  endings.reserve(most);
  record.turns.reserve(most);
  kept_steps.resize(kKeptSteps);
  for (StepRecord& one : kept_steps) one.turns.reserve(most);
  // A device's memory is taken now: later that would hold up all that run.
  const bool on_device = model.backend().is_apart_from_host();
  if (on_device && paged) pool.reserve(options.pages);
}

void RequestLoop::Impl::begin() {
  has_folder = agreement.on(options.folder != nullptr);
  decoder.warm_up(free_sequences);
  rules.set_priors(decoder.time_passes(*free_sequences.front(), options.timing_seconds));
  publish();
}

// Pages that nobody uses are what the tree is made of.
void RequestLoop::Impl::make_room(std::size_t pages) {
  if (pages > pool.free()) tree.evict(pages - pool.free());
}

// --- the door ------------------------------------------------------------------------------------

namespace {

RequestLoopOptions resolved(const Model& model, const KvShape& shape, RequestLoopOptions options) {
  RequestLoop::require_plans(options.plans, options.sequences);
  if (options.sequences < 1 || options.sequences > RequestLoopOptions::kMostSequences) {
    fail(ErrorKind::kInvalidRequest, "{} sequences at once: supported are 1 to {}",
         options.sequences, RequestLoopOptions::kMostSequences);
  }
  if (options.chunk == 0) options.chunk = model.backend().prefill_chunk();
  options.share_prefixes &= shares_pages(options);
  if (options.pages == 0) {
    const int each = (options.context + shape.page_size - 1) / shape.page_size;
    options.pages = static_cast<std::size_t>(options.sequences) * each;
  }
  return options;
}

// What `make` makes, at every rank or at none.
template <typename Make>
auto made_by_all(const Agreement& ranks, const Make& make) {
  decltype(make()) made;
  std::optional<Error> lack;
  try {
    made = make();
  } catch (...) {
    lack = current_error("a request loop");
    if (lack->kind() != ErrorKind::kOutOfMemory) throw;
  }
  if (ranks.least(lack ? 0 : 1) == 1) return made;
  if (!ranks.shared()) throw RequestLoop::NoMemory(*lack);
  const std::string why = ranks.first_line(lack ? lack->what() : "");
  throw RequestLoop::NoMemory(Error(ErrorKind::kOutOfMemory, why));
}

}  // namespace

RequestLoop::RequestLoop(const Model& model, const KvShape& shape, RequestLoopOptions options)
    : impl_(made_by_all(Agreement(options.ranks), [&] {
        return std::make_unique<Impl>(model, shape, resolved(model, shape, std::move(options)));
      })) {
  impl_->begin();
}

RequestLoop::~RequestLoop() = default;

void RequestLoop::require_plans(std::span<const Plan> plans, int sequences) {
  for (const Plan& plan : plans) {
    if (gathers(plan)) {
      fail(ErrorKind::kInvalidRequest,
           "{} {}: drafts that gather tokens are for quantspec bench and eval, which compare with "
           "them, one text at a time; quantspec, its parts and its sparse forms work",
           field::kPlan, plan.name);
    }
    if (sequences > 1 && has_own_target(plan)) {
      fail(ErrorKind::kInvalidRequest,
           "{} {}: a target of its own (target_full_layers) is for one sequence at a time",
           field::kPlan, plan.name);
    }
  }
}

namespace {

constexpr OwnerId kNobody = std::numeric_limits<OwnerId>::max();

void require(const Request& request, const Model& model, std::span<const Plan> plans) {
  const int vocab = model.config().vocab_size;
  for (const TokenId token : request.prompt) {
    if (token >= 0 && token < vocab) continue;
    fail(ErrorKind::kInvalidRequest, "the prompt has the token {}; the model's are 0 to {}", token,
         vocab - 1);
  }
  if (request.prompt.empty()) fail(ErrorKind::kInvalidRequest, "the prompt has no token");
  if (request.predict < 1) {
    fail(ErrorKind::kInvalidRequest, "{} {}: at least 1", field::kPredict, request.predict);
  }
  const auto require_length = [](int length) {
    if (length >= 0 && length <= kMaxDraftLen) return;
    fail(ErrorKind::kInvalidRequest, "{} {}: supported are auto and 0 to {}", field::kDraftLen,
         length, kMaxDraftLen);
  };
  if (request.draft_len) require_length(*request.draft_len);
  if (request.forced) {
    require_length(request.forced->draft_len);
    const int plan = request.forced->plan;
    const bool drafts = request.forced->draft_len > 0;
    if (drafts && (plan < 0 || std::cmp_greater_equal(plan, plans.size()))) {
      fail(ErrorKind::kInvalidRequest, "{} number {}: the engine has {}", field::kPlan, plan,
           plans.size());
    }
    if (drafts && plans[plan].looks_up()) {
      fail(ErrorKind::kInvalidRequest, "{} {}: it finds as many tokens as it does", field::kPlan,
           plans[plan].name);
    }
  }
  request.sampling.validate();
  request.biases.validate(vocab);
  for (const TokenId token : request.proposed) {
    if (token >= 0 && token < vocab) continue;
    fail(ErrorKind::kInvalidRequest, "the token {} is proposed; the model's are 0 to {}", token,
         vocab - 1);
  }
  for (const TokenId token : request.reference) {
    if (token >= 0 && token < vocab) continue;
    fail(ErrorKind::kInvalidRequest, "the token {} is to be looked up; the model's are 0 to {}",
         token, vocab - 1);
  }
  if (!request.proposed.empty() && request.spec_sampling == SpecSampling::kRejection) {
    fail(ErrorKind::kInvalidRequest,
         "tokens that are proposed are for coupled sampling, with temperature 0 too");
  }
  const int most_top = request.log_probs ? std::min(kMostTopLogProbs, vocab) : 0;
  if (request.top_log_probs < 0 || request.top_log_probs > most_top) {
    fail(ErrorKind::kInvalidRequest,
         "log-probabilities of {} likeliest tokens: 0 to {} work, with those of the chosen",
         request.top_log_probs, most_top);
  }
}

// What can never be, whoever else there is.
void require_room(const Request& request, const Scheduler& scheduler,
                  const RequestLoopOptions& options) {
  const int prompt = static_cast<int>(request.prompt.size());
  switch (scheduler.can_ever_fit(
      {.id = 0, .prompt_tokens = prompt, .most_new_tokens = request.predict})) {
    case Scheduler::Submission::kExceedsContext:
      fail(ErrorKind::kInvalidRequest,
           "{} {}: a prompt of {} tokens and {} to generate do not fit; a shorter prompt or fewer "
           "tokens work",
           field::kContext, options.context, prompt, request.predict);
    case Scheduler::Submission::kExceedsPages:
      fail(ErrorKind::kInvalidRequest,
           "{} of {} pages: a prompt of {} tokens and {} to generate do not fit; a shorter prompt "
           "or fewer tokens work",
           field::kPageMemory, options.pages, prompt, request.predict);
    case Scheduler::Submission::kAccepted:
    case Scheduler::Submission::kQueueFull:
      break;
  }
}

}  // namespace

// However many requests of one owner wait, there is a place for another's.
void RequestLoop::Impl::require_place(OwnerId owner) const {
  constexpr std::int64_t kMostOfFree = 3;  // times the places that are left
  if (num_queued >= options.max_waiting) {
    fail(ErrorKind::kOutOfMemory,
         "{} requests wait, as many as may; one of them has to start first", num_queued);
  }
  const auto of_owner = queued_of.find(owner);
  const std::int64_t left = std::int64_t{options.max_waiting} - num_queued;
  if (of_owner == queued_of.end() || of_owner->second < kMostOfFree * left) return;
  fail(ErrorKind::kOutOfMemory,
       "{} requests of one owner wait, as many as may beside those of others; one of them has to "
       "start first",
       of_owner->second);
}

RequestId RequestLoop::submit(Request request) {
  Impl& at = *impl_;
  require(request, at.model, at.options.plans);
  require_room(request, at.scheduler, at.options);
  auto live = std::make_unique<Live>();
  live->request = std::move(request);
  RequestId id = 0;
  {
    const std::lock_guard lock(at.inbox_mutex);
    if (at.broken) throw Error(*at.broken);
    if (at.stopped) fail(ErrorKind::kInvalidRequest, "the engine ends, and takes no more requests");
    at.require_place(live->request.owner);
    id = live->id = at.last_id + 1;
    const auto wishes = at.wishes.try_emplace(id, Impl::Wish::kNone).first;
    try {
      int& of_owner = at.queued_of[live->request.owner];
      at.arrivals.push_back(std::move(live));
      ++of_owner;
    } catch (...) {
      std::erase_if(at.queued_of, [](const auto& of) { return of.second == 0; });
      at.wishes.erase(wishes);
      throw;
    }
    ++at.last_id;
    ++at.num_queued;
  }
  at.inbox_changed.notify_one();
  return id;
}

void RequestLoop::cancel(RequestId id) { impl_->wish(id, Impl::Wish::kCancel); }
void RequestLoop::pause(RequestId id) { impl_->wish(id, Impl::Wish::kPause); }
void RequestLoop::resume(RequestId id) { impl_->wish(id, Impl::Wish::kResume); }

// The last one counts, but after a cancel there is nothing to wish.
void RequestLoop::Impl::wish(RequestId id, Wish wanted) {
  {
    const std::lock_guard lock(inbox_mutex);
    const auto known = wishes.find(id);
    if (known == wishes.end() || known->second == Wish::kCancel) return;  // it has ended, or will
    num_wishes += known->second == Wish::kNone;
    known->second = wanted;
  }
  inbox_changed.notify_one();
}

std::unique_ptr<RequestLoop::Live> RequestLoop::Impl::next_arrival(RequestId last) {
  const std::lock_guard lock(inbox_mutex);
  if (arrivals.empty() || arrivals.front()->id > last) return nullptr;
  std::unique_ptr<Live> next = std::move(arrivals.front());
  arrivals.pop_front();
  return next;
}

std::optional<std::pair<RequestId, RequestLoop::Impl::Wish>> RequestLoop::Impl::next_wish(
    RequestId after, RequestId last) {
  const std::lock_guard lock(inbox_mutex);
  if (num_wishes == 0) return std::nullopt;
  for (auto at = wishes.upper_bound(after); at != wishes.end() && at->first <= last; ++at) {
    if (at->second == Wish::kNone) continue;
    --num_wishes;
    return std::pair(at->first, std::exchange(at->second, Wish::kNone));
  }
  return std::nullopt;
}

bool RequestLoop::Impl::is_stopped() const {
  const auto is_asked_to = [this] {
    const std::lock_guard lock(inbox_mutex);
    return stopped;
  };
  return agreement.on(is_asked_to());
}

// Who does not lead waits to hear more.
void RequestLoop::Impl::wait() {
  if (!agreement.leads()) return;
  std::unique_lock lock(inbox_mutex);
  const auto is_asked = [this] {
    return stopped || !arrivals.empty() || num_wishes > 0 || !visits.empty();
  };
  if (!live.empty()) return inbox_changed.wait(lock, is_asked);  // all are paused
  inbox_changed.wait(lock, [&] { return is_asked() || !ahead.empty(); });
  inbox_changed.wait_for(lock, std::chrono::duration<double>(options.read_ahead_after), is_asked);
}

void RequestLoop::run() {
  Impl& at = *impl_;
  try {
    while (!at.is_stopped()) {
      bool worked = false;
      try {
        worked = step();
      } catch (...) {
        if (at.agreement.shared()) throw;
        at.end_all(at.failure());
        at.publish();
      }
      if (!worked) at.wait();
    }
    at.drain_inbox();
    at.receive_visits();
    at.end_all({RequestEnd::kCancelled});
  } catch (...) {
    at.break_down();
  }
  at.publish();
}

void RequestLoop::stop() {
  {
    const std::lock_guard lock(impl_->inbox_mutex);
    impl_->stopped = true;
  }
  impl_->inbox_changed.notify_all();
}

bool RequestLoop::step() {
  const bool worked = impl_->step();
  impl_->publish();
  return worked;
}

bool RequestLoop::Impl::step() {
  record.turns.clear();
  record = {.number = record.number, .begin = now(), .turns = std::move(record.turns)};
  bool worked = drain_inbox();
  worked |= receive_visits();
  while (const auto id = scheduler.victim(now(), pool_state())) {
    preempt(*live.at(*id));
    worked = true;
  }
  worked |= admit_waiting();
  scheduler.list_decoding(decoding);
  if (!decoding.empty()) run_round();
  worked |= run_slices() || !decoding.empty();
  if (!record.turns.empty() || record.prompt != 0) keep_record();
  if (worked) idle_since = now();
  return worked || (live.empty() && begin_ahead());
}

void RequestLoop::Impl::keep_record() {
  ++record.number;
  record.seconds = now() - record.begin;
  const Scheduler::Statistics s = scheduler.statistics();
  record.waiting = static_cast<int>(s.waiting + s.preempted);
  record.free_pages = pool.free();
  const std::lock_guard lock(statistics_mutex);
  StepRecord& place = kept_steps[record.number % kKeptSteps];
  std::swap(place, record);  // and the memory of its turns
  record.number = place.number;
}

std::vector<StepRecord> RequestLoop::steps_after(std::uint64_t number) const {
  std::vector<StepRecord> steps;
  {
    const std::lock_guard lock(impl_->statistics_mutex);
    for (const StepRecord& one : impl_->kept_steps) {
      if (one.number > number) steps.push_back(one);
    }
  }
  std::ranges::sort(steps, {}, &StepRecord::number);
  return steps;
}

std::vector<std::string> RequestLoop::plan_names() const {
  std::vector<std::string> names;
  for (const Plan& plan : impl_->options.plans) names.push_back(plan.name);
  return names;
}

bool RequestLoop::preempt(RequestId id) {
  const auto found = impl_->live.find(id);
  if (found == impl_->live.end() || found->second->sequence == nullptr) return false;
  if (impl_->producer == found->second.get()) return false;
  impl_->preempt(*found->second);
  impl_->publish();
  return true;
}

void RequestLoop::Impl::publish() {
  totals.scheduler = scheduler.statistics();
  if (reads_ahead != nullptr) {
    Scheduler::Statistics& s = totals.scheduler;
    --(waits_for_ahead() ? s.admitted : s.waiting > 0 ? s.waiting : s.preempted);
  }
  totals.prefixes = tree.statistics();
  totals.tail_bytes = tails.bytes();
  totals.reads_ahead = waits_for_ahead();
  totals.pages = options.pages;
  totals.free_pages = pool.free();
  totals.free_slots = static_cast<int>(free_sequences.size());
  totals.free_host_pages = host.free();
  const std::lock_guard lock(statistics_mutex);
  published = totals;
}

RequestLoop::Statistics RequestLoop::statistics() const {
  const std::lock_guard lock(impl_->statistics_mutex);
  return impl_->published;
}

void RequestLoop::read_ahead(std::vector<TokenId> text, std::string salt, bool to_folder) {
  Impl& at = *impl_;
  // As much as a tail has: the last tokens may be others once the text goes on.
  text.resize(text.size() / PromptTails::kAligned * PromptTails::kAligned);
  if (text.empty() || !at.options.share_prefixes) return;
  Request request;
  request.prompt = std::move(text);
  request.owner = kNobody;
  request.salt = std::move(salt);
  request.to_folder = to_folder;
  require(request, at.model, at.options.plans);
  at.remember_ahead(std::move(request));
}

std::optional<Error> RequestLoop::broken() const {
  const std::lock_guard lock(impl_->inbox_mutex);
  return impl_->broken;
}

bool RequestLoop::inside_chunk() const { return impl_->producer != nullptr; }

void RequestLoop::check_integrity() const {
  impl_->scheduler.check_integrity();
  impl_->tree.check_integrity();
}

}  // namespace quantspec
