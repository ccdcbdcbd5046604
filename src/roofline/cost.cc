// FLOPs and bytes of passes: Table 1, arXiv:2502.10424, with its constants. A multiply-add is two
// FLOPs. B: batch, S: context, R: rows, d: hidden size, D: head dim, Hq and Hkv: heads.
#include <algorithm>

#include "base/error.h"
#include "model/model.h"
#include "roofline/roofline.h"

namespace quantspec {

namespace {

constexpr double kActivationBytes = 2;  // the paper's 16 bits, of activations and of recent KV

double query_width(const ModelConfig& model) { return 1.0 * model.num_heads * model.head_dim; }
double kv_width(const ModelConfig& model) { return 1.0 * model.num_kv_heads * model.head_dim; }
double head_parameters(const ModelConfig& model) {
  return 1.0 * model.vocab_size * model.hidden_size;
}

double layer_parameters(const ModelConfig& model) {
  const double attention = 2 * query_width(model) + 2 * kv_width(model);  // q, o; k, v
  return model.hidden_size * (attention + 3.0 * model.intermediate_size);
}

// What the products of a layer read and write for one token: [d] -> q, k, v; [Hq D] -> [d];
// [d] -> gate, up; their product -> [d].
double layer_activations(const ModelConfig& model) {
  return 4.0 * model.hidden_size + 2 * query_width(model) + 2 * kv_width(model) +
         3.0 * model.intermediate_size;
}

// All linear layers for `tokens` tokens, and the head for `logits` of them.
Cost linear_cost(const ModelConfig& model, double tokens, double logits, double layer_share,
                 double weight_bytes) {
  const double layers = layer_share * model.num_layers;
  const double in_layers = layers * layer_parameters(model);
  const double activations =
      tokens * layers * layer_activations(model) + logits * (model.hidden_size + model.vocab_size);
  return {2 * (tokens * in_layers + logits * head_parameters(model)),
          weight_bytes * (in_layers + head_parameters(model)) + kActivationBytes * activations};
}

// Attention of rows that see `pairs` (query, key) pairs in all and read kv_bytes of K and V: scores
// and weighted values are 2 D FLOPs each for a pair and query head; queries and outputs pass once.
Cost attention_cost(const ModelConfig& model, double layers, double rows, double pairs,
                    double kv_bytes) {
  const double width = query_width(model);
  return {4 * layers * width * pairs, kv_bytes + 2 * kActivationBytes * layers * width * rows};
}

}  // namespace

double stored_parameters(const ModelConfig& model) {
  const double norms = model.hidden_size * (2.0 * model.num_layers + 1);
  const double embedding = model.tied_head ? 0 : head_parameters(model);
  return read_parameters(model) + embedding + norms;
}

double read_parameters(const ModelConfig& model) {
  return model.num_layers * layer_parameters(model) + head_parameters(model);
}

double kv_elements(const ModelConfig& model) { return 2.0 * model.num_layers * kv_width(model); }

double Cost::seconds(const Machine& machine) const {
  return std::max(flops / machine.flops, bytes / machine.bandwidth);
}

double StepCost::seconds(const Machine& machine) const {
  return linear.seconds(machine) + attention.seconds(machine);
}

double StepCost::attention_share(const Machine& machine) const {
  return attention.seconds(machine) / seconds(machine);
}

PassRead pass_read(const ModelConfig& model, const WeightBytes& bytes, WeightRead weights,
                   KvRead kv, int page_size) {
  PassRead read;
  read.weight_bytes = bytes.of(weights);
  if (kv == KvRead::kFull) return read;
  const KvShape shape = kv_shape(model, page_size);
  const double elements = 2.0 * shape.page_size * shape.head_dim;
  read.kv_bytes = static_cast<double>(unit_bytes(shape, kv)) / elements;
  read.ring_tokens = 1.5 * shape.page_size;  // from G to 2 G (section 4 of docs/design.md)
  return read;
}

StepCost prefill_cost(const ModelConfig& model, int context, int batch, double weight_bytes) {
  const double tokens = 1.0 * batch * context;
  const double pairs = tokens * (context + 1.0) / 2;  // causal
  const double kv_bytes = kActivationBytes * tokens * kv_elements(model);
  return {linear_cost(model, tokens, batch, 1, weight_bytes),
          attention_cost(model, model.num_layers, tokens, pairs, kv_bytes)};
}

StepCost decode_cost(const ModelConfig& model, int context, int batch, int rows,
                     const PassRead& read) {
  const double tokens = 1.0 * batch * rows;
  const double old = std::min<double>(context, read.kv_tokens.value_or(context));
  const double ring = std::min(old, read.ring_tokens);
  const double pairs = tokens * (old + (rows + 1.0) / 2);  // a row sees itself and those before
  const double kv_bytes = read.layers * kv_elements(model) *
                          (batch * (read.kv_bytes * (old - ring) + kActivationBytes * ring) +
                           kActivationBytes * tokens);
  return {linear_cost(model, tokens, tokens, read.layers, read.weight_bytes),
          attention_cost(model, read.layers * model.num_layers, tokens, pairs, kv_bytes)};
}

StepCost generation_cost(const ModelConfig& model, int context, int batch, int tokens,
                         const PassRead& read) {
  StepCost sum;
  for (int i = 0; i < tokens; ++i) sum = sum + decode_cost(model, context + i, batch, 1, read);
  return sum;
}

}  // namespace quantspec
