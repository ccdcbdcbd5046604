#include "model/weights.h"

#include <array>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace quantspec {

namespace {

constexpr std::size_t kAlignment = 64;  // of every vector and plane

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// One matrix of a layer: where it lies, what it is called and its shape.
struct MatrixSpec {
  Linear LayerWeights::*member;
  std::string_view name;
  int outputs;
  int inputs;
  bool has_bias;
};

std::array<MatrixSpec, 7> layer_matrices(const ModelConfig& config) {
  const int hidden = config.hidden_size;
  const int intermediate = config.intermediate_size;
  const int q = config.num_heads * config.head_dim;
  const int kv = config.num_kv_heads * config.head_dim;
  return {{{&LayerWeights::q, "self_attn.q_proj", q, hidden, config.qkv_bias},
           {&LayerWeights::k, "self_attn.k_proj", kv, hidden, config.qkv_bias},
           {&LayerWeights::v, "self_attn.v_proj", kv, hidden, config.qkv_bias},
           {&LayerWeights::o, "self_attn.o_proj", hidden, q, config.output_bias},
           {&LayerWeights::gate, "mlp.gate_proj", intermediate, hidden, false},
           {&LayerWeights::up, "mlp.up_proj", intermediate, hidden, false},
           {&LayerWeights::down, "mlp.down_proj", hidden, intermediate, false}}};
}

struct NormSpec {
  Norm LayerWeights::*member;
  std::string_view name;
  int size;
};

std::vector<NormSpec> layer_norms(const ModelConfig& config) {
  std::vector<NormSpec> norms = {
      {&LayerWeights::input_norm, "input_layernorm", config.hidden_size},
      {&LayerWeights::post_norm, "post_attention_layernorm", config.hidden_size}};
  if (config.qk_norm) {
    norms.push_back({&LayerWeights::q_norm, "self_attn.q_norm", config.head_dim});
    norms.push_back({&LayerWeights::k_norm, "self_attn.k_norm", config.head_dim});
  }
  return norms;
}

// Bytes of all norms and biases as fp32.
std::size_t vector_bytes(const ModelConfig& config) {
  const auto bytes_of = [](int size) { return aligned(sizeof(float) * size); };
  std::size_t layer = 0;
  for (const NormSpec& norm : layer_norms(config)) layer += bytes_of(norm.size);
  for (const MatrixSpec& matrix : layer_matrices(config)) {
    if (matrix.has_bias) layer += bytes_of(matrix.outputs);
  }
  return layer * config.num_layers + bytes_of(config.hidden_size);
}

// The planes of one matrix as `read` needs them, each aligned.
Backend::PlaneBytes plane_bytes(const Backend& backend, int rows, int cols, WeightRead read) {
  const auto bytes = backend.plane_bytes(rows, cols);
  return {read == WeightRead::kFull ? 0 : aligned(bytes.upper),
          read == WeightRead::kBoth ? aligned(bytes.lower) : 0};
}

}  // namespace

// Reads the checkpoint's tensors by the names that transformers gives them.
class Weights::Loader {
 public:
  Loader(const ModelConfig& config, Weights& weights)
      : config_(config), weights_(weights), next_(weights.vectors_.as<float>()) {}

  void load() {
    weights_.embedding_ =
        matrix("model.embed_tokens.weight", config_.vocab_size, config_.hidden_size);
    weights_.head_.full = config_.tied_head
                              ? weights_.embedding_
                              : matrix("lm_head.weight", config_.vocab_size, config_.hidden_size);
    weights_.final_norm_ = norm("model.norm.weight", config_.hidden_size);
    weights_.layers_.resize(config_.num_layers);
    for (int i = 0; i < config_.num_layers; ++i) load_layer(i);
  }

 private:
  void load_layer(int index) {
    LayerWeights& layer = weights_.layers_[index];
    layer.q_norm = layer.k_norm = {nullptr, config_.norm_epsilon};
    const auto name = [&](std::string_view part, std::string_view kind) {
      return fmt::format("model.layers.{}.{}.{}", index, part, kind);
    };
    for (const NormSpec& spec : layer_norms(config_)) {
      layer.*spec.member = norm(name(spec.name, "weight"), spec.size);
    }
    for (const MatrixSpec& spec : layer_matrices(config_)) {
      Linear& linear = layer.*spec.member;
      linear.full = matrix(name(spec.name, "weight"), spec.outputs, spec.inputs);
      if (spec.has_bias) linear.bias = vector(name(spec.name, "bias"), spec.outputs);
    }
  }

  TensorView matrix(const std::string& name, int rows, int cols) const {
    return weights_.checkpoint_.tensor(name, rows, cols);
  }
  Norm norm(const std::string& name, int size) {
    return {vector(name, size), config_.norm_epsilon};
  }
  const float* vector(const std::string& name, int size) {
    const TensorView tensor = matrix(name, 1, size);
    float* result = next_;
    for (int i = 0; i < size; ++i) result[i] = load_f32(tensor.data, tensor.dtype, i);
    next_ += aligned(sizeof(float) * size) / sizeof(float);
    return result;
  }

  const ModelConfig& config_;
  Weights& weights_;
  float* next_;
};

Weights::Weights(const ModelConfig& config, Checkpoint checkpoint, Backend& backend)
    : checkpoint_(std::move(checkpoint)), vectors_(backend.allocate(vector_bytes(config))) {
  Loader(config, *this).load();
}

void Weights::make_draft_planes(Backend& backend, WeightRead read,
                                const std::function<void(int, int)>& progress) {
  std::vector<Linear*> linears;
  for (LayerWeights& layer : layers_) {
    for (Linear* linear :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      linears.push_back(linear);
    }
  }
  linears.push_back(&head_);

  std::size_t total = 0;
  for (const Linear* linear : linears) {
    const auto bytes = plane_bytes(backend, linear->outputs(), linear->inputs(), read);
    total += bytes.upper + bytes.lower;
  }
  Buffer planes = backend.allocate(total);
  std::byte* next = planes.data();
  std::vector<std::pair<const std::byte*, const std::byte*>> made;  // upper, lower
  for (const Linear* linear : linears) {
    const auto bytes = plane_bytes(backend, linear->outputs(), linear->inputs(), read);
    std::byte* upper = bytes.upper > 0 ? next : nullptr;
    std::byte* lower = bytes.lower > 0 ? next + bytes.upper : nullptr;
    next += bytes.upper + bytes.lower;
    if (upper != nullptr) backend.make_planes(linear->full, upper, lower);
    made.emplace_back(upper, lower);
    if (progress) progress(static_cast<int>(made.size()), static_cast<int>(linears.size()));
  }
  for (std::size_t i = 0; i < linears.size(); ++i) {
    std::tie(linears[i]->upper, linears[i]->lower) = made[i];
  }
  planes_ = std::move(planes);
}

std::size_t Weights::draft_bytes_for(const ModelConfig& config, const Backend& backend,
                                     WeightRead read) {
  const auto bytes_of = [&](int rows, int cols) {
    const auto bytes = plane_bytes(backend, rows, cols, read);
    return bytes.upper + bytes.lower;
  };
  std::size_t layer = 0;
  for (const MatrixSpec& matrix : layer_matrices(config)) {
    layer += bytes_of(matrix.outputs, matrix.inputs);
  }
  return layer * config.num_layers + bytes_of(config.vocab_size, config.hidden_size);
}

}  // namespace quantspec
