// Whether a checkpoint has what its config asks for, and what it has beyond: transformers would say
// so, too, or would compute something else than this project.

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/shown.h"
#include "model/tensor_names.h"

namespace quantspec {

namespace {

// What old exports keep of the rotation: transformers computes it, too.
bool carries_nothing(std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); }

struct TensorRead {
  std::string name;
  int rows;
  int cols;
};

std::vector<TensorRead> tensors_read(const ModelConfig& config) {
  std::vector<TensorRead> tensors = {{kEmbeddingName, config.vocab_size, config.hidden_size},
                                     {kHeadName, head_rows(config), config.hidden_size},
                                     {kFinalNormName, 1, config.hidden_size}};
  const auto norms = layer_norms(config);
  const auto matrices = layer_matrices(config);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (const NormSpec& norm : norms) {
      tensors.push_back({tensor_name(layer, norm.name, "weight"), 1, norm.size});
    }
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      const auto& [outputs, inputs, has_bias, in_segments] = matrices[i];
      const std::string_view name = kLayerMatrices[i].second;
      tensors.push_back({tensor_name(layer, name, "weight"), outputs, inputs});
      if (has_bias) tensors.push_back({tensor_name(layer, name, "bias"), 1, outputs});
    }
  }
  return tensors;
}

// The number of the layer that a tensor belongs to; -1: none; the largest int: that or more.
int layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "model.layers.";
  int layer = -1;
  if (!name.starts_with(kPrefix)) return layer;
  name.remove_prefix(kPrefix.size());
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  return error == std::errc::result_out_of_range ? std::numeric_limits<int>::max() : layer;
}

void require_tied_head(const ModelConfig& config, const WeightSource& source) {
  if (!config.tied_head || !source.has(kHeadName)) return;
  const auto tensor = [&](const char* name) {
    return source.tensor(name, config.vocab_size, config.hidden_size);
  };
  const TensorView head = tensor(kHeadName), embedding = tensor(kEmbeddingName);
  const std::size_t bytes = static_cast<std::size_t>(head.rows) * head.cols * size_of(head.dtype);
  if (head.dtype == embedding.dtype && std::memcmp(head.data, embedding.data, bytes) == 0) return;
  source.require_unchanged();  // what was cut off reads as zeros
  fail(ErrorKind::kCorruptFile,
       "{}: config.json ties the head to the embedding (tie_word_embeddings), and lm_head.weight "
       "is another matrix; \"tie_word_embeddings\": false reads it",
       source.path().string());
}

}  // namespace

std::vector<std::string> unread_tensors(const ModelConfig& config, const WeightSource& source) {
  const std::vector<TensorRead> read = tensors_read(config);
  std::set<std::string_view> names;
  for (const TensorRead& tensor : read) names.insert(tensor.name);
  std::vector<std::string> unread = source.names();
  std::erase_if(unread, [&](const std::string& name) {
    return names.contains(name) || carries_nothing(name);
  });
  const auto beyond = std::ranges::find_if(
      unread, [&](const std::string& name) { return layer_of(name) >= config.num_layers; });
  if (beyond != unread.end()) {
    fail(ErrorKind::kCorruptFile,
         "{}: {} = {}, and the checkpoint has {}; they do not belong together",
         source.path().string(), source.own_name("num_hidden_layers"), config.num_layers,
         shown(source.own_name(*beyond)));
  }
  require_tied_head(config, source);
  for (const auto& [name, rows, cols] : read) {
    const bool is_tied = config.tied_head && name == kHeadName;
    if (!is_tied) source.matrix(name, rows, cols);
  }
  for (std::string& name : unread) name = source.own_name(name);
  return unread;
}

}  // namespace quantspec
