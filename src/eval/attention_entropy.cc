#include "eval/attention_entropy.h"

#include <algorithm>
#include <cmath>

#include "backend/params/view.h"
#include "eval/forced_pass.h"
#include "eval/partial.h"

namespace quantspec {

namespace {

class EntropyMeter {
 public:
  explicit EntropyMeter(const EvalModel& model)
      : model_(model.model), pool_(model.pool), sums_(model.model.config().num_layers) {}

  void read(const Prompt& prompt, const Model::Progress& progress) {
    const std::vector<TokenId> tokens = whole_text(prompt);
    KvOptions options;  // a cache records masses when someone would choose by them
    options.accesses = {{KvRead::kUpper, KvTokens::kByMass, pool_.shape().page_size}};
    KvCache cache(model_.backend(), pool_, static_cast<int>(tokens.size()), options);
    std::vector<float> logits(model_.config().vocab_size);
    model_.prefill(prompt.tokens, cache, logits, [&](double) { progress(0); });
    const int num_layers = model_.config().num_layers;
    const Plan target = Plan::target(num_layers);
    std::vector<Sum> sums = sums_;
    for (std::size_t i = prompt.tokens.size(); i + 1 < tokens.size(); ++i) {
      progress(static_cast<double>(i - prompt.tokens.size()) / prompt.continuation.size());
      cache.reserve(1);
      const SequenceInput input{{&tokens[i], 1}, &cache};
      model_.forward({&input, 1}, target, logits);
      for (int layer = 0; layer < num_layers; ++layer) {
        add(sums[layer], cache.view(layer, KvAccess::target()));
      }
      cache.settle(1);
    }
    model_.weights().require_unchanged();
    sums_ = std::move(sums);
  }

  std::vector<LayerEntropy> means() const {
    std::vector<LayerEntropy> means;
    for (const Sum& sum : sums_) {
      means.push_back(
          {static_cast<int>(means.size()), sum.nats / sum.count, sum.relative / sum.count});
    }
    return means;
  }

 private:
  struct Sum {
    double nats = 0;
    double relative = 0;
    std::int64_t count = 0;
  };

  void add(Sum& sum, const KvView& view) {
    const std::size_t pages = view.pages.size();
    if (pages == 0) return;
    const int heads = model_.config().num_kv_heads;
    const auto row = static_cast<std::size_t>(view.page_mass.max_pages);
    mass_.resize(heads * row);
    model_.backend().download(mass_.data(), view.page_mass.data, mass_.size() * sizeof(float));
    const double group = static_cast<double>(model_.config().num_heads) / heads;
    const auto term = [](double share) { return share > 0 ? -share * std::log(share) : 0.0; };
    for (int head = 0; head < heads; ++head) {
      double nats = 0, ring = 1;
      for (std::size_t page = 0; page < pages; ++page) {
        const double share = mass_[head * row + page] / group;
        nats += term(share);
        ring -= share;
      }
      nats += term(ring);
      sum.nats += nats;
      sum.relative += nats / std::log(pages + 1.0);
      ++sum.count;
    }
  }

  const Model& model_;
  PagePool& pool_;
  std::vector<Sum> sums_;    // [num_layers], over the prompts read
  std::vector<float> mass_;  // [num_kv_heads, max_pages] of a view
};

}  // namespace

void attention_entropies(const EvalModel& model, std::span<const Prompt> prompts,
                         const Model::Progress& progress, std::vector<LayerEntropy>& entropies) {
  EntropyMeter meter(model);
  std::size_t read = 0;
  const auto measure = [&] {
    for (; read < prompts.size(); ++read) {
      meter.read(prompts[read], [&](double done) {
        if (progress) progress((static_cast<double>(read) + done) / prompts.size());
      });
    }
  };
  measure_and_conclude(measure, [&] {
    if (read > 0) entropies = meter.means();
  });
}

}  // namespace quantspec
