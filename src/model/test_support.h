// For tests: the weights of a model of any shape, at random, as elements or in a format of codes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "model/tensor_names.h"
#include "model/weight_source.h"
#include "quant/test_support.h"

namespace quantspec {

// A small model of a family, with sums of so many inputs.
inline ModelConfig made_config(int heads, int kv_heads, int head_dim, int intermediate) {
  ModelConfig config{};
  config.family = "llama";
  config.num_layers = 1;
  config.hidden_size = 48;
  config.intermediate_size = intermediate;
  config.num_heads = heads;
  config.num_kv_heads = kv_heads;
  config.head_dim = head_dim;
  config.vocab_size = 96;
  config.max_positions = 512;
  config.norm_epsilon = 1e-5f;
  config.dtype = DType::kF32;
  return config;
}

// Copies share what was made.
class MadeSource final : public WeightSource {
 public:
  // Layers' matrices are of `format`, where it is dense so are embedding and head.
  MadeSource(const ModelConfig& config, const WeightFormat& format) {
    unsigned seed = 1;
    const DType dtype = format.dense() ? format.dtype : DType::kF32;
    elements(kEmbeddingName, dtype, config.vocab_size, config.hidden_size, seed++);
    if (!config.tied_head) {
      elements(kHeadName, dtype, config.vocab_size, config.hidden_size, seed++);
    }
    elements(kFinalNormName, DType::kF32, 1, config.hidden_size, seed++);
    for (int layer = 0; layer < config.num_layers; ++layer) {
      for (const NormSpec& norm : layer_norms(config)) {
        elements(tensor_name(layer, norm.name, "weight"), DType::kF32, 1, norm.size, seed++);
      }
      const auto specs = layer_matrices(config);
      for (std::size_t i = 0; i < specs.size(); ++i) {
        const auto called = kLayerMatrices[i].second;
        const std::string name = tensor_name(layer, called, "weight");
        put(name, format, specs[i].outputs, specs[i].inputs, seed++);
        if (!specs[i].has_bias) continue;
        elements(tensor_name(layer, called, "bias"), DType::kF32, 1, specs[i].outputs, seed++);
      }
    }
  }

  // Another matrix in its place.
  void put(const std::string& name, const WeightFormat& format, int rows, int cols, unsigned seed) {
    coded_.erase(name);
    elements_.erase(name);
    if (format.dense()) return elements(name, format.dtype, rows, cols, seed);
    coded_[name] = std::make_shared<RandomCodes>(format, rows, cols, seed);
  }

  bool has(std::string_view name) const override {
    return elements_.contains(name) || coded_.contains(name);
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : elements_) names.push_back(name);
    for (const auto& [name, codes] : coded_) names.push_back(name);
    return names;
  }
  SourceMatrix matrix(std::string_view name, int rows, int cols) const override {
    const auto codes = coded_.find(name);
    if (codes == coded_.end()) return tensor(name, rows, cols);
    return coded(codes->second, 0, cols);
  }
  TensorView tensor(std::string_view name, int rows, int cols) const override {
    const auto found = elements_.find(name);
    check(found != elements_.end(), "a test asks for tensors that it made");
    const Elements& tensor = *found->second;
    check(tensor.bytes.size() == std::size_t(rows) * cols * size_of(tensor.dtype),
          "a test asks for tensors as it made them");
    return {tensor.bytes.data(), tensor.dtype, rows, cols};
  }
  std::string own_name(std::string_view name) const override { return std::string(name); }
  std::string format_name(std::string_view) const override { return "made"; }
  void forget(std::string_view) const override {}
  std::filesystem::path path() const override { return "made"; }
  std::size_t bytes() const override { return 0; }
  void require_whole() const override {}
  void require_unchanged() const override {}
  std::uint64_t hash() const override { return 0; }

 private:
  struct Elements {
    Elements(DType dtype, std::vector<std::byte> bytes) : dtype(dtype), bytes(std::move(bytes)) {}

    DType dtype;
    std::vector<std::byte> bytes;
  };

  void elements(const std::string& name, DType dtype, int rows, int cols, unsigned seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0, 0.1f);
    const std::size_t count = std::size_t(rows) * cols, size = size_of(dtype);
    std::vector<std::byte> bytes(count * size);
    for (std::size_t i = 0; i < count; ++i) {
      const float value = normal(rng);
      const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
      const std::uint16_t half =
          dtype == DType::kF16 ? f32_to_f16(value) : static_cast<std::uint16_t>(bits >> 16);
      const void* from = dtype == DType::kF32 ? static_cast<const void*>(&value) : &half;
      std::memcpy(&bytes[i * size], from, size);
    }
    elements_[name] = std::make_shared<const Elements>(dtype, std::move(bytes));
  }

  static CodedMatrix coded(const std::shared_ptr<RandomCodes>& codes, int first, int cols) {
    const WeightFormat format = codes->format;
    const auto read = [=](int row, const RowCodes& out) {
      const RowBuffer& from = codes->rows[row];
      const int group = first / format.group, scale = format.blocks(first);
      std::copy_n(&from.codes[first], cols, out.codes);
      std::copy_n(&from.scales[scale], format.blocks(cols), out.scales);
      if (!from.sub_scales.empty()) {
        std::copy_n(&from.sub_scales[group], format.groups(cols), out.sub_scales);
      }
      if (!from.sub_offsets.empty()) {
        std::copy_n(&from.sub_offsets[group], format.groups(cols), out.sub_offsets);
      }
    };
    const auto columns = [=](int from, int count) { return coded(codes, first + from, count); };
    return {format, static_cast<int>(codes->rows.size()), cols, read, columns};
  }

  std::map<std::string, std::shared_ptr<const Elements>, std::less<>> elements_;
  std::map<std::string, std::shared_ptr<RandomCodes>, std::less<>> coded_;
};

}  // namespace quantspec
