// What a checkpoint has beyond what its config asks for: transformers would say so, too, or would
// compute something else than this project.

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

std::set<std::string, std::less<>> tensors_read(const ModelConfig& config) {
  std::set<std::string, std::less<>> names = {kEmbeddingName, kFinalNormName, kHeadName};
  const auto norms = layer_norms(config);
  const auto matrices = layer_matrices(config);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (const NormSpec& norm : norms) names.insert(tensor_name(layer, norm.name, "weight"));
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      names.insert(tensor_name(layer, kLayerMatrices[i].second, "weight"));
      if (matrices[i].has_bias) names.insert(tensor_name(layer, kLayerMatrices[i].second, "bias"));
    }
  }
  return names;
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

}  // namespace

std::vector<std::string> unread_tensors(const ModelConfig& config, const Checkpoint& checkpoint) {
  const auto read = tensors_read(config);
  std::vector<std::string> unread = checkpoint.names();
  std::erase_if(unread, [&](const std::string& name) {
    return read.contains(name) || carries_nothing(name);
  });
  const auto beyond = std::ranges::find_if(
      unread, [&](const std::string& name) { return layer_of(name) >= config.num_layers; });
  if (beyond == unread.end()) return unread;
  fail(ErrorKind::kCorruptFile,
       "{}: config.json says num_hidden_layers = {}, and the checkpoint has {}; they do not belong "
       "together",
       checkpoint.folder().string(), config.num_layers, shown(*beyond));
}

void require_tied_head(const ModelConfig& config, const Checkpoint& checkpoint) {
  if (!config.tied_head || !checkpoint.has(kHeadName)) return;
  const auto tensor = [&](const char* name) {
    return checkpoint.tensor(name, config.vocab_size, config.hidden_size);
  };
  const TensorView head = tensor(kHeadName), embedding = tensor(kEmbeddingName);
  const std::size_t bytes = static_cast<std::size_t>(head.rows) * head.cols * size_of(head.dtype);
  if (head.dtype == embedding.dtype && std::memcmp(head.data, embedding.data, bytes) == 0) return;
  fail(ErrorKind::kCorruptFile,
       "{}: config.json ties the head to the embedding (tie_word_embeddings), and lm_head.weight "
       "is another matrix; \"tie_word_embeddings\": false reads it",
       checkpoint.folder().string());
}

}  // namespace quantspec
