// What the tests of GGUF models share: tiny models of random weights, of any types.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/test_folder.h"
#include "gguf/blocks.h"
#include "gguf/test_support.h"

namespace quantspec::testing {

// What blocks stand for, as elements.
inline std::vector<float> decoded(GgmlType type, const std::string& blocks, int rows, int cols) {
  const auto bytes = std::as_bytes(std::span(blocks));
  const WeightFormat format = checked_format(type, bytes, "test");
  const std::size_t size = row_bytes(type, cols);
  RowBuffer row(format, cols);
  std::vector<float> values(static_cast<std::size_t>(rows) * cols);
  for (int r = 0; r < rows; ++r) {
    float* out = values.data() + static_cast<std::size_t>(r) * cols;
    read_row(type, bytes.subspan(r * size, size), cols, format, row.view());
    decode_row(format, cols, row.view(), /*upper_only=*/false, out);
  }
  return values;
}

// Where a block has its fp16 numbers; -1: it has none.
struct BlockNumbers {
  int scale = 0;
  int offset = -1;
  double offset_over_scale = 0;  // with which weights are about 0 in the mean
};
inline BlockNumbers numbers_of(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_1:
      return {0, 2, -7.5};
    case GgmlType::kQ5_1:
      return {0, 2, -15.5};
    case GgmlType::kQ2_K:
      return {80, 82, 1.5};
    case GgmlType::kQ3_K:
      return {108};
    case GgmlType::kQ4_K:
      return {0, 2, 7.5};
    case GgmlType::kQ5_K:
      return {0, 2, 15.5};
    case GgmlType::kQ6_K:
      return {208};
    default:
      return {};
  }
}

// Matrices of weights of about N(0, size^2 / cols): elements of that, or random codes with scales
// of either sign.
class RandomWeights {
 public:
  explicit RandomWeights(unsigned seed) : rng_(seed) {}

  std::vector<float> normal(int count, double sigma, double mean = 0) {
    std::normal_distribution<double> draw(mean, sigma);
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(draw(rng_));
    return values;
  }

  std::string matrix(GgmlType type, int rows, int cols, double size) {
    const double sigma = size / std::sqrt(cols);
    if (format_of(type, "test").dense()) return elements(type, normal(rows * cols, sigma));
    return blocks(type, rows * cols / block_size(type)->weights, sigma);
  }

 private:
  static std::string elements(GgmlType type, const std::vector<float>& values) {
    if (type == GgmlType::kF32) return bytes_of(values);
    std::vector<std::uint16_t> halves;
    for (const float value : values) {
      const auto bits = std::bit_cast<std::uint32_t>(value);
      halves.push_back(type == GgmlType::kF16 ? f32_to_f16(value)
                                              : static_cast<std::uint16_t>(bits >> 16));
    }
    return bytes_of(halves);
  }

  std::string blocks(GgmlType type, int count, double sigma) {
    const int size = block_size(type)->bytes;
    const double unit = sigma / weight_size(type);
    std::uniform_real_distribution<double> factor(0.5, 1.5);
    std::string bytes;
    for (int i = 0; i < count; ++i) {
      std::string block = random_bytes(size);
      const double sign = rng_() % 2 == 0 ? 1 : -1;
      set_scale(type, block, sign * factor(rng_) * unit);
      bytes += block;
    }
    return bytes;
  }

  std::string random_bytes(int count) {
    std::string bytes(count, '\0');
    for (char& byte : bytes) byte = static_cast<char>(rng_());
    return bytes;
  }

  static void set_scale(GgmlType type, std::string& block, double scale) {
    if (type == GgmlType::kMXFP4) {  // a power of two
      block[0] = static_cast<char>(128 + std::lround(std::log2(std::abs(scale))));
      return;
    }
    const BlockNumbers at = numbers_of(type);
    const auto set = [&](int offset, double value) {
      const std::uint16_t half = f32_to_f16(static_cast<float>(value));
      std::memcpy(block.data() + offset, &half, sizeof(half));
    };
    set(at.scale, scale);
    if (at.offset >= 0) set(at.offset, at.offset_over_scale * scale);
  }

  // The root mean square of weights of random codes, by a scale of 1.
  double weight_size(GgmlType type) {
    constexpr int kBlocks = 64;
    const int weights = block_size(type)->weights;
    std::string bytes;
    for (int i = 0; i < kBlocks; ++i) {
      std::string block = random_bytes(block_size(type)->bytes);
      set_scale(type, block, 1);
      bytes += block;
    }
    double sum = 0;
    for (const float value : decoded(type, bytes, kBlocks, weights)) sum += double{value} * value;
    return std::sqrt(sum / (kBlocks * weights));
  }

  std::mt19937 rng_;
};

// The type of each matrix, by what it does.
struct GgufTypes {
  GgmlType embedding, q, k, v, o, gate, up, down;

  static GgufTypes all(GgmlType t) { return {t, t, t, t, t, t, t, t}; }
};

struct GgufModel {
  std::string name;          // of a test
  std::string architecture;  // llama, qwen2 (biases of q, k and v), qwen3 (norms of q and k)
  GgufTypes types;
  bool tied = true;

  friend void PrintTo(const GgufModel& model, std::ostream* out) { *out << model.name; }
};

// As converters mix types in files of these names.
inline GgufModel q4_k_m_like() {
  using enum GgmlType;
  return {"Q4_K_M", "llama", {kQ6_K, kQ4_K, kQ4_K, kQ6_K, kQ4_K, kQ4_K, kQ4_K, kQ6_K}};
}
// Where rows are no whole blocks of 256, legacy types stand in.
inline GgufModel half_billion_like() {
  using enum GgmlType;
  return {"HalfBillion", "qwen2", {kQ8_0, kQ5_0, kQ5_0, kQ8_0, kQ5_0, kQ5_0, kQ4_K, kQ6_K}};
}
// With a head of its own, and norms of queries and keys.
inline GgufModel q8_0_qwen3() { return {"Q8_0", "qwen3", GgufTypes::all(GgmlType::kQ8_0), false}; }
// A model of every type, of the three architectures in turn, half of them with a head of their own.
inline std::vector<GgufModel> models_of_single_types() {
  using enum GgmlType;
  const GgmlType types[] = {kF32,  kF16,  kBF16, kQ4_0, kQ4_1, kQ5_0,   kQ5_1,   kQ8_0,
                            kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K, kIQ4_NL, kIQ4_XS, kMXFP4};
  const char* architectures[] = {"llama", "qwen2", "qwen3"};
  std::vector<GgufModel> models;
  for (const GgmlType type : types) {
    const std::size_t i = models.size();
    models.push_back({name_of(type), architectures[i % 3], GgufTypes::all(type), i % 2 == 0});
  }
  return models;
}
inline std::vector<GgufModel> all_gguf_models() {
  std::vector<GgufModel> models = models_of_single_types();
  models.push_back(q4_k_m_like());
  models.push_back(half_billion_like());
  return models;
}

inline constexpr int kGgufHidden = 256, kGgufMlp = 512, kGgufVocab = 320, kGgufLayers = 2;
inline constexpr int kGgufHeads = 4, kGgufKvHeads = 2, kGgufHeadDim = 64, kGgufContext = 1024;

// Of a model's file: keys, then tensors.
class GgufModelWriter {
 public:
  // as_elements: the same weights, but F32 all of them.
  explicit GgufModelWriter(const GgufModel& model, bool as_elements = false, unsigned seed = 1)
      : model_(model), as_elements_(as_elements), weights_(seed) {
    keys();
    matrix("token_embd", model.types.embedding, kGgufVocab, kGgufHidden);
    if (!model.tied) matrix("output", model.types.embedding, kGgufVocab, kGgufHidden);
    norm("output_norm", kGgufHidden);
    for (int i = 0; i < kGgufLayers; ++i) layer(fmt::format("blk.{}.", i));
  }
  std::string file() const { return writer_.file(); }

 private:
  void keys() {
    const auto add = [&](const char* key, auto value) {
      writer_.add(model_.architecture + "." + key, value);
    };
    writer_.add("general.architecture", model_.architecture);
    add("block_count", std::uint32_t{kGgufLayers});
    add("context_length", std::uint32_t{kGgufContext});
    add("embedding_length", std::uint32_t{kGgufHidden});
    add("feed_forward_length", std::uint32_t{kGgufMlp});
    add("attention.head_count", std::uint32_t{kGgufHeads});
    add("attention.head_count_kv", std::uint32_t{kGgufKvHeads});
    add("attention.key_length", std::uint32_t{kGgufHeadDim});
    add("attention.layer_norm_rms_epsilon", 1e-5f);
    add("rope.freq_base", 10000.0f);
  }
  void matrix(const std::string& name, GgmlType type, int rows, int cols, double size = 1) {
    std::string bytes = weights_.matrix(type, rows, cols, size);
    if (as_elements_ && !format_of(type, "test").dense()) {
      bytes = bytes_of(decoded(type, bytes, rows, cols));
      type = GgmlType::kF32;
    }
    writer_.tensor(name + ".weight", type, {cols, rows}, bytes);
  }
  void norm(const std::string& name, int size, double mean = 1) {
    vector(name + ".weight", weights_.normal(size, 0.1 * mean, mean));
  }
  void vector(const std::string& name, const std::vector<float>& values) {
    writer_.tensor(name, GgmlType::kF32, {std::ssize(values)}, bytes_of(values));
  }
  void layer(const std::string& prefix) {
    // Small, or attention of random weights falls to one token or another by what fp16 rounds.
    constexpr double kQuerySize = 0.25;
    constexpr int kQ = kGgufHeads * kGgufHeadDim, kKv = kGgufKvHeads * kGgufHeadDim;
    const GgufTypes& t = model_.types;
    norm(prefix + "attn_norm", kGgufHidden);
    norm(prefix + "ffn_norm", kGgufHidden);
    matrix(prefix + "attn_q", t.q, kQ, kGgufHidden, kQuerySize);
    matrix(prefix + "attn_k", t.k, kKv, kGgufHidden);
    matrix(prefix + "attn_v", t.v, kKv, kGgufHidden);
    matrix(prefix + "attn_output", t.o, kGgufHidden, kQ);
    matrix(prefix + "ffn_gate", t.gate, kGgufMlp, kGgufHidden);
    matrix(prefix + "ffn_up", t.up, kGgufMlp, kGgufHidden);
    matrix(prefix + "ffn_down", t.down, kGgufHidden, kGgufMlp);
    if (model_.architecture == "qwen2") {
      vector(prefix + "attn_q.bias", weights_.normal(kQ, 0.3 * kQuerySize));
      vector(prefix + "attn_k.bias", weights_.normal(kKv, 0.3));
      vector(prefix + "attn_v.bias", weights_.normal(kKv, 0.3));
    }
    if (model_.architecture == "qwen3") {
      norm(prefix + "attn_q_norm", kGgufHeadDim, kQuerySize);
      norm(prefix + "attn_k_norm", kGgufHeadDim);
    }
  }

  GgufModel model_;
  bool as_elements_;
  RandomWeights weights_;
  GgufWriter writer_;
};

// Such a model's file, for as long as this lives.
struct GgufModelFile {
  explicit GgufModelFile(const GgufModel& model, bool as_elements = false)
      : path(folder.write("model.gguf", GgufModelWriter(model, as_elements).file())) {}

  TestFolder folder;
  std::filesystem::path path;
};

}  // namespace quantspec::testing
