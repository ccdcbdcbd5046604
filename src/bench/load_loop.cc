#include "bench/load_loop.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/error.h"
#include "bench/memory.h"

namespace quantspec::bench {

namespace {

// Every cache has room for the longest of all.
int capacity(const LoadLoopOptions& options) {
  return std::max(options.context, options.late_prompt + 1);
}
int num_caches(const LoadLoopOptions& options) {
  return options.sequences + (options.late_prompt > 0 ? 1 : 0);
}

std::size_t pages_for(const KvShape& shape, const LoadLoopOptions& options) {
  if (options.page_memory > 0) return options.page_memory / shape.page_bytes();
  const auto pages = [&](int tokens) -> std::size_t {
    return (tokens + shape.page_size - 1) / shape.page_size;
  };
  return pages(options.context) * options.sequences + pages(options.late_prompt + 1);
}

RequestLoopOptions loop_options(Engine& engine, const Entry& entry,
                                const LoadLoopOptions& options) {
  RequestLoopOptions loop;
  loop.ranks = engine.rank_communicator();
  loop.sequences = num_caches(options);
  loop.context = capacity(options);
  loop.pages = pages_for(engine.pool().shape(), options);
  loop.plans = entry.decoding.plans;
  loop.store = entry.store;
  if (entry.store == KvStore::kHierarchical) {
    loop.host_bytes = options.host_cache;
    if (options.page_memory > 0) loop.admission = Admission::kExpected;
  } else {
    loop.pages = 0;  // it has none
    loop.share_prefixes = false;
  }
  loop.max_waiting = std::numeric_limits<int>::max();  // a trace says who waits
  return loop;
}

// What loops of all ranks do next.
struct Act {
  enum { kBegin, kStep, kEnd } what;
  std::size_t entry = 0;
  LoadLoopOptions options = {};
};

// Before a loop of rank 0 begins.
Agreement told_of(const Agreement& agreement, std::size_t entry, const LoadLoopOptions& options) {
  agreement.on(Act{Act::kBegin, entry, options});
  return agreement;
}

}  // namespace

LoadLoop::LoadLoop(Engine& engine, std::span<const Entry> entries, std::size_t entry,
                   const LoadLoopOptions& options)
    : entry_(entries[entry]),
      options_(options),
      pages_(pages_for(engine.pool().shape(), options)),
      agreement_(told_of(Agreement(engine.rank_communicator()), entry, options)),
      loop_(engine.model(), engine.pool().shape(), loop_options(engine, entry_, options)) {}

void LoadLoop::follow(Engine& own, std::span<const Entry> entries) {
  const Agreement agreement(own.rank_communicator());
  std::map<int, RequestLoop> loops;
  for (Act act; (act = agreement.on(Act{Act::kEnd})).what != Act::kEnd;) {
    if (act.what == Act::kStep) {
      loops.at(act.options.number).step();
      continue;
    }
    loops.erase(act.options.number);
    loops.try_emplace(act.options.number, own.model(), own.pool().shape(),
                      loop_options(own, entries[act.entry], act.options));
  }
}

void LoadLoop::end(Engine& engine) { Agreement(engine.rank_communicator()).on(Act{Act::kEnd}); }

std::size_t LoadLoop::submit(std::vector<TokenId> prompt, int predict, double arrival,
                             OwnerId owner, bool hold, const std::string& salt) {
  Stream& stream = streams_.emplace_back();
  stream.arrival = arrival;
  Request request;
  request.prompt = std::move(prompt);
  request.predict = predict;
  request.sampling = entry_.decoding.sampling;
  request.sampling.seed = options_.seed + streams_.size() - 1;
  request.spec_sampling = entry_.decoding.spec_sampling;
  request.draft_len = entry_.decoding.draft_len;
  request.owner = owner;
  request.salt = salt;
  request.on_tokens = [this, &stream, hold](const Step& step) {
    take(stream, step.tokens, hold);
    return true;
  };
  request.on_end = [this, &stream](const Request::Ended& end) {
    stream.ended = true;
    stream.cached_tokens = end.cached_tokens;
    ++ended_;
    if (end.error) failure_.emplace(*end.error);
  };
  stream.id = loop_.submit(std::move(request));
  return streams_.size() - 1;
}

void LoadLoop::take(Stream& stream, std::span<const TokenId> tokens, bool hold) {
  const double now = clock.seconds();
  if (stream.tokens.empty()) {
    stream.first = now;
    ++have_first_;
    if (hold) loop_.pause(stream.id);
  } else {
    intervals_.push_back(now - stream.latest);
  }
  stream.latest = now;
  tokens_ += std::ssize(tokens);
  stream.tokens.insert(stream.tokens.end(), tokens.begin(), tokens.end());
}

bool LoadLoop::step() {
  agreement_.on(Act{.what = Act::kStep, .options = options_});
  const bool more = loop_.step();
  if (failure_) throw *failure_;
  const RequestLoop::Statistics now = loop_.statistics();
  most_pages_ = std::max(most_pages_, pages_ - now.free_pages - now.prefixes.idle_pages);
  return more;
}

void LoadLoop::release() {
  for (Stream& stream : streams_) {
    stream.latest = clock.seconds();
    loop_.resume(stream.id);
  }
}

std::vector<std::vector<TokenId>> LoadLoop::texts() const {
  std::vector<std::vector<TokenId>> all;
  for (const Stream& stream : streams_) all.push_back(stream.tokens);
  return all;
}

void LoadLoop::forget() {
  check(ended_ == std::ssize(streams_), "requests refer to their streams");
  streams_.clear();
  intervals_.clear();
  have_first_ = ended_ = 0;
  tokens_ = 0;
  most_pages_ = 0;
}

std::size_t LoadLoop::ring_bytes(Engine& engine, const Entry& entry,
                                 const LoadLoopOptions& options) {
  KvOptions kv = kv_options(entry.decoding.plans);
  kv.store = entry.store;
  return num_caches(options) * KvCache::ring_bytes_for(engine.pool().shape(),
                                                       engine.model().backend(), capacity(options),
                                                       kv);
}

std::size_t LoadLoop::bytes_for(Engine& engine, const Entry& entry,
                                const LoadLoopOptions& options) {
  const KvShape& shape = engine.pool().shape();
  const std::size_t rings =
      ring_bytes(engine, entry, options) + decoder_bytes(engine, num_caches(options));
  if (entry.store == KvStore::kFull) return rings;
  const bool on_device = engine.model().backend().is_apart_from_host();
  return rings + pages_for(shape, options) * shape.page_bytes() +
         (on_device ? 0 : options.host_cache);
}

}  // namespace quantspec::bench
