#include "model/weights.h"

#include <array>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/fields.h"
#include "base/log.h"
#include "base/shown.h"
#include "model/draft_store.h"
#include "model/tensor_names.h"

namespace quantspec {

namespace {

constexpr std::size_t kAlignment = 64;  // of every vector and plane

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
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

// The planes of one matrix that are wanted, each aligned.
PlaneBytes plane_bytes(const WeightMemory& memory, int rows, int cols, bool has_upper,
                       bool has_lower, const WeightFormat& format) {
  const auto bytes = memory.plane_bytes(rows, cols, format);
  return {has_upper ? aligned(bytes.upper) : 0, has_lower ? aligned(bytes.lower) : 0};
}

}  // namespace

// Reads the checkpoint's tensors by the names that transformers gives them.
class Weights::Loader {
 public:
  Loader(const ModelConfig& config, Weights& weights, WeightMemory& memory)
      : config_(config), weights_(weights), memory_(memory) {
    vectors_.reserve(weights.vectors_.size() / sizeof(float));
  }

  void load() {
    weights_.embedding_ = matrix(kEmbeddingName, config_.vocab_size, config_.hidden_size);
    weights_.head_.target = config_.tied_head
                                ? weights_.embedding_
                                : matrix(kHeadName, config_.vocab_size, config_.hidden_size);
    weights_.final_norm_ = norm(kFinalNormName, config_.hidden_size);
    weights_.layers_.resize(config_.num_layers);
    for (int i = 0; i < config_.num_layers; ++i) load_layer(i);
    memory_.upload(weights_.vectors_.data(), vectors_.data(), vectors_.size() * sizeof(float));
  }

 private:
  void load_layer(int index) {
    LayerWeights& layer = weights_.layers_[index];
    layer.q_norm = layer.k_norm = {nullptr, config_.norm_epsilon};
    for (const NormSpec& spec : layer_norms(config_)) {
      layer.*spec.member = norm(tensor_name(index, spec.name, "weight"), spec.size);
    }
    const auto specs = layer_matrices(config_);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const auto& [member, name] = kLayerMatrices[i];
      const auto& [outputs, inputs, has_bias] = specs[i];
      Linear& linear = layer.*member;
      linear.target = matrix(tensor_name(index, name, "weight"), outputs, inputs);
      if (has_bias) linear.bias = vector(tensor_name(index, name, "bias"), outputs);
    }
  }

  Matrix matrix(const std::string& name, int rows, int cols) {
    const TensorView tensor = weights_.checkpoint_.tensor(name, rows, cols);
    Buffer memory = memory_.allocate(memory_.matrix_bytes(rows, cols, tensor.dtype));
    const Matrix placed = memory_.place_matrix(tensor, memory.data());
    if (memory.size() > 0) {
      weights_.matrices_.push_back(std::move(memory));
    } else {
      weights_.reads_checkpoint_ = true;
    }
    return placed;
  }
  Norm norm(const std::string& name, int size) {
    return {vector(name, size), config_.norm_epsilon};
  }
  const float* vector(const std::string& name, int size) {
    const TensorView tensor = weights_.checkpoint_.tensor(name, 1, size);
    const std::size_t first = vectors_.size();
    for (int i = 0; i < size; ++i) vectors_.push_back(load_f32(tensor.data, tensor.dtype, i));
    vectors_.resize(first + aligned(sizeof(float) * size) / sizeof(float));
    return weights_.vectors_.as<float>() + first;
  }

  const ModelConfig& config_;
  Weights& weights_;
  WeightMemory& memory_;
  std::vector<float> vectors_;  // what goes to Weights::vectors_
};

Weights::Weights(const ModelConfig& config, Checkpoint checkpoint, WeightMemory& memory)
    : checkpoint_(std::move(checkpoint)), vectors_(memory.allocate(vector_bytes(config))) {
  unread_tensors_ = quantspec::unread_tensors(config, checkpoint_);
  Loader(config, *this, memory).load();
}

void Weights::warn_of_unread() const {
  if (unread_tensors_.empty()) return;
  log_warning(
      fmt::format("{}: the checkpoint has {} tensor{} that this model does not use, such as {}",
                  checkpoint_.folder().string(), unread_tensors_.size(),
                  unread_tensors_.size() == 1 ? "" : "s", shown(unread_tensors_.front())));
}

void Weights::require_whole() const {
  if (reads_checkpoint_) checkpoint_.require_whole();
}

void Weights::require_unchanged() const {
  if (reads_checkpoint_) checkpoint_.require_unchanged();
}

std::vector<NamedLinear> Weights::matrices() const {
  std::vector<NamedLinear> matrices;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (const auto& [member, name] : kLayerMatrices) {
      matrices.push_back({tensor_name(static_cast<int>(i), name, "weight"), &(layers_[i].*member)});
    }
  }
  matrices.push_back({kHeadName, &head_});
  return matrices;
}

std::vector<Linear*> Weights::draft_linears() {
  std::vector<Linear*> linears;
  for (LayerWeights& layer : layers_) {
    for (const auto& [member, name] : kLayerMatrices) linears.push_back(&(layer.*member));
  }
  linears.push_back(&head_);
  return linears;
}

void Weights::replace_planes(WeightMemory& memory, const std::vector<PlaneSource>& sources,
                             const std::function<void(int, int)>& progress) {
  const std::vector<Linear*> linears = draft_linears();
  const auto bytes_of = [&](std::size_t i) {
    return plane_bytes(memory, linears[i]->outputs(), linears[i]->inputs(), sources[i].has_upper,
                       sources[i].has_lower, sources[i].format);
  };
  std::size_t total = 0;
  for (std::size_t i = 0; i < linears.size(); ++i) total += bytes_of(i).upper + bytes_of(i).lower;
  Buffer planes = memory.allocate(total);
  std::byte* next = planes.data();
  std::vector<std::pair<const std::byte*, const std::byte*>> made;  // upper, lower
  for (std::size_t i = 0; i < linears.size(); ++i) {
    const auto bytes = bytes_of(i);
    std::byte* upper = bytes.upper > 0 ? next : nullptr;
    std::byte* lower = bytes.lower > 0 ? next + bytes.upper : nullptr;
    next += bytes.upper + bytes.lower;
    if (upper != nullptr) sources[i].fill(upper, lower);
    made.emplace_back(upper, lower);
    if (progress) progress(static_cast<int>(made.size()), static_cast<int>(linears.size()));
  }
  for (std::size_t i = 0; i < linears.size(); ++i) {
    const auto [upper, lower] = made[i];
    linears[i]->draft = {sources[i].format, linears[i]->outputs(), linears[i]->inputs(), upper,
                         lower};
  }
  planes_ = std::move(planes);
}

void Weights::make_draft_planes(WeightMemory& memory, WeightRead read,
                                const std::function<void(int, int)>& progress) {
  std::vector<PlaneSource> sources;
  for (const Linear* linear : draft_linears()) {
    const auto fill = [&memory, linear](std::byte* upper, std::byte* lower) {
      memory.make_planes(linear->target, upper, lower);
    };
    sources.push_back(
        {read != WeightRead::kTarget, read == WeightRead::kBoth, sliced_format(), fill});
  }
  replace_planes(memory, sources, progress);
  planes_file_.clear();
}

void Weights::use_draft_store(WeightMemory& memory, const DraftStore& store,
                              const std::function<void(int, int)>& progress) {
  const std::string file = store.path().string();
  if (store.info().checkpoint != checkpoint_hash()) {
    checkpoint_.require_unchanged();
    fail(ErrorKind::kInvalidRequest,
         "{} {}: made for another checkpoint than this model's; make one for it with quantspec "
         "prepare",
         field::kDraftStore, file);
  }
  std::vector<PlaneSource> sources;
  for (const auto& [name, linear] : matrices()) {
    const StoredMatrix* matrix = store.find(name);
    if (matrix == nullptr || matrix->rows != linear->outputs() ||
        matrix->cols != linear->inputs()) {
      fail(ErrorKind::kInvalidRequest, "{} {}: has no {} of {} x {}, as this model needs",
           field::kDraftStore, file, name, linear->outputs(), linear->inputs());
    }
    const auto fill = [&memory, &store, matrix](std::byte* upper, std::byte* lower) {
      memory.import_planes(store.read(*matrix), upper, lower);
    };
    sources.push_back({true, matrix->has_lower, sliced_format(store.info().group), fill});
  }
  replace_planes(memory, sources, progress);
  store.require_unchanged();
  planes_file_ = file;
}

std::string Weights::draft_description() const {
  const auto bits = [](const Linear& linear) {
    return linear.draft.data == nullptr    ? "none"
           : linear.draft.lower == nullptr ? "4 bits"
                                           : "4 and 8 bits";
  };
  const std::string_view layers = bits(layers_[0].q), head = bits(head_);
  std::string text(layers);
  if (head != layers) text += fmt::format(", {} in the head", head);
  if (!planes_file_.empty()) text += fmt::format(", from {}", planes_file_);
  return text;
}

std::size_t Weights::draft_bytes_for(const ModelConfig& config, const WeightMemory& memory,
                                     WeightRead read) {
  const auto bytes_of = [&](int rows, int cols) {
    const auto bytes = plane_bytes(memory, rows, cols, read != WeightRead::kTarget,
                                   read == WeightRead::kBoth, sliced_format());
    return bytes.upper + bytes.lower;
  };
  std::size_t layer = 0;
  for (const MatrixSpec& matrix : layer_matrices(config)) {
    layer += bytes_of(matrix.outputs, matrix.inputs);
  }
  return layer * config.num_layers + bytes_of(config.vocab_size, config.hidden_size);
}

std::size_t Weights::draft_bytes_for(const DraftStore& store, const WeightMemory& memory) {
  std::size_t total = 0;
  for (const StoredMatrix& matrix : store.matrices()) {
    const auto bytes = plane_bytes(memory, matrix.rows, matrix.cols, true, matrix.has_lower,
                                   sliced_format(store.info().group));
    total += bytes.upper + bytes.lower;
  }
  return total;
}

WeightRead Weights::head_read() const {
  const bool only_here = head_.draft.lower != nullptr && layers_.front().q.draft.lower == nullptr;
  return only_here ? WeightRead::kBoth : WeightRead::kUpper;
}

}  // namespace quantspec
