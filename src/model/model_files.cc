#include "model/model_files.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "backend/weight_memory.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/files.h"
#include "gguf/gguf.h"
#include "model/chat_templates.h"
#include "model/coded_source.h"
#include "model/gguf_source.h"
#include "model/pass_bytes.h"
#include "model/safetensors.h"
#include "model/weight_source.h"
#include "quant/encode_row.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocabulary.h"

namespace quantspec {

namespace {

class FolderFiles final : public ModelFiles {
 public:
  explicit FolderFiles(const std::filesystem::path& folder) : folder_(folder) {}

  ModelConfig config() const override {
    std::call_once(asked_, [&] { config_ = load_config(folder_); });
    return config_;
  }
  std::unique_ptr<Tokenizer> tokenizer() const override { return load_tokenizer(folder_); }
  using ModelFiles::weights;
  std::unique_ptr<WeightSource> weights() const override {
    return std::make_unique<Checkpoint>(folder_);
  }
  WeightBytes weight_bytes(TargetWeights target, const WeightFormat& kept) const override {
    const bool coded = target == TargetWeights::k8Bits;
    return quantspec::weight_bytes(coded ? kept : dense_format(config().dtype), kept.group);
  }
  std::vector<NamedChatTemplate> chat_templates() const override {
    return folder_chat_templates(folder_);
  }

 private:
  std::filesystem::path folder_;
  mutable std::once_flag asked_;
  mutable ModelConfig config_{};
};

std::optional<TokenId> token_id(const GgufMetadata& data, std::string_view name) {
  const auto id = data.integer(fmt::format("tokenizer.ggml.{}_token_id", name));
  // -1 is how some converters say that there is none.
  if (!id || *id == -1) return std::nullopt;
  return static_cast<TokenId>(std::clamp<std::int64_t>(*id, -2, 1 << 30));
}

// Texts lie in the file.
Vocabulary vocabulary_of(const Gguf& file) {
  const GgufMetadata& data = file.metadata();
  const auto text = [&](std::string_view key) {
    return std::string(data.text(key).value_or(std::string_view()));
  };
  Vocabulary v;
  v.source = file.path().string();
  v.model = text("tokenizer.ggml.model");
  v.pre = text("tokenizer.ggml.pre");
  v.name = text("general.name");
  v.tokens = data.texts("tokenizer.ggml.tokens").value_or(std::vector<std::string_view>());
  v.scores = data.reals("tokenizer.ggml.scores").value_or(std::vector<float>());
  const auto types = data.integers("tokenizer.ggml.token_type");
  if (types) v.types.assign(types->begin(), types->end());
  v.merges = data.texts("tokenizer.ggml.merges").value_or(std::vector<std::string_view>());
  for (const auto& [member, name] : {std::pair{&Vocabulary::bos, "bos"},
                                     {&Vocabulary::eos, "eos"},
                                     {&Vocabulary::eot, "eot"},
                                     {&Vocabulary::eom, "eom"},
                                     {&Vocabulary::unknown, "unknown"},
                                     {&Vocabulary::padding, "padding"}}) {
    v.*member = token_id(data, name);
  }
  v.add_bos = data.flag("tokenizer.ggml.add_bos_token");
  v.add_eos = data.flag("tokenizer.ggml.add_eos_token");
  v.add_space_prefix = data.flag("tokenizer.ggml.add_space_prefix");
  v.remove_extra_whitespaces = data.flag("tokenizer.ggml.remove_extra_whitespaces");
  return v;
}

class GgufFiles final : public ModelFiles {
  // What f() reads. NOTE: a file that became shorter has zeros at its end, and f() complains of
  // them.
  template <typename F>
  auto read(const F& f) const {
    try {
      return f();
    } catch (const Error&) {
      file_->require_unchanged();
      throw;
    }
  }

 public:
  explicit GgufFiles(const std::filesystem::path& path)
      : file_(std::make_shared<Gguf>(path)), config_(gguf_config(*file_)) {
    const Vocabulary vocabulary = read([&] { return vocabulary_of(*file_); });
    config_.eos_tokens = end_of_generation(vocabulary);
    config_.bos_token = vocabulary.bos;
  }

  ModelConfig config() const override { return config_; }
  std::unique_ptr<Tokenizer> tokenizer() const override {
    return read([&] { return make_tokenizer(vocabulary_of(*file_)); });
  }
  using ModelFiles::weights;
  std::unique_ptr<WeightSource> weights() const override { return gguf_source(file_, config_); }
  WeightBytes weight_bytes(TargetWeights target, const WeightFormat& kept) const override {
    const auto source = encoded(target, RowEncoder{kept});
    return mean_weight_bytes(matrix_formats(config_, *source), kept.group);
  }
  std::vector<NamedChatTemplate> chat_templates() const override {
    return read([&] { return gguf_chat_templates(file_->metadata()); });
  }

 private:
  std::shared_ptr<const Gguf> file_;
  ModelConfig config_;
};

}  // namespace

std::unique_ptr<WeightSource> ModelFiles::weights(TargetWeights target,
                                                  const WeightMemory& memory) const {
  return encoded(target, memory.encoder());
}

std::unique_ptr<WeightSource> ModelFiles::encoded(TargetWeights target,
                                                  const RowEncoder& encoder) const {
  auto source = weights();
  if (target == TargetWeights::kCheckpoint) return source;
  const auto matrices = matrix_formats(config(), *source);
  const auto dense = [](const MatrixFormat& matrix) { return matrix.layout.dense(); };
  if (std::ranges::none_of(matrices, dense)) {
    fail(ErrorKind::kInvalidRequest,
         "{} 8: {} is in {}, which targets read as it is; bf16, fp16 and fp32 are put in 8 bits",
         field::kTargetWeights, source->path().string(), describe_formats(matrices));
  }
  return in_eight_bits(std::move(source), encoder);
}

std::unique_ptr<ModelFiles> open_model(const std::filesystem::path& path) {
  if (file_exists(path) && !is_folder(path)) return std::make_unique<GgufFiles>(path);
  if (!is_folder(path)) {
    fail(ErrorKind::kInvalidRequest,
         "{}: there is no such file or folder; a model is a GGUF file, or a Hugging Face folder "
         "with config.json and safetensors",
         path.string());
  }
  return std::make_unique<FolderFiles>(path);
}

}  // namespace quantspec
