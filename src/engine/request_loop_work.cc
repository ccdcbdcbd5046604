// What a RequestLoop does in a step: a round of all that decode, and slices of a prompt.
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/request_loop_impl.h"

namespace quantspec {

namespace {

// While nobody decodes, slices go on for so long before the loop looks at who came and went.
constexpr double kAloneSeconds = 0.05;
constexpr double kAheadSeconds = 0.01;  // of what nobody waits for

// What is found takes no time; that which does lets those that decode go on between.
constexpr double kFindSeconds = 2e-3;

// Of one layer. Fewer would read its weights too often for what they compute; and a step that ran a
// slice goes on only with more of them.
constexpr int kLeastSliceRows = 8;
constexpr int kLeastFurtherRows = 32;

}  // namespace

// --- rounds --------------------------------------------------------------------------------------

void RequestLoop::Impl::run_round() {
  requests.clear();
  for (const RequestId id : decoding) requests.push_back(live.at(id).get());
  const bool as_chosen = choose();
  Stopwatch round_clock;
  Decoder::Outcome outcome;
  try {
    make_room(lanes.size());
    round_clock.restart();
    outcome = decoder.round(lanes);
  } catch (...) {
    rethrow_for_ranks();
    return run_alone();  // it was one of them; the others are as they were
  }
  if (as_chosen) observe(outcome);
  record.expected = rules.expected();
  count_drafts(outcome.draft_seconds);
  settle(requests, outcome.steps, agreed(round_clock));
}

void RequestLoop::Impl::count_drafts(double seconds) {
  totals.draft_seconds += seconds;
  record.draft_seconds += seconds;
}

void RequestLoop::Impl::run_alone() {
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Stopwatch round_clock;
    Decoder::Outcome outcome;
    try {
      make_room(1);
      outcome = decoder.round(std::span(lanes).subspan(i, 1));
    } catch (...) {
      end(*requests[i], failure());
      continue;
    }
    count_drafts(outcome.draft_seconds);
    settle({&requests[i], 1}, outcome.steps, round_clock.seconds());
  }
}

// By its own wish, or by what yields most for those that ask for the same. Returns whether that is
// known: if not, they decode without drafts.
bool RequestLoop::Impl::choose() {
  turns.clear();
  lanes.clear();
  for (Live* request : requests) {
    const int cap = std::min(request->sequence->max_rows(), request->left()) - 1;
    turns.push_back({&request->drafts, cap, request->sequence->cache().length()});
    const int proposed = static_cast<int>(request->proposed(std::min(cap, kMaxDraftLen)).size());
    const auto& forced = request->request.forced;
    if (proposed == 0 && !forced) {
      if (!request->drafts.plain) turns.back().found = request->sequence->look_up(cap);
      continue;
    }
    turns.back().member = nullptr;
    turns.back().choice = proposed > 0
                              ? DraftChoice{DraftChoice::kProposed, proposed}
                              : DraftChoice{forced->plan, std::min(forced->draft_len, cap)};
  }
  bool known = true;
  try {
    if (agreement.leads()) rules.choose(turns);
  } catch (...) {
    log_caught("how many tokens to draft");
    known = false;
    for (DraftRules::Turn& turn : turns) {
      if (turn.member != nullptr) turn.choice = {0, 0};
    }
  }
  agree_on_turns();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const DraftChoice choice = turns[i].choice;
    lanes.push_back({requests[i]->sequence, choice, turns[i].records_masses});
    if (choice.plan == DraftChoice::kProposed) {
      lanes.back().proposed = requests[i]->proposed(choice.draft_len);
    } else if (requests[i]->sequence->looks_up(choice)) {
      lanes.back().proposed = turns[i].found.tokens.first(choice.draft_len);
    }
  }
  return known && agreement.leads();
}

void RequestLoop::Impl::observe(const Decoder::Outcome& outcome) {
  accepted.clear();
  for (const Step& step : outcome.steps) accepted.push_back(step.accepted);
  try {
    rules.observe(accepted, outcome.draft_seconds, outcome.other_seconds);
  } catch (...) {
    log_caught("what is learned from a round");
  }
}

// What a round gave to these requests. All of it is known here and to the scheduler before any of
// them is told: a callback may throw, and an end takes a request away.
void RequestLoop::Impl::settle(std::span<Live* const> of, std::span<const Step> steps,
                               double seconds) {
  results.clear();
  for (std::size_t i = 0; i < of.size(); ++i) {
    add(*of[i], steps[i]);
    count(steps[i]);
    const int length = held(*of[i]).tokens - static_cast<int>(steps[i].tokens.size());
    record.turns.push_back({of[i]->id, length, steps[i].choice, steps[i].accepted});
    results.push_back({of[i]->id, static_cast<int>(steps[i].tokens.size()), held(*of[i]).pages});
  }
  scheduler.round_ran(results, seconds);
  ++totals.rounds;
  totals.round_seconds += seconds;
  endings.clear();
  for (std::size_t i = 0; i < of.size(); ++i) {
    if (auto ending = tell(*of[i], steps[i])) endings.emplace_back(of[i], std::move(*ending));
  }
  for (const auto& [request, ending] : endings) end(*request, ending);
}

void RequestLoop::Impl::add(Live& request, const Step& step) {
  const auto next = request.proposed(static_cast<int>(step.tokens.size()));
  request.as_proposed &= std::ranges::equal(next, step.tokens.first(next.size()));
  request.generated.insert(request.generated.end(), step.tokens.begin(), step.tokens.end());
}

// How the request ends by it, if it does.
std::optional<RequestLoop::Impl::Ending> RequestLoop::Impl::tell(Live& request, const Step& step) {
  std::optional<Ending> ending;
  try {
    const bool wants_more = !request.request.on_tokens || request.request.on_tokens(step);
    if (!wants_more || request.left() == 0) ending = {RequestEnd::kDone};
  } catch (...) {
    ending = {RequestEnd::kFailed, current_error("who was told of tokens")};
  }
  return agreed(std::move(ending));
}

// The same for the share of its prompt that is read.
std::optional<RequestLoop::Impl::Ending> RequestLoop::Impl::tell_share(Live& request,
                                                                       double share) {
  std::optional<Ending> ending;
  try {
    const PromptProgress progress{request.prompt_tokens(), request.cached_tokens, share};
    if (request.request.on_progress) request.request.on_progress(progress);
  } catch (...) {
    ending = {RequestEnd::kFailed, current_error("who was told how far a prompt is read")};
  }
  return agreed(std::move(ending));
}

void RequestLoop::Impl::count(const Step& step) {
  const auto [plan, draft_len] = step.choice;
  ++totals.turns;
  totals.drafted += draft_len;
  totals.accepted += step.accepted;
  if (step.accepted < draft_len) ++totals.rejections;
  if (draft_len > 0 && plan != DraftChoice::kProposed) ++totals.turns_by_plan[plan];
}

// --- prompts -------------------------------------------------------------------------------------

bool RequestLoop::Impl::run_slices() {
  bool ran = false;
  const Stopwatch find_clock;
  while (const auto slices = scheduler.prefill(now(), pool_state())) {
    Live& request = *live.at(slices->id);
    std::optional<Ending> ending;
    ran = true;
    try {
      if (find_chunk(request)) {
        if (agreed(find_clock) > kFindSeconds) break;  // it was on a disk
        continue;
      }
      ending = run_chunk(request, slices->seconds);
    } catch (...) {
      rethrow_for_ranks();
      ending = failure();
    }
    if (ending) end(request, *ending);
    break;  // others may have come meanwhile
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
  if (next == PrefixTree::Next::kYours &&
      (end > request.most_found(cache) || !is_in_folder(request, end))) {
    return false;
  }
  if (end > request.most_found(cache)) {  // the ring wants some of its tokens
    request.sequence->share(request.path.last_pages());
    return false;
  }
  request.sequence->attach(request.path.last_pages(), request.tail.tail.get());
  request.found_until(end);
  if (swap_in(request)) scheduler.found(request.id, held(request));
  return true;
}

// As many as take about this long, of sizes that are few, since what multiplies matrices prepares
// itself for each: 8, 12, 16, 24, 32 and so on.
int RequestLoop::Impl::slice_rows(const Model::Prefill& reader, double seconds) const {
  int rows = kLeastSliceRows;
  for (int more = rows; rows < chunk(); rows = more) {
    more = std::has_single_bit(static_cast<unsigned>(rows)) ? rows + rows / 2 : rows / 3 * 4;
    if (slice_time.seconds(reader.products(more)) > seconds) break;
  }
  return rows;
}

// Slices of one chunk. Returns whether it is not at its end.
bool RequestLoop::Impl::read_slices(Live& request, double seconds, bool alone,
                                    const Stopwatch& slice_clock) {
  const KvCache& cache = request.sequence->cache();
  const Model::Prefill& reader = *request.reader;
  const int begin = cache.length();
  if (!reader.inside_chunk()) {
    const int tokens = std::min(chunk(), static_cast<int>(request.request.prompt.size()) - begin);
    make_room(tokens / shape.page_size + 1);
    if (begin + tokens == std::ssize(request.request.prompt)) begin_tail(request);
    if (const auto& [tail, end] = request.tail; tail && tail->start() == begin) {
      totals.tail_tokens += end - begin;
      request.found_until(end);
    }
  }
  producer = &request;  // also while something is thrown
  int slices = 0;       // that were not observed
  double products = 0, since = slice_clock.seconds();
  const auto observe = [&] {
    model.backend().synchronize();
    const double now = slice_clock.seconds();
    slice_time.observe(products / slices, (now - since) / slices);
    slices = 0, products = 0, since = now;
  };
  for (int rows = agreement.on(slice_rows(reader, seconds));;) {
    ++slices;
    products += reader.products(rows);
    request.reader->step(rows);
    if (!alone) observe();  // else the host runs ahead of a device, to the chunk's end at most
    if (!reader.inside_chunk()) break;
    // Not beyond the time by what is expected: those that decode wait.
    rows = agreement.on(slice_rows(reader, seconds - slice_clock.seconds()));
    if (rows < kLeastFurtherRows) break;
  }
  if (slices > 0) observe();
  if (reader.inside_chunk()) return true;
  if (!request.drafts.plain && !request.request.forced && reads_ahead != &request) {
    request.sequence->note_read();
  }
  producer = nullptr;
  request.known_tokens = std::max(request.known_tokens, cache.length());
  if (request.path.making()) {
    request.path.seal(cache.pages_of(begin, begin + chunk()));
    keep_chunk(request);
  }
  if (request.new_tail) {
    keep_tail(request, *request.new_tail);
    tails.add(std::exchange(request.new_tail, nullptr));
  }
  return false;
}

// The same, or what was generated before a preemption. How the request ends by it, if it does.
std::optional<RequestLoop::Impl::Ending> RequestLoop::Impl::run_chunk(Live& request,
                                                                      double seconds) {
  const Stopwatch slice_clock;
  bool in_flight = false;
  std::optional<Step> first;
  const bool reads = request.reader != nullptr;
  double share = 1;
  record.prompt = request.id;
  record.prompt_tokens = request.prompt_tokens();
  record.prompt_share = share;
  if (reads) {
    const bool ahead = &request == reads_ahead;
    in_flight = read_slices(request, std::min(seconds, ahead ? kAheadSeconds : kAloneSeconds),
                            std::isinf(seconds) && !ahead, slice_clock);
    share = request.reader->share();
    record.prompt_share = share;
    if (!swap_in(request)) return std::nullopt;
    if (request.reader != nullptr && request.reader->done()) first = end_prompt(request);
  } else {
    make_room(1);
    decoder.replay(*request.sequence);
  }
  const double spent = agreed(slice_clock);
  totals.slice_seconds += spent;
  scheduler.slices_ran(request.id, held(request), in_flight, spent);
  if (reads && request.paused) {
    request.untold_share = share;
  } else if (reads) {
    if (auto ending = tell_share(request, share)) return ending;
  }
  if (!first) return std::nullopt;
  if (!request.paused) return tell(request, *first);
  request.untold = {first->tokens[0],
                    {first->log_probs.begin(), first->log_probs.end()},
                    {first->top_log_probs.begin(), first->top_log_probs.end()}};
  return std::nullopt;
}

// The prompt is in the cache. Returns its first token; none where a preempted one goes on.
std::optional<Step> RequestLoop::Impl::end_prompt(Live& request) {
  request.reader.reset();
  if (!request.generated.empty()) {
    decoder.resume(*request.sequence, request.generated);
    return std::nullopt;
  }
  const Step step = decoder.end_prompt(*request.sequence);
  add(request, step);
  return step;
}

}  // namespace quantspec
