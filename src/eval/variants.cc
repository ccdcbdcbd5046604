// The ways of reading KV and weights that tables 2 and 5 of arXiv:2502.10424 compare.

#include "eval/eval.h"

namespace quantspec {

namespace {

// All positions in fp16 KV, those that a quantized cache would have in pages through `codec`.
Variant on_full_kv(std::string name, int num_layers, std::optional<KvCodec> codec) {
  Plan plan = Plan::uniform(name, num_layers, WeightRead::kTarget, {KvRead::kFull});
  return {std::move(name), std::move(plan), KvStore::kFull, codec};
}

Variant on_pages(std::string name, int num_layers, WeightRead weights, KvRead kv) {
  Plan plan = Plan::uniform(name, num_layers, weights, {kv});
  return {std::move(name), std::move(plan)};
}

KvCodec paper(KvRead read, GroupAxis keys = GroupAxis::kChannel,
              GroupAxis values = GroupAxis::kToken) {
  return {KvCodec::Quantizer::kPaper, read, keys, values};
}

}  // namespace

std::vector<Variant> kv_variants(const Model& model) {
  const int num_layers = model.config().num_layers;
  const auto full = WeightRead::kTarget;
  std::vector<Variant> variants = {
      on_full_kv("fp16 KV", num_layers, {}),
      on_pages("8-bit KV", num_layers, full, KvRead::kBoth),
      on_full_kv("8-bit KV, paper's", num_layers, paper(KvRead::kBoth)),
      on_pages("4-bit KV", num_layers, full, KvRead::kUpper),
      on_full_kv("4-bit KV, paper's", num_layers, paper(KvRead::kUpper)),
      on_pages("8-bit KV, 8-bit weights", num_layers, WeightRead::kBoth, KvRead::kBoth),
      on_pages("8-bit KV, 4-bit weights", num_layers, WeightRead::kUpper, KvRead::kBoth)};
  variants.back().plan.head = model.weights().head_read();
  std::erase_if(variants, [&](const Variant& variant) { return !model.reads(variant.plan); });
  return variants;
}

std::vector<Variant> axis_variants(const Model& model) {
  const int num_layers = model.config().num_layers;
  std::vector<Variant> variants = {on_full_kv("fp16 KV", num_layers, {})};
  for (const GroupAxis values : {GroupAxis::kToken, GroupAxis::kChannel}) {
    for (const GroupAxis keys : {GroupAxis::kToken, GroupAxis::kChannel}) {
      const auto name_of = [](GroupAxis axis) {
        return axis == GroupAxis::kToken ? "token-wise" : "channel-wise";
      };
      const std::string name = std::string("keys ") + name_of(keys) + ", values " + name_of(values);
      variants.push_back(on_full_kv(name, num_layers, paper(KvRead::kUpper, keys, values)));
    }
  }
  return variants;
}

}  // namespace quantspec
