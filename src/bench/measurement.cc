#include "bench/measurement.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/fields.h"
#include "bench/memory.h"
#include "rivals/rivals.h"

namespace quantspec::bench {

namespace {

// For progress alone: a token of a prompt takes about so much of the time of a decoded one.
constexpr double kPrefillShare = 1.0 / 16;

// What the entries need of a cache; entries of equal store and target share one.
struct CacheNeed {
  KvStore store;
  std::vector<int> full_layers;
  std::vector<Plan> plans = {};

  bool serves(const Entry& entry) const {
    return store == entry.store && full_layers == entry.full_layers();
  }
  KvOptions kv() const {
    KvOptions options = kv_options(plans);
    options.store = store;
    return options;
  }
};

std::vector<CacheNeed> cache_needs(const std::vector<Entry>& entries) {
  std::vector<CacheNeed> needs;
  for (const Entry& entry : entries) {
    auto need = std::ranges::find_if(needs, [&](const auto& n) { return n.serves(entry); });
    if (need == needs.end()) {
      needs.push_back({entry.store, entry.full_layers()});
      need = needs.end() - 1;
    }
    const std::vector<Plan>& plans = entry.decoding.plans;
    need->plans.insert(need->plans.end(), plans.begin(), plans.end());
  }
  return needs;
}

std::size_t bytes_of(const KvOptions& kv, Engine& engine, int capacity) {
  const KvShape& shape = engine.pool().shape();
  const Backend& backend = engine.model().backend();
  return KvCache::page_bytes_for(shape, capacity, kv.store) +
         KvCache::ring_bytes_for(shape, backend, capacity, kv) +
         rivals_bytes(kv, backend, shape, capacity);
}

// A prompt, read into one kind of cache.
struct Base {
  CacheNeed need;
  Sequence sequence;
  double prefill_ms;
};

class Measurement {
 public:
  Measurement(Engine& engine, const std::vector<Entry>& entries, const BenchOptions& options,
              const TokensDone& tokens_done)
      : engine_(engine),
        decoder_(engine.model(), engine.rank_communicator()),
        entries_(entries),
        options_(options),
        tokens_done_(tokens_done),
        measured_(entries.size()),
        drafts_(entries.size()) {
    for (Measured& measured : measured_) measured.repeats.resize(options.repeats);
    for (std::size_t i = 0; i < entries.size(); ++i) time_passes(i);
  }

  void add(const Prompt& prompt, int index) {
    const std::vector<Base> bases = prefill(prompt);
    for (std::size_t i = 0; i < entries_.size(); ++i) warm_up(i, base_of(bases, i), index);
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      for (const int i : run_order(static_cast<int>(entries_.size()), repeat)) {
        measured_[i].repeats[repeat].push_back(run(i, base_of(bases, i), index));
      }
    }
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      measured_[i].prefill_ms.push_back(base_of(bases, i).prefill_ms);
    }
    engine_.model().weights().require_unchanged();
  }

  std::vector<Measured> take() { return std::move(measured_); }

 private:
  void report(double tokens) {
    done_ += tokens;
    if (tokens_done_) tokens_done_(done_);
  }

  // NOTE: the token after the prompt is the likeliest one, whatever the temperature, so that all
  // runs start from the same text.
  std::vector<Base> prefill(const Prompt& prompt) {
    DecodingOptions greedy;
    greedy.sampling.temperature = 0;
    const int context = static_cast<int>(prompt.tokens.size());
    std::vector<Base> bases;
    for (CacheNeed& need : cache_needs(entries_)) {
      const KvOptions kv =
          with_rivals(need.kv(), engine_.model().backend(), engine_.pool().shape());
      bases.push_back(
          {std::move(need),
           Sequence(engine_.model(), engine_.pool(), context + options_.predict, greedy, kv), 0});
      const double before = done_;
      const Stopwatch clock;
      decoder_.prefill(bases.back().sequence, prompt.tokens, [&](double done) {
        report(before + done * context * kPrefillShare - done_);
      });
      bases.back().prefill_ms = clock.milliseconds();
    }
    return bases;
  }

  const Base& base_of(const std::vector<Base>& bases, std::size_t entry) const {
    return *std::ranges::find_if(bases,
                                 [&](const Base& b) { return b.need.serves(entries_[entry]); });
  }

  Sequence start(std::size_t entry, const Base& base, int prompt) const {
    DecodingOptions decoding = entries_[entry].decoding;
    decoding.sampling.seed = options_.seed + static_cast<std::uint64_t>(prompt);
    Sequence sequence = base.sequence.fork(std::move(decoding));
    if (drafts_[entry]) sequence.adopt_drafts(*drafts_[entry]);
    return sequence;
  }

  // As when an engine is loaded.
  void time_passes(std::size_t entry) {
    const DecodingOptions& decoding = entries_[entry].decoding;
    if (decoding.plans.empty() || decoding.draft_len) return;
    const KvShape& shape = engine_.pool().shape();
    KvOptions kv = kv_options(decoding.plans);
    kv.store = entries_[entry].store;
    kv = with_rivals(std::move(kv), engine_.model().backend(), shape);
    Sequence sequence(engine_.model(), engine_.pool(), shape.page_size, decoding, std::move(kv));
    drafts_[entry] = sequence.drafts();
    drafts_[entry]->set_priors(decoder_.time_passes(sequence, kPassTimingSeconds));
  }

  // What the cost model learns here (and on earlier prompts) is what every counted run starts with.
  void warm_up(std::size_t entry, const Base& base, int prompt) {
    if (options_.warm_up == 0) return;
    Sequence sequence = start(entry, base, prompt);
    decode(entry, sequence, std::min(options_.warm_up, options_.predict));
    drafts_[entry] = sequence.drafts();
  }

  Run run(std::size_t entry, const Base& base, int prompt) {
    Sequence sequence = start(entry, base, prompt);
    const std::size_t first = sequence.tokens().size();
    Run run = decode(entry, sequence, options_.predict);
    run.tokens.assign(sequence.tokens().begin() + static_cast<std::ptrdiff_t>(first),
                      sequence.tokens().end());
    measured_[entry].memory = memory(entries_[entry], sequence.cache());
    measured_[entry].gathered_bytes = sequence.cache().gathered_bytes();
    return run;
  }

  Run decode(std::size_t entry, Sequence& sequence, int count) {
    Run run;
    run.rounds_by_plan.resize(entries_[entry].decoding.plans.size());
    for (int left = count; left > 0;) {
      const Stopwatch clock;
      const Decoder::Step step = decoder_.step(sequence, left);
      run.seconds += clock.seconds();
      if (step.choice.draft_len > 0) ++run.rounds_by_plan[step.choice.plan];
      left -= static_cast<int>(step.tokens.size());
      report(static_cast<double>(step.tokens.size()));
    }
    run.stats = sequence.stats();
    return run;
  }

  MemoryPlan memory(const Entry& entry, const KvCache& cache) const {
    MemoryPlan plan;
    plan.weights_bytes = engine_.model().weights().target_bytes();
    plan.draft_weights_bytes = draft_weights_bytes(engine_.model(), entry.decoding.plans);
    const bool full = entry.store == KvStore::kFull;
    // NOTE: not cache.ring_bytes(): entries share a cache, which has the copies of the prompt that
    // rivals choose among. Those are there to measure with.
    const std::size_t ring =
        KvCache::ring_bytes_for(cache.shape(), engine_.model().backend(), cache.capacity(),
                                {.store = entry.store, .full_layers = entry.full_layers()});
    plan.kv_bytes = full ? ring : cache.page_bytes();
    plan.ring_bytes = full ? 0 : ring;
    plan.prefill_bytes =
        prefill_bytes(engine_, full ? 0 : cache.capacity()) + decoder_bytes(engine_);
    plan.kv_fp16_bytes = cache.shape().fp16_token_bytes() * cache.length();
    return of_all_ranks(plan, engine_);
  }

  Engine& engine_;
  Decoder decoder_;
  const std::vector<Entry>& entries_;
  const BenchOptions& options_;
  const TokensDone& tokens_done_;
  std::vector<Measured> measured_;
  std::vector<std::optional<SoloDrafts>> drafts_;  // after passes were timed, and the warm-up
  double done_ = 0;
};

std::string describe(const Entry& entry) {
  const std::optional<int>& len = entry.decoding.draft_len;
  const std::string plan = plan_label(entry.plan, entry.budget);
  return len ? fmt::format("{} at draft length {}", plan, *len) : plan;
}

}  // namespace

void require_memory(Engine& engine, const std::vector<Entry>& entries, const BenchOptions& options,
                    int context) {
  const int capacity = context + options.predict;
  std::size_t needed = prefill_bytes(engine, capacity) + decoder_bytes(engine);
  for (const CacheNeed& need : cache_needs(entries))
    needed += bytes_of(need.kv(), engine, capacity);
  std::size_t largest = 0;  // of the copies that runs start from
  for (const Entry& entry : entries) {
    KvOptions kv = kv_options(entry.decoding.plans);
    kv.store = entry.store;
    largest = std::max(largest, bytes_of(kv, engine, capacity));
  }
  needed += largest;
  const std::size_t available = available_bytes(engine);
  if (needed <= available) return;
  fail(
      ErrorKind::kOutOfMemory,
      "{} {}: the caches of these plans need {:.0f} MB and {:.0f} MB are available; fewer plans at "
      "a time or a shorter context need less",
      field::kContext, context, needed / 1e6, available / 1e6);
}

double tokens_to_do(const std::vector<Entry>& entries, const BenchOptions& options, int context) {
  const double prefills =
      kPrefillShare * context * static_cast<double>(cache_needs(entries).size());
  const double decoded = std::min(options.warm_up, options.predict) +
                         static_cast<double>(options.repeats) * options.predict;
  return options.prompts * (prefills + static_cast<double>(entries.size()) * decoded);
}

std::vector<Measured> measure(Engine& engine, const std::vector<Entry>& entries,
                              std::span<const Prompt> prompts, const BenchOptions& options,
                              const TokensDone& tokens_done) {
  std::vector<Measured> measured;
  engine.at_every_rank([&](Engine& own) {
    const bool leads = &own == &engine;
    const TokensDone nobody;
    Measurement measurement(own, entries, options, leads ? tokens_done : nobody);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      measurement.add(prompts[i], static_cast<int>(i));
    }
    if (leads) measured = measurement.take();
  });
  return measured;
}

void require_same_tokens(const std::vector<Entry>& entries, const std::vector<Measured>& all) {
  const auto require = [](const Entry& a, const Run& x, const Entry& b, const Run& y) {
    if (x.tokens == y.tokens) return;
    const auto at = std::ranges::mismatch(x.tokens, y.tokens).in1 - x.tokens.begin();
    fail(ErrorKind::kInternal, "{} and {} must give the same tokens, and differ from token {} on",
         describe(a), describe(b), at);
  };
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    const auto like = std::ranges::find_if(entries, [&](const Entry& other) {
      return other.is_lossless() && other.store == entry.store &&
             other.full_layers() == entry.full_layers() &&
             other.decoding.sampling.temperature == entry.decoding.sampling.temperature;
    });
    const bool lossless = entry.is_lossless() && like != entries.end();
    if (!lossless && !entry.is_fixed()) continue;
    const std::size_t first = lossless ? like - entries.begin() : i;
    for (const std::vector<Run>& runs : all[i].repeats) {
      for (std::size_t prompt = 0; prompt < runs.size(); ++prompt) {
        require(entries[first], all[first].repeats[0][prompt], entry, runs[prompt]);
      }
    }
  }
}

}  // namespace quantspec::bench
