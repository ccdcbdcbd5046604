// Uniform load: so many prompts of one length that decode together.
#include <algorithm>
#include <memory>
#include <utility>

#include "bench/load_loop.h"
#include "bench/load_measurement.h"

namespace quantspec::bench {

namespace {

// For progress alone: a token of a prompt takes about so much of the time of a decoded one.
constexpr double kPrefillShare = 1.0 / 8;
// Tokens that a round may add beyond what was wanted.
constexpr int kSlack = 32;
// Tokens that a stream may write while a late prompt is read, as a share of that.
constexpr double kLateShare = 1.0 / 4;

// The loops of all entries at once, each in its state, so that they can decode in turns.
class Uniform {
 public:
  Uniform(Engine& engine, std::span<const Entry> entries,
          std::span<const std::vector<TokenId>> prompts, const std::vector<TokenId>& late_prompt,
          const BenchOptions& options, const TokensDone& tokens_done)
      : late_prompt_(late_prompt),
        options_(options),
        tokens_done_(tokens_done),
        tokens_(uniform_tokens(options, static_cast<int>(late_prompt.size()))),
        measured_(entries.size()) {
    LoadLoopOptions loop{.sequences = static_cast<int>(prompts.size()),
                         .context = static_cast<int>(prompts.front().size()) + tokens_,
                         .seed = options.seed,
                         .late_prompt = static_cast<int>(late_prompt.size())};
    for (std::size_t i = 0; i < entries.size(); ++i) {
      loop.number = static_cast<int>(i);
      loops_.push_back(std::make_unique<LoadLoop>(engine, entries, i, loop));
    }
    for (std::size_t i = 0; i < entries.size(); ++i) read(i, prompts);
  }

  std::vector<LoadMeasured> measure() {
    if (options_.warm_up > 0) {
      for (std::size_t i = 0; i < loops_.size(); ++i) decode(i, options_.warm_up);
    }
    for (std::size_t i = 0; i < loops_.size(); ++i) {
      loops_[i]->take_intervals();
      measured_[i].tpot.clear();
    }
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      for (const int i : run_order(static_cast<int>(loops_.size()), repeat)) {
        measured_[i].repeats.push_back(decode(i, options_.predict));
      }
    }
    for (std::size_t i = 0; i < loops_.size(); ++i) {
      LoadMeasured& measured = measured_[i];
      measured.itl = loops_[i]->take_intervals();
      measured.pages = loops_[i]->most_pages();
      if (!late_prompt_.empty()) read_late(i);
      measured.tokens = {loops_[i]->texts()};
      measured.moves = moves_of(loops_[i]->requests().statistics());
    }
    return std::move(measured_);
  }

 private:
  void step(LoadLoop& loop) {
    loop.clock.start();
    loop.step();
    loop.clock.stop();
    if (tokens_done_) tokens_done_(done_);
  }

  // All prompts are there at once; who has its first token waits for the others.
  void read(std::size_t entry, std::span<const std::vector<TokenId>> prompts) {
    LoadLoop& loop = *loops_[entry];
    for (const std::vector<TokenId>& prompt : prompts) {
      loop.submit(prompt, tokens_, 0, 0, true);
    }
    while (loop.have_first() < std::ssize(prompts)) {
      const int before = loop.have_first();
      step(loop);
      done_ += kPrefillShare * (loop.have_first() - before) * std::ssize(prompts.front());
    }
    for (const Stream& stream : loop.streams()) {
      measured_[entry].ttft.push_back(stream.first - stream.arrival);
    }
    loop.release();
  }

  // Until one of the streams has so many new tokens: up to then, all of them decode.
  LoadRepeat decode(std::size_t entry, int count) {
    LoadLoop& loop = *loops_[entry];
    std::vector<std::size_t> before;
    for (const Stream& stream : loop.streams()) before.push_back(stream.tokens.size());
    const RoundSums sums(loop.requests().statistics());
    const double begin = loop.clock.seconds(), done = done_;
    LoadRepeat repeat;
    for (std::size_t most = 0; most < static_cast<std::size_t>(count);) {
      step(loop);
      repeat.tokens = 0;
      for (std::size_t i = 0; i < before.size(); ++i) {
        const std::size_t added = loop.streams()[i].tokens.size() - before[i];
        repeat.tokens += static_cast<std::int64_t>(added);
        most = std::max(most, added);
      }
      const double share = std::min(1.0, static_cast<double>(most) / count);
      done_ = done + share * count * static_cast<double>(before.size());
    }
    repeat.seconds = loop.clock.seconds() - begin;
    repeat.rounds = RoundSums(loop.requests().statistics()) - sums;
    for (std::size_t i = 0; i < before.size(); ++i) {
      const std::size_t added = loop.streams()[i].tokens.size() - before[i];
      if (added > 0) measured_[entry].tpot.push_back(repeat.seconds / static_cast<double>(added));
    }
    return repeat;
  }

  // Until it has its first token, or one of the streams has all that it may write.
  void read_late(std::size_t entry) {
    LoadLoop& loop = *loops_[entry];
    const double begin = loop.clock.seconds(), done = done_;
    // Nothing of the streams' prompts may be found: it could begin as one of them does.
    const std::size_t late = loop.submit(late_prompt_, 1, begin, 1, false, "late");
    const Stream& stream = loop.streams()[late];
    while (loop.ended() == 0) step(loop);
    if (!stream.ended) {  // the model reads one chunk at a time, of one loop
      loop.requests().cancel(stream.id);
      step(loop);
    }
    done_ = done + kPrefillShare * static_cast<double>(late_prompt_.size());
    LateMeasured& measured = measured_[entry].late.emplace();
    measured.itl = loop.take_intervals();
    if (!stream.tokens.empty()) measured.ttft = stream.first - begin;
  }

  const std::vector<TokenId>& late_prompt_;
  const BenchOptions& options_;
  const TokensDone& tokens_done_;
  int tokens_;  // of a stream, at most
  std::vector<LoadMeasured> measured_;
  std::vector<std::unique_ptr<LoadLoop>> loops_;
  double done_ = 0;
};

}  // namespace

int uniform_tokens(const BenchOptions& options, int late_prompt) {
  const std::int64_t repeats = options.repeats;
  const std::int64_t tokens = 1 + options.warm_up + kSlack + repeats * (options.predict + kSlack) +
                              static_cast<std::int64_t>(kLateShare * late_prompt);
  return static_cast<int>(std::min(tokens, std::int64_t{1} << 30));  // far more than fit
}

double uniform_effort(std::size_t entries, int streams, int context, const BenchOptions& options,
                      int late_prompt) {
  const double decoded = options.warm_up + static_cast<double>(options.repeats) * options.predict;
  const double each = streams * (kPrefillShare * context + decoded) + kPrefillShare * late_prompt;
  return static_cast<double>(entries) * each;
}

std::vector<LoadMeasured> measure_uniform(Engine& engine, std::span<const Entry> entries,
                                          std::span<const std::vector<TokenId>> prompts,
                                          const std::vector<TokenId>& late_prompt,
                                          const BenchOptions& options,
                                          const TokensDone& tokens_done) {
  return Uniform(engine, entries, prompts, late_prompt, options, tokens_done).measure();
}

}  // namespace quantspec::bench
