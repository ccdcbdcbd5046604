// What a RequestLoop does in a step: a round of all that decode, and slices of a prompt.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/request_loop_impl.h"

namespace quantspec {

namespace {

// While nobody decodes, slices go on for so long before the loop looks at who came and went.
constexpr double kAloneSeconds = 0.05;

// Of one layer. Fewer would read its weights too often for what they compute.
constexpr int kLeastSliceRows = 32;

}  // namespace

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
      break;  // others may have come meanwhile, or want to read for another loop
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
  if (end > request.most_found(cache)) {  // the ring wants some of its tokens
    request.sequence->share(request.path.last_pages());
    return false;
  }
  request.sequence->attach(request.path.last_pages());
  request.found_tokens += chunk();
  request.cached_tokens = std::max(request.cached_tokens, request.found_tokens);
  swap_in(request);
  if (request.sequence != nullptr) scheduler.found(request.id, held(request));
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
      // Not beyond the time by what is expected: those that decode wait.
    } while (in_flight && slice_clock.seconds() + kLeastSliceRows * row_seconds <= seconds);
    producer = in_flight ? &request : nullptr;
    if (!in_flight && request.path.making()) {
      request.path.seal(sequence.cache().pages_of(begin, begin + chunk()));
    }
    reads = !request.reader->done();
    if (request.request.on_progress) request.request.on_progress(request.reader->share());
    const bool is_back = swap_in(request);
    if (request.sequence == nullptr) return;  // preempted
    if (!is_back && !reads) end_prompt(request);
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

}  // namespace quantspec
