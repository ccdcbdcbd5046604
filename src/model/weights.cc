#include "model/weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/fields.h"
#include "base/log.h"
#include "base/shown.h"
#include "model/draft_store.h"
#include "model/tensor_names.h"
#include "quant/encode_row.h"

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
  Loader(const ModelConfig& config, Weights& weights, WeightMemory& memory,
         const std::function<void(int, int)>& progress)
      : config_(config), weights_(weights), memory_(memory), progress_(progress) {
    vectors_.reserve(weights.vectors_.size() / sizeof(float));
  }

  void load() {
    weights_.embedding_ = matrix(kEmbeddingName, config_.vocab_size, config_.hidden_size);
    weights_.head_.target = config_.tied_head
                                ? weights_.embedding_
                                : matrix(kHeadName, head_rows(config_), config_.hidden_size);
    share(weights_.head_);
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
      const auto& [outputs, inputs, has_bias, in_segments] = specs[i];
      Linear& linear = layer.*member;
      linear.target = matrix(tensor_name(index, name, "weight"), outputs, inputs);
      share(linear);
      if (in_segments) linear.segments = num_segments(config_);
      if (has_bias) linear.bias = vector(tensor_name(index, name, "bias"), outputs);
    }
  }

  Matrix matrix(const std::string& name, int rows, int cols) {
    const SourceMatrix source = weights_.source_->matrix(name, rows, cols);
    const auto* tensor = std::get_if<TensorView>(&source);
    const Matrix placed =
        tensor != nullptr ? elements(*tensor) : planes(std::get<CodedMatrix>(source));
    // What was copied would be in memory twice.
    if (tensor == nullptr || placed.data != tensor->data) weights_.source_->forget(name);
    ++done_;
    if (progress_) progress_(done_, num_matrices());
    return placed;
  }
  Matrix elements(const TensorView& tensor) {
    Buffer gathered;
    TensorView whole = tensor;
    if (stride_of(tensor) != tensor.cols) {
      gathered = without_gaps(tensor);
      whole = {gathered.data(), tensor.dtype, tensor.rows, tensor.cols};
    }
    Buffer memory = memory_.allocate(memory_.matrix_bytes(tensor.rows, tensor.cols, tensor.dtype));
    const Matrix placed = memory_.place_matrix(whole, memory.data());
    if (memory.size() == 0 && gathered.size() > 0) memory = std::move(gathered);
    if (memory.size() > 0) {
      weights_.matrices_.push_back(std::move(memory));
    } else {
      weights_.reads_source_ = true;
    }
    return placed;
  }
  static Buffer without_gaps(const TensorView& tensor) {
    const std::size_t row = tensor.cols * size_of(tensor.dtype);
    const std::size_t stride = stride_of(tensor) * size_of(tensor.dtype);
    Buffer rows(row * tensor.rows);
    for (int r = 0; r < tensor.rows; ++r) {
      std::memcpy(rows.data() + r * row, static_cast<const std::byte*>(tensor.data) + r * stride,
                  row);
    }
    return rows;
  }
  // One matrix after another: what is not in its planes yet stays in the file.
  Matrix planes(const CodedMatrix& coded) {
    const PlaneBytes bytes = plane_bytes(memory_, coded.rows, coded.cols, true, true, coded.format);
    Buffer& memory = weights_.matrices_.emplace_back(memory_.allocate(bytes.upper + bytes.lower));
    std::byte* upper = memory.data();
    std::byte* lower = bytes.lower > 0 ? upper + bytes.upper : nullptr;
    memory_.import_planes(coded, upper, lower);
    return {coded.format, coded.rows, coded.cols, upper, lower};
  }
  static void share(Linear& linear) {
    if (!linear.target.format.dense()) linear.draft = linear.target;
  }
  int num_matrices() const {
    return config_.num_layers * static_cast<int>(kLayerMatrices.size()) +
           (config_.tied_head ? 1 : 2);
  }
  Norm norm(const std::string& name, int size) {
    return {vector(name, size), config_.norm_epsilon};
  }
  const float* vector(const std::string& name, int size) {
    const TensorView tensor = weights_.source_->tensor(name, 1, size);
    const std::size_t first = vectors_.size();
    for (int i = 0; i < size; ++i) vectors_.push_back(load_f32(tensor.data, tensor.dtype, i));
    vectors_.resize(first + aligned(sizeof(float) * size) / sizeof(float));
    return weights_.vectors_.as<float>() + first;
  }

  const ModelConfig& config_;
  Weights& weights_;
  WeightMemory& memory_;
  const std::function<void(int, int)>& progress_;
  int done_ = 0;
  std::vector<float> vectors_;  // what goes to Weights::vectors_
};

Weights::Weights(const ModelConfig& config, std::unique_ptr<WeightSource> source,
                 WeightMemory& memory, const std::function<void(int, int)>& progress)
    : source_(std::move(source)), vectors_(memory.allocate(vector_bytes(config))) {
  unread_tensors_ = quantspec::unread_tensors(config, *source_);
  target_bytes_ = target_bytes_for(config, *source_, memory);
  target_description_ = describe_formats(matrix_formats(config, *source_));
  Loader(config, *this, memory, progress).load();
}

void Weights::warn_of_unread() const {
  if (unread_tensors_.empty()) return;
  log_warning(
      fmt::format("{}: the checkpoint has {} tensor{} that this model does not use, such as {}",
                  source_->path().string(), unread_tensors_.size(),
                  unread_tensors_.size() == 1 ? "" : "s", shown(unread_tensors_.front())));
}

void Weights::require_whole() const {
  if (reads_source_) source_->require_whole();
}

void Weights::require_unchanged() const {
  if (reads_source_) source_->require_unchanged();
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
    if (!linears[i]->target.format.dense()) continue;
    const auto [upper, lower] = made[i];
    linears[i]->draft = {sources[i].format, linears[i]->outputs(), linears[i]->inputs(), upper,
                         lower};
  }
  planes_ = std::move(planes);
}

void Weights::make_draft_planes(WeightMemory& memory, WeightRead read,
                                const std::function<void(int, int)>& progress) {
  const WeightFormat format = memory.encoder().format;
  std::vector<PlaneSource> sources;
  for (const Linear* linear : draft_linears()) {
    const auto fill = [&memory, linear, format](std::byte* upper, std::byte* lower) {
      memory.make_planes(linear->target, format, upper, lower);
    };
    const bool wanted = linear->target.format.dense() && read != WeightRead::kTarget;
    sources.push_back({wanted, wanted && read == WeightRead::kBoth, format, fill});
  }
  replace_planes(memory, sources, progress);
  planes_file_.clear();
}

void Weights::use_draft_store(WeightMemory& memory, const DraftStore& store,
                              const std::function<void(int, int)>& progress) {
  const std::string file = store.path().string();
  const WeightFormat format = sliced_format(store.info().group);
  if (store.info().checkpoint != checkpoint_hash()) {
    source_->require_unchanged();
    fail(ErrorKind::kInvalidRequest,
         "{} {}: made for another checkpoint than this model's; make one for it with quantspec "
         "prepare",
         field::kDraftStore, file);
  }
  std::vector<PlaneSource> sources;
  for (const auto& [name, linear] : matrices()) {
    if (!linear->target.format.dense()) {
      fail(ErrorKind::kInvalidRequest,
           "{} {}: is for checkpoints of bf16, fp16 or fp32; {} has {} in {}, whose own planes "
           "drafts read",
           field::kDraftStore, file, source_->path().string(), source_->own_name(name),
           source_->format_name(name));
    }
    const StoredMatrix* matrix = store.find(name);
    if (matrix == nullptr || matrix->rows != linear->outputs() ||
        matrix->cols != linear->inputs()) {
      fail(ErrorKind::kInvalidRequest, "{} {}: has no {} of {} x {}, as this model needs",
           field::kDraftStore, file, name, linear->outputs(), linear->inputs());
    }
    const auto fill = [&memory, &store, matrix](std::byte* upper, std::byte* lower) {
      memory.import_planes(store.read(*matrix), upper, lower);
    };
    sources.push_back({true, matrix->has_lower, format, fill});
  }
  replace_planes(memory, sources, progress);
  store.require_unchanged();
  planes_file_ = file;
}

std::string Weights::draft_description() const {
  const auto bits = [](const Linear& linear) {
    if (!linear.target.format.dense()) return "the target's";
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

namespace {

// f(name, matrix of the source) for those that passes multiply by, the head last.
template <typename F>
void for_matrices(const ModelConfig& config, const WeightSource& source, const F& f) {
  const auto specs = layer_matrices(config);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const std::string name = tensor_name(layer, kLayerMatrices[i].second, "weight");
      f(name, source.matrix(name, specs[i].outputs, specs[i].inputs));
    }
  }
  const std::string head = config.tied_head ? kEmbeddingName : kHeadName;
  f(head, source.matrix(head, head_rows(config), config.hidden_size));
}
template <typename F>
std::size_t sum_of_matrices(const ModelConfig& config, const WeightSource& source,
                            const F& bytes_of) {
  std::size_t total = 0;
  for_matrices(config, source,
               [&](const std::string&, const SourceMatrix& matrix) { total += bytes_of(matrix); });
  return total;
}

}  // namespace

std::vector<MatrixFormat> matrix_formats(const ModelConfig& config, const WeightSource& source) {
  std::vector<MatrixFormat> formats;
  for_matrices(config, source, [&](const std::string& name, const SourceMatrix& matrix) {
    if (const auto* tensor = std::get_if<TensorView>(&matrix)) {
      formats.push_back({name, std::string(name_of(tensor->dtype)), dense_format(tensor->dtype),
                         static_cast<double>(tensor->rows) * tensor->cols});
      return;
    }
    const auto& coded = std::get<CodedMatrix>(matrix);
    const bool ours = is_sliced(coded.format);
    formats.push_back({name, ours ? "8 bits" : source.format_name(name), coded.format,
                       static_cast<double>(coded.rows) * coded.cols});
  });
  return formats;
}

std::string describe_formats(std::span<const MatrixFormat> matrices) {
  std::vector<std::pair<std::string, double>> formats;  // and how many weights are in it
  for (const MatrixFormat& matrix : matrices) {
    const auto is_it = [&](const auto& entry) { return entry.first == matrix.format; };
    const auto found = std::ranges::find_if(formats, is_it);
    auto& entry = found == formats.end() ? formats.emplace_back(matrix.format, 0.0) : *found;
    entry.second += matrix.weights;
  }
  std::ranges::sort(formats, [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [format, weights] : formats) {
    text += fmt::format("{}{}", text.empty() ? "" : " + ", format);
  }
  return text;
}

std::size_t Weights::target_bytes_for(const ModelConfig& config, const WeightSource& source,
                                      const WeightMemory& memory) {
  const auto bytes_of = [&](const SourceMatrix& matrix) {
    if (const auto* tensor = std::get_if<TensorView>(&matrix)) {
      return static_cast<std::size_t>(tensor->rows) * tensor->cols * size_of(tensor->dtype);
    }
    const auto& coded = std::get<CodedMatrix>(matrix);
    const auto bytes = plane_bytes(memory, coded.rows, coded.cols, true, true, coded.format);
    return bytes.upper + bytes.lower;
  };
  const std::size_t matrices = sum_of_matrices(config, source, bytes_of) + vector_bytes(config);
  if (config.tied_head) return matrices;
  return matrices + bytes_of(source.matrix(kEmbeddingName, config.vocab_size, config.hidden_size));
}

std::size_t Weights::draft_bytes_for(const ModelConfig& config, const WeightSource& source,
                                     const WeightMemory& memory, WeightRead read) {
  return sum_of_matrices(config, source, [&](const SourceMatrix& matrix) -> std::size_t {
    const auto* tensor = std::get_if<TensorView>(&matrix);
    if (tensor == nullptr) return 0;
    const auto bytes = plane_bytes(memory, tensor->rows, tensor->cols, read != WeightRead::kTarget,
                                   read == WeightRead::kBoth, memory.encoder().format);
    return bytes.upper + bytes.lower;
  });
}

std::size_t Weights::draft_bytes_for(const DraftStore& store, const WeightMemory& memory) {
  const WeightFormat format = sliced_format(store.info().group);
  std::size_t total = 0;
  for (const StoredMatrix& matrix : store.matrices()) {
    const auto bytes =
        plane_bytes(memory, matrix.rows, matrix.cols, true, matrix.has_lower, format);
    total += bytes.upper + bytes.lower;
  }
  return total;
}

WeightRead Weights::head_read() const {
  const bool only_here = head_.draft.lower != nullptr && layers_.front().q.draft.lower == nullptr;
  return only_here ? WeightRead::kBoth : WeightRead::kUpper;
}

}  // namespace quantspec
