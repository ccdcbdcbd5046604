// For tests of what is read of GGUF files: one of one layer, whose keys and tensors a test changes.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/expect_error.h"
#include "base/test_folder.h"
#include "gguf/test_support.h"
#include "model/model_files.h"
#include "model/weights.h"

namespace quantspec::tiny_gguf {

inline constexpr int kHidden = 64, kMlp = 96, kVocab = 40;
inline constexpr int kHeads = 4, kKvHeads = 2, kHeadDim = 32;  // more than hidden / heads
inline constexpr int kQ = kHeads * kHeadDim, kKv = kKvHeads * kHeadDim;

// A file of one layer, of which a test changes keys and tensors.
class TinyFile {
 public:
  explicit TinyFile(std::string arch = "llama") : arch_(std::move(arch)) {
    set("general.architecture", arch_);
    put("block_count", 1u).put("context_length", 512u);
    put("embedding_length", static_cast<unsigned>(kHidden));
    put("feed_forward_length", static_cast<unsigned>(kMlp));
    put("attention.head_count", static_cast<unsigned>(kHeads));
    put("attention.head_count_kv", static_cast<unsigned>(kKvHeads));
    put("attention.key_length", static_cast<unsigned>(kHeadDim));
    put("attention.layer_norm_rms_epsilon", 2e-5f).put("rope.freq_base", 5000.0f);
    matrix("token_embd.weight", kVocab, kHidden).matrix("output.weight", kVocab, kHidden);
    vector("output_norm.weight", kHidden);
    vector("blk.0.attn_norm.weight", kHidden).vector("blk.0.ffn_norm.weight", kHidden);
    matrix("blk.0.attn_q.weight", kQ, kHidden).matrix("blk.0.attn_k.weight", kKv, kHidden);
    matrix("blk.0.attn_v.weight", kKv, kHidden).matrix("blk.0.attn_output.weight", kHidden, kQ);
    matrix("blk.0.ffn_gate.weight", kMlp, kHidden).matrix("blk.0.ffn_up.weight", kMlp, kHidden);
    matrix("blk.0.ffn_down.weight", kHidden, kMlp);
    if (arch_ == "qwen2") biases();
    if (arch_ != "qwen3") return;
    vector("blk.0.attn_q_norm.weight", kHeadDim).vector("blk.0.attn_k_norm.weight", kHeadDim);
  }

  TinyFile& biases() {
    vector("blk.0.attn_q.bias", kQ).vector("blk.0.attn_k.bias", kKv);
    return vector("blk.0.attn_v.bias", kKv);
  }
  template <typename T>
  TinyFile& set(const std::string& key, T value) {
    keys_[key] = [=](GgufWriter& writer) { writer.add(key, value); };
    return *this;
  }
  template <typename T>  // of the architecture
  TinyFile& put(const std::string& name, T value) {
    return set(arch_ + "." + name, value);
  }
  TinyFile& drop(const std::string& name) {
    EXPECT_TRUE(keys_.erase(arch_ + "." + name) + keys_.erase(name) + tensors_.erase(name) > 0);
    return *this;
  }
  TinyFile& tensor(const std::string& name, GgmlType type, std::vector<std::int64_t> shape,
                   std::string bytes) {
    tensors_[name] = {type, std::move(shape), std::move(bytes)};
    return *this;
  }
  // Element c of row r is its own number.
  TinyFile& matrix(const std::string& name, int rows, int cols) {
    return tensor(name, GgmlType::kF32, {cols, rows}, bytes_of(numbers(rows * cols)));
  }
  TinyFile& vector(const std::string& name, int size) {
    return tensor(name, GgmlType::kF32, {size}, bytes_of(numbers(size)));
  }
  static std::vector<float> numbers(int count) {
    std::vector<float> numbers(count);
    for (int i = 0; i < count; ++i) numbers[i] = static_cast<float>(i);
    return numbers;
  }

  std::string bytes() const {
    GgufWriter writer;
    for (const auto& [key, add] : keys_) add(writer);
    for (const auto& [name, t] : tensors_) writer.tensor(name, t.type, t.shape, t.bytes);
    return writer.file();
  }
  const std::filesystem::path& write() {
    path_ = folder_.write("tiny.gguf", bytes());
    return path_;
  }
  ModelConfig config() { return open_model(write())->config(); }
  std::unique_ptr<WeightSource> source() { return open_model(write())->weights(); }
  // Loads all of it.
  Weights load() {
    const auto backend = make_backend({.name = "reference", .num_threads = 1});
    const auto files = open_model(write());
    return Weights(files->config(), files->weights(), *backend);
  }

 private:
  struct Tensor {
    GgmlType type;
    std::vector<std::int64_t> shape;
    std::string bytes;
  };
  std::string arch_;
  std::map<std::string, std::function<void(GgufWriter&)>> keys_;
  std::map<std::string, Tensor> tensors_;
  TestFolder folder_;
  std::filesystem::path path_;
};

inline void expect_refused(ErrorKind kind, std::vector<std::string> mentions, TinyFile& file) {
  mentions.push_back("tiny.gguf");
  expect_error(kind, mentions, [&] { file.load(); });
}
inline void unsupported(const std::vector<std::string>& mentions, TinyFile& file) {
  expect_refused(ErrorKind::kUnsupportedModel, mentions, file);
}
inline void corrupt(const std::vector<std::string>& mentions, TinyFile& file) {
  expect_refused(ErrorKind::kCorruptFile, mentions, file);
}

}  // namespace quantspec::tiny_gguf
