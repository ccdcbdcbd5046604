#include "scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace quantspec {
namespace {

// Costs of a token for its owner (VTC).
constexpr double kPromptCost = 1;
constexpr double kGeneratedCost = 2;
constexpr double kCachedCost = 0.1;

void require(bool valid, const char* what, double value) {
  if (!valid) fail(ErrorKind::kInvalidRequest, "the scheduler's {} cannot be {}", what, value);
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      shares_(options.least_prefill, options.most_prefill, options.token_interval),
      waiting_(options.ageing),
      reading_(options.ageing) {
  const double least = options.least_prefill, most = options.most_prefill;
  require(least > 0 && least < 1, "least share of prefill, over 0 and below 1,", least);
  require(most >= least && most < 1, "most share of prefill, from its least and below 1,", most);
  require(options.watermark >= 0 && options.watermark < 1, "watermark, from 0 and below 1,",
          options.watermark);
  require(options.ageing > 0, "ageing, over 0 s,", options.ageing);
  require(options.most_waiting >= 1, "length of the queue, 1 at least,", options.most_waiting);
  require(options.token_interval.value_or(1) > 0, "interval between tokens, over 0 s,",
          options.token_interval.value_or(1));
  check(options.page_tokens >= 1 && options.chunk_tokens >= 1 &&
            options.chunk_tokens % options.page_tokens == 0,
        "a chunk is whole pages");
}

std::size_t Scheduler::pages_of(int prompt, int length) const {
  const int chunk = options_.chunk_tokens, page = options_.page_tokens;
  const int of_chunks = std::min(prompt, length) / chunk * (chunk / page);
  return std::max(of_chunks, length / page - 1);
}

// --- from outside ---

Scheduler::Submission Scheduler::can_ever_fit(const RequestInfo& info) const {
  check(info.prompt_tokens >= 1 && info.most_new_tokens >= 1, "a request has tokens");
  const std::int64_t most = std::int64_t{info.prompt_tokens} + info.most_new_tokens - 1;
  if (most > options_.context_tokens) return Submission::kExceedsContext;
  if (pages_of(info.prompt_tokens, static_cast<int>(most)) > options_.total_pages) {
    return Submission::kExceedsPages;
  }
  return Submission::kAccepted;
}

Scheduler::Submission Scheduler::submit(const RequestInfo& info) {
  if (const Submission ever = can_ever_fit(info); ever != Submission::kAccepted) return ever;
  if (std::cmp_greater_equal(num_waiting_, options_.most_waiting)) return Submission::kQueueFull;
  const auto [place, is_new] =
      requests_.try_emplace(info.id, Request{.info = info, .number = ++submissions_});
  check(is_new, "two requests have one id");
  try {
    owners_.add(info.owner);
  } catch (...) {
    requests_.erase(place);
    throw;
  }
  ++num_waiting_;
  try {
    update_indexes(place->second);
  } catch (...) {
    forget(place->second);
    throw;
  }
  return Submission::kAccepted;
}

bool Scheduler::cancel(RequestId id) {
  Request* request = find(id);
  if (request) forget(*request);
  return request;
}

bool Scheduler::pause(RequestId id) { return set_paused(id, true); }
bool Scheduler::resume(RequestId id) { return set_paused(id, false); }

bool Scheduler::set_paused(RequestId id, bool paused) {
  Request* request = find(id);
  if (!request) return false;
  request->paused = paused;
  update_indexes(*request);
  return true;
}

// --- what to do next ---

std::optional<RequestId> Scheduler::victim(double now, const PoolState& pool) {
  std::size_t wanted = 0;
  for (const auto& [_, request] : decoders_) wanted += next_pages(*request);
  if (const Request* reader = next_reader(now)) wanted += next_pages(*reader);
  if (wanted <= pool.pages()) return std::nullopt;
  check(options_.admission == Admission::kExpected, "pages ran out although they were promised");
  check(admitted_.size() > 1, "a request alone wants more pages than there are");
  return admitted_.begin()->second->info.id;
}

std::optional<RequestId> Scheduler::candidate(double now, const PoolState& pool) {
  const auto id = waiting_.front(now);
  if (!id || pool.free_slots <= 0) return std::nullopt;
  const Request& request = get(*id);
  // The tree may have all of its prompt.
  const int prompt = request.info.prompt_tokens;
  return fits(request, pages_of(prompt, prompt), now, pool) ? id : std::nullopt;
}

std::optional<RequestId> Scheduler::gives_way(double now) {
  if (!waiting_.front(now)) return std::nullopt;
  for (const auto& [_, request] : admitted_) {
    if (!request->paused) break;  // they come first
    if (in_flight_ != request->info.id) return request->info.id;
  }
  return std::nullopt;
}

bool Scheduler::admit(RequestId id, Held held, double now, const PoolState& pool) {
  Request& request = get(id);
  check(waiting_.contains(id), "who does not wait is admitted");
  check(held.tokens < request.read_end(), "a prompt's last token is read for what follows it");
  if (pool.free_slots <= 0 || !fits(request, held.pages, now, pool)) return false;
  request.admitted_class = waiting_.class_of(id);
  if (request.admission == 0) {
    --num_waiting_;
    request.admission = ++admissions_;
    request.charged_unread = request.info.prompt_tokens;
    charge(request.info.owner, kPromptCost * request.info.prompt_tokens);
  }
  request.phase = Phase::kReading;
  set_pages(request, 0, promise(request, now));
  advance_to(request, held, kPromptCost - kCachedCost);
  return true;
}

std::vector<RequestId> Scheduler::decoding() const {
  std::vector<RequestId> ids;
  list_decoding(ids);
  return ids;
}

void Scheduler::list_decoding(std::vector<RequestId>& ids) const {
  ids.clear();
  for (const auto& [_, request] : decoders_) ids.push_back(request->info.id);
}

std::optional<Scheduler::Slices> Scheduler::prefill(double now, const PoolState& pool) {
  const Request* reader = next_reader(now);
  if (!reader) return std::nullopt;
  if (next_pages(*reader) > pool.pages()) {
    check(options_.admission == Admission::kExpected, "pages ran out although they were promised");
    return std::nullopt;
  }
  if (decoders_.empty()) return Slices{reader->info.id, std::numeric_limits<double>::infinity()};
  const double seconds = shares_.slice_seconds();
  if (seconds <= 0) return std::nullopt;
  return Slices{reader->info.id, seconds};
}

Scheduler::Request* Scheduler::next_reader(double now) {
  const auto id = in_flight_ ? in_flight_ : reading_.front(now);
  return id ? &get(*id) : nullptr;
}

int Scheduler::next_stop(const Request& request) const {
  const int prompt = request.info.prompt_tokens;
  const int grid = request.length < prompt ? options_.chunk_tokens : options_.page_tokens;
  const int end = request.length < prompt ? prompt : request.read_end();
  return std::min<std::int64_t>(end, (std::int64_t{request.length} / grid + 1) * grid);
}

std::size_t Scheduler::next_pages(const Request& request) const {
  const bool reads = request.phase == Phase::kReading;
  const int length = reads ? next_stop(request) : request.length;
  const std::size_t pages = pages_of(request.info.prompt_tokens, length);
  return pages > request.pages ? pages - request.pages : 0;
}

std::size_t Scheduler::promise(const Request& request, double now) const {
  const RequestInfo& info = request.info;
  int tokens = info.most_new_tokens;
  if (options_.admission == Admission::kExpected) {
    tokens = owners_.expected_output(info.owner, tokens, caution_.factor(now));
    tokens = std::clamp(tokens, std::min(request.generated + 1, info.most_new_tokens),
                        info.most_new_tokens);
  }
  return pages_of(info.prompt_tokens, info.prompt_tokens + tokens - 1);
}

bool Scheduler::fits(const Request& request, std::size_t held_pages, double now,
                     const PoolState& pool) const {
  const std::size_t pages = promise(request, now);
  std::size_t wanted = promised_ + (pages > held_pages ? pages - held_pages : 0);
  if (options_.admission == Admission::kExpected && !admitted_.empty()) {
    wanted += static_cast<std::size_t>(
        std::ceil(options_.watermark * static_cast<double>(options_.total_pages)));
  }
  return wanted <= pool.pages();
}

// --- what happened ---

void Scheduler::preempted(RequestId id, double now) {
  Request& request = get(id);
  check(request.victim_key.has_value(), "who is not admitted has no slot");
  give_pages_back(request);
  request.phase = Phase::kWaiting;
  request.length = 0;
  update_indexes(request);
  if (!request.paused) caution_.preempted(now);  // else it was not for a promise that was too small
  ++preemptions_;
}

void Scheduler::slices_ran(RequestId id, Held held, bool in_flight, double seconds) {
  Request& request = get(id);
  check(request.phase == Phase::kReading, "slices of a prompt that is not read");
  check(!in_flight_ || in_flight_ == id, "a chunk began before another ended");
  check(in_flight || held.tokens > request.length, "a chunk ended where it began");
  if (!decoders_.empty()) shares_.slices_ran(seconds);
  in_flight_ = in_flight ? std::optional(id) : std::nullopt;
  advance_to(request, in_flight ? Held{request.length, held.pages} : held, 0);
}

void Scheduler::found(RequestId id, Held held) {
  Request& request = get(id);
  check(request.phase == Phase::kReading && in_flight_ != id, "found in the midst of a chunk");
  advance_to(request, held, kPromptCost - kCachedCost);
}

void Scheduler::round_ran(std::span<const RoundResult> results, double seconds) {
  for (const RoundResult& result : results) {
    Request& request = get(result.id);
    const RequestInfo& info = request.info;
    check(request.phase == Phase::kDecoding && result.new_tokens >= 1, "a round of no sequence");
    request.generated += result.new_tokens;
    check(request.generated <= info.most_new_tokens, "more tokens than were asked for");
    request.length = request.read_end();
    const std::size_t next = pages_of(info.prompt_tokens, request.length);
    set_pages(request, result.pages, std::max(request.promised, next));
    charge(info.owner, kGeneratedCost * result.new_tokens);
  }
  shares_.round_ran(seconds, prefill_waits());
}

void Scheduler::finished(RequestId id) {
  Request& request = get(id);
  check(request.generated >= 1, "who wrote nothing has finished");
  owners_.observe_output(request.info.owner, request.generated);
  forget(request);
}

// --- state ---

Scheduler::Request& Scheduler::get(RequestId id) {
  Request* request = find(id);
  check(request, "there is no such request");
  return *request;
}

Scheduler::Request* Scheduler::find(RequestId id) {
  const auto place = requests_.find(id);
  return place == requests_.end() ? nullptr : &place->second;
}

void Scheduler::charge(OwnerId owner, double cost) {
  const double counter = owners_.charge(owner, cost);
  waiting_.set_counter(owner, counter);
  reading_.set_counter(owner, counter);
}

void Scheduler::set_pages(Request& request, std::size_t pages, std::size_t promised) {
  promised_ -= request.owed_pages();
  request.pages = pages;
  request.promised = promised;
  promised_ += request.owed_pages();
}

void Scheduler::advance_to(Request& request, Held held, double refund) {
  check(held.tokens >= request.length && held.tokens <= request.read_end(), "what a request holds");
  const RequestInfo& info = request.info;
  request.length = held.tokens;
  set_pages(request, held.pages, request.promised);
  const int unread = std::max(0, info.prompt_tokens - held.tokens);
  if (unread < request.charged_unread) {
    if (refund > 0) charge(info.owner, -refund * (request.charged_unread - unread));
    request.charged_unread = unread;
  }
  if (request.length == request.read_end()) {
    request.phase = Phase::kDecoding;
    if (request.generated == 0) {
      request.generated = 1;
      charge(info.owner, kGeneratedCost);
    }
  }
  update_indexes(request);
}

void Scheduler::update_indexes(Request& request) {
  const RequestInfo& info = request.info;
  const bool competed = waiting_.erase(info.id) || reading_.erase(info.id);
  if (request.competes()) {
    if (!competed) owners_.enter(info.owner);
    try {
      enqueue(request);
    } catch (...) {  // who is in no queue does not compete
      owners_.leave(info.owner);
      throw;
    }
  } else if (competed) {
    owners_.leave(info.owner);
  }

  if (request.phase == Phase::kDecoding && !request.paused) {
    decoders_.try_emplace(request.admission, &request);
  } else {
    decoders_.erase(request.admission);
  }

  if (request.victim_key) admitted_.erase(*request.victim_key);
  request.victim_key.reset();
  if (request.phase == Phase::kReading || request.phase == Phase::kDecoding) {
    request.victim_key = {!request.paused, request.admitted_class, -request.admission};
    admitted_.emplace(*request.victim_key, &request);
  }
}

void Scheduler::enqueue(const Request& request) {
  const RequestInfo& info = request.info;
  const bool waits = request.phase == Phase::kWaiting;
  const double left = request.read_end() - request.length;
  (waits ? waiting_ : reading_)
      .push({.id = info.id,
             .owner = info.owner,
             .priority = info.priority,
             .arrival = info.arrival,
             .resumes = request.was_preempted(),
             // What is long is as if it had come later: at most by the time of a class.
             .order = waits ? 0 : info.arrival + options_.ageing * left / options_.context_tokens,
             .number = request.number},
            owners_.counter(info.owner));
}

void Scheduler::give_pages_back(Request& request) {
  if (in_flight_ == request.info.id) in_flight_.reset();
  set_pages(request, 0, 0);
}

void Scheduler::forget(Request& request) {
  give_pages_back(request);
  num_waiting_ -= request.admission == 0;
  if (request.charged_unread > 0) charge(request.info.owner, -kPromptCost * request.charged_unread);
  request.phase = Phase::kGone;
  update_indexes(request);
  owners_.remove(request.info.owner);
  requests_.erase(request.info.id);
}

Scheduler::Statistics Scheduler::statistics() const {
  return {.waiting = num_waiting_,
          .preempted = requests_.size() - num_waiting_ - admitted_.size(),
          .admitted = admitted_.size(),
          .promised_pages = promised_,
          .owners = owners_.size(),
          .preemptions = preemptions_};
}

void Scheduler::check_integrity() const {
  std::size_t waiting = 0, reading = 0, decoding = 0, admitted = 0, promised = 0, new_ones = 0;
  for (const auto& [id, request] : requests_) {
    const bool waits = request.phase == Phase::kWaiting, reads = request.phase == Phase::kReading;
    check(waiting_.contains(id) == (waits && !request.paused), "the queue for admission");
    check(reading_.contains(id) == (reads && !request.paused), "the queue for chunks");
    waiting += waiting_.contains(id);
    reading += reading_.contains(id);
    new_ones += request.admission == 0;
    promised += request.owed_pages();
    check(request.victim_key.has_value() == !waits, "an admitted request");
    if (waits) continue;
    ++admitted;
    check(admitted_.at(*request.victim_key) == &request, "the order of preemption");
    if (reads || request.paused) continue;
    ++decoding;
    check(decoders_.at(request.admission) == &request, "who decodes");
  }
  check(waiting == waiting_.size() && reading == reading_.size(), "a queue has who is gone");
  check(waiting + reading == owners_.num_competing(), "who competes");
  check(decoding == decoders_.size() && admitted == admitted_.size(), "a slot has who is gone");
  check(promised == promised_ && new_ones == num_waiting_, "sums over the requests");
  check(!in_flight_ || requests_.at(*in_flight_).phase == Phase::kReading, "the chunk in flight");
}

}  // namespace quantspec
