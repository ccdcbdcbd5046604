#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/fields.h"
#include "eval/eval.h"
#include "eval/fields.h"
#include "eval/forced_pass.h"
#include "eval/memory.h"
#include "eval/partial.h"

namespace quantspec {

namespace {

constexpr int kFirstBucket = 128;  // tokens; each further one ends at twice the position

// What is read from an empty cache, and the first position that predicts a token to be scored.
struct Window {
  std::vector<TokenId> tokens;
  int first_scored;
};

void require_sense(const EvalModel& model, std::span<const Prompt> texts,
                   const PerplexityOptions& options) {
  check(!texts.empty(), "there are texts");
  if (options.context < 2) {
    fail(ErrorKind::kInvalidRequest, "{} {}: a window needs 2 tokens or more", field::kContext,
         options.context);
  }
  if (options.stride < 1 || options.stride >= options.context) {
    fail(ErrorKind::kInvalidRequest, "{} {}: must be from 1 to {}, less than the window",
         field::kStride, options.stride, options.context - 1);
  }
  // The first position that reads a page must have a token after it.
  const int least = 2 * model.pool.shape().page_size + 2;
  if (options.context < least) {
    fail(
        ErrorKind::kInvalidRequest,
        "{} {}: so short a window reads no quantized page; {} tokens or more work, or a smaller {}",
        field::kContext, options.context, least, field::kPageSize);
  }
}

std::vector<Window> cut_windows(const Prompt& text, const PerplexityOptions& options) {
  std::vector<TokenId> all = text.tokens;
  all.insert(all.end(), text.continuation.begin(), text.continuation.end());
  check(std::ssize(all) >= options.context, "a text holds a window");
  const bool has_bos = options.bos && all.front() == *options.bos;
  std::vector<Window> windows = {{{all.begin(), all.begin() + options.context}, 0}};
  for (auto end = all.begin() + options.context; all.end() - end >= options.stride;) {
    end += options.stride;
    Window window{{end - options.context, end}, options.context - options.stride - 1};
    if (has_bos) window.tokens.front() = *options.bos;
    windows.push_back(std::move(window));
  }
  return windows;
}

// Of one variant, window by window.
struct Collected {
  std::vector<std::vector<Score>> scores;
  std::vector<GroupSum> delta;                               // of nll against the first variant
  std::vector<std::vector<std::vector<Score>>> by_position;  // [bucket][window]
};

int bucket_of(int position) {
  return position < kFirstBucket ? 0
                                 : std::bit_width(static_cast<unsigned>(position / kFirstBucket));
}
Bucket empty_bucket(int index) {
  return {index == 0 ? 0 : kFirstBucket << (index - 1), kFirstBucket << index, {}};
}

void collect(std::vector<Score> scores, const std::vector<Score>& reference, int first_scored,
             Collected& into) {
  GroupSum delta{0, std::ssize(scores)};
  for (std::vector<std::vector<Score>>& bucket : into.by_position) bucket.emplace_back();
  for (std::size_t i = 0; i < scores.size(); ++i) {
    delta.sum += scores[i].nll - reference[i].nll;
    // The predicted token's position.
    const int bucket = bucket_of(first_scored + static_cast<int>(i) + 1);
    into.by_position[bucket].back().push_back(scores[i]);
  }
  into.delta.push_back(delta);
  into.scores.push_back(std::move(scores));
}

PerplexityRow row_of(const Variant& variant, const Collected& collected) {
  PerplexityRow row{variant.name,
                    static_cast<int>(collected.scores.size()),
                    summarize(collected.scores),
                    mean_over(collected.delta),
                    {}};
  for (std::size_t i = 0; i < collected.by_position.size(); ++i) {
    Bucket bucket = empty_bucket(static_cast<int>(i));
    bucket.scores = summarize(collected.by_position[i]);
    if (bucket.scores.tokens > 0) row.by_position.push_back(std::move(bucket));
  }
  return row;
}

}  // namespace

double PerplexityRow::perplexity() const { return std::exp(scores.nll.value); }

void eval_perplexity(const EvalModel& model, std::span<const Prompt> texts,
                     const PerplexityOptions& options, const std::vector<Variant>& variants,
                     const ProgressCallback& progress, std::vector<PerplexityRow>& rows) {
  require_sense(model, texts, options);
  require_memory(model, variants_bytes(model, variants, options.context), options.context);
  std::vector<Window> windows;
  for (const Prompt& text : texts) {
    for (Window& window : cut_windows(text, options)) windows.push_back(std::move(window));
  }
  std::vector<Collected> collected(variants.size());
  for (Collected& each : collected) each.by_position.resize(bucket_of(options.context - 1) + 1);
  const auto measure = [&] {
    for (std::size_t w = 0; w < windows.size(); ++w) {
      const Window& window = windows[w];
      auto scores =
          score_variants(model, variants, window.tokens, 0, window.first_scored, [&](double done) {
            if (progress) progress("windows", (w + done) / windows.size());
          });
      const std::vector<Score> reference = scores[0];
      for (std::size_t v = 0; v < variants.size(); ++v) {
        collect(std::move(scores[v]), reference, window.first_scored, collected[v]);
      }
    }
  };
  measure_and_conclude(measure, [&] {
    if (collected.front().scores.empty()) return;
    for (std::size_t v = 0; v < variants.size(); ++v) {
      rows.push_back(row_of(variants[v], collected[v]));
    }
  });
}

}  // namespace quantspec
