// What GGUF says of a model, in the words of a config.json, which parse_config_fields() checks.
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/shown.h"
#include "model/config_fields.h"
#include "model/gguf_source.h"

namespace quantspec {

namespace {

constexpr std::array kArchitectures = {"llama", "qwen2", "qwen3"};

// What stands for a key of config.json. A dot in front stands for the name of the architecture.
constexpr std::pair<std::string_view, std::string_view> kKeys[] = {
    {"model_type", "general.architecture"},
    {"num_hidden_layers", ".block_count"},
    {"hidden_size", ".embedding_length"},
    {"intermediate_size", ".feed_forward_length"},
    {"max_position_embeddings", ".context_length"},
    {"num_attention_heads", ".attention.head_count"},
    {"num_key_value_heads", ".attention.head_count_kv"},
    {"head_dim", ".attention.key_length"},
    {"sliding_window", ".attention.sliding_window"},
    {"rms_norm_eps", ".attention.layer_norm_rms_epsilon"},
    {"vocab_size", "the number of rows of token_embd.weight"},
    {"rope_theta", ".rope.freq_base"},
    {"rope_scaling: rope_type", ".rope.scaling.type"},
    {"rope_scaling: factor", ".rope.scaling.factor"},
    {"rope_scaling: original_max_position_embeddings", ".rope.scaling.original_context_length"},
    {"rope_scaling: beta_fast", ".rope.scaling.yarn_beta_fast"},
    {"rope_scaling: beta_slow", ".rope.scaling.yarn_beta_slow"},
    {"rope_scaling: attention_factor", ".rope.scaling.attn_factor"},
    {"rope_scaling: short_factor", "rope_freqs.weight"},
    {"rope_scaling: long_factor", "rope_freqs.weight"}};

class Translator {
 public:
  explicit Translator(const Gguf& file)
      : file_(file), data_(file.metadata()), arch_(architecture()) {}

  Json config() {
    refuse_missing_features();
    json_ = {{"model_type", arch_}};
    for (const char* here :
         {"num_hidden_layers", "hidden_size", "intermediate_size", "max_position_embeddings",
          "num_attention_heads", "num_key_value_heads", "head_dim", "sliding_window"}) {
      if (const auto value = data_.integer(gguf_key(file_, here))) json_[here] = *value;
    }
    const auto epsilon = data_.real(gguf_key(file_, "rms_norm_eps"));
    if (!epsilon) {
      fail(ErrorKind::kCorruptFile, "{} is missing", where("attention.layer_norm_rms_epsilon"));
    }
    json_["rms_norm_eps"] = *epsilon;
    if (!json_.contains("head_dim")) json_["head_dim"] = head_dim();
    json_["use_sliding_window"] = json_.contains("sliding_window");
    if (json_.contains("sliding_window")) json_["max_window_layers"] = 0;
    json_["vocab_size"] = vocab_size();
    json_["tie_word_embeddings"] = !file_.has("output.weight");
    json_["attention_bias"] = file_.has("blk.0.attn_output.bias");
    rope();
    return json_;
  }

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", arch_, name); }
  std::string where(std::string_view name) const {
    return fmt::format("{}: {}", file_.path().string(), key(name));
  }

  std::string architecture() const {
    const auto name = data_.text("general.architecture");
    if (!name) {
      fail(ErrorKind::kCorruptFile, "{}: general.architecture is missing", file_.path().string());
    }
    for (const std::string_view known : kArchitectures) {
      if (*name == known) return std::string(known);
    }
    fail(ErrorKind::kUnsupportedModel,
         "{}: the architecture {} is not supported; supported: llama, qwen2, qwen3",
         file_.path().string(), shown(*name));
  }

  void refuse_missing_features() const {
    if (data_.integer(key("expert_count")).value_or(0) > 0) {
      fail(ErrorKind::kUnsupportedModel, "{}: mixtures of experts are not supported",
           where("expert_count"));
    }
    for (const char* name : {"attn_logit_softcapping", "final_logit_softcapping"}) {
      if (data_.real(key(name)).value_or(0) == 0) continue;
      fail(ErrorKind::kUnsupportedModel, "{}: supported are models without soft-capping",
           where(name));
    }
    refuse_other_biases();
    // Of every layer its own.
    for (const char* name :
         {"attention.head_count", "attention.head_count_kv", "feed_forward_length"}) {
      if (!data_.is_array(key(name))) continue;
      fail(ErrorKind::kUnsupportedModel, "{}: supported is one number, the same in all layers",
           where(name));
    }
  }

  // Of the projections of an architecture either all are read, or Q, K and V alone (qwen2).
  void refuse_other_biases() const {
    const bool of_output = file_.has("blk.0.attn_output.bias");
    const bool others = arch_ != "qwen2" && file_.has("blk.0.attn_q.bias") != of_output;
    for (const auto& [name, refused] : {std::pair{"blk.0.attn_q.bias", others},
                                        {"blk.0.attn_output.bias", arch_ == "qwen2"},
                                        {"blk.0.ffn_up.bias", true},
                                        {"blk.0.ffn_gate.bias", true},
                                        {"blk.0.ffn_down.bias", true}}) {
      if (!refused || !file_.has(name)) continue;
      fail(ErrorKind::kUnsupportedModel, "{}: such a bias is not supported in models of {}",
           file_.where(name), arch_);
    }
  }

  // Many files have no vocab_size; all have the embedding.
  std::int64_t vocab_size() const {
    const GgufTensor& embedding = file_.tensor("token_embd.weight");
    return embedding.shape.size() == 2 ? static_cast<std::int64_t>(embedding.shape[1]) : 0;
  }

  // Channels that a head has, where the file says so but by the width.
  std::int64_t head_dim() const {
    const auto hidden = data_.integer(key("embedding_length")).value_or(0);
    const auto heads = data_.integer(key("attention.head_count")).value_or(0);
    return data_.integer(key("attention.key_length"))
        .value_or(heads > 0 && hidden % heads == 0 ? hidden / heads : 0);
  }

  void require_whole_heads() const {
    const auto rotated = data_.integer(key("rope.dimension_count"));
    if (!rotated || *rotated == head_dim()) return;
    fail(ErrorKind::kUnsupportedModel,
         "{} = {}: supported is {}, the channels of a head, all of which are rotated",
         where("rope.dimension_count"), *rotated, head_dim());
  }

  void rope() {
    require_whole_heads();
    if (const auto theta = data_.real(gguf_key(file_, "rope_theta"))) json_["rope_theta"] = *theta;
    if (file_.has("rope_freqs.weight")) return rope_factors();
    const std::string_view type = data_.text(key("rope.scaling.type")).value_or("none");
    if (type == "none") return;
    if (type != "linear" && type != "yarn") {
      fail(ErrorKind::kUnsupportedModel, "{} = {} is not supported; supported: none, linear, yarn",
           where("rope.scaling.type"), shown(type));
    }
    Json scaling = {{"rope_type", type}};
    set_real(scaling, "factor");
    if (const auto length = data_.integer(key("rope.scaling.original_context_length"))) {
      scaling["original_max_position_embeddings"] = *length;
    }
    if (type == "yarn") yarn(scaling);
    json_["rope_scaling"] = scaling;
  }

  void set_real(Json& scaling, const char* here) const {
    const auto value = data_.real(gguf_key(file_, fmt::format("rope_scaling: {}", here)));
    if (value) scaling[here] = *value;
  }

  void yarn(Json& scaling) const {
    set_real(scaling, "beta_fast");
    set_real(scaling, "beta_slow");
    // ggml multiplies what is given with the usual factor.
    const double factor = scaling.value("factor", 1.0);
    if (const auto given = data_.real(key("rope.scaling.attn_factor"))) {
      scaling["attention_factor"] = *given * (factor <= 1 ? 1 : 0.1 * std::log(factor) + 1);
    }
  }

  // Divisors of the frequencies, which the converter made of a llama3 scaling: the same at any
  // length.
  void rope_factors() {
    const GgufTensor& tensor = file_.tensor("rope_freqs.weight");
    if (tensor.type != GgmlType::kF32 || tensor.shape.size() != 1) {
      fail(ErrorKind::kCorruptFile, "{}: must be a list of F32", file_.where("rope_freqs.weight"));
    }
    Json factors = Json::array();
    for (std::size_t i = 0; i < tensor.shape[0]; ++i) {
      factors.push_back(load_f32(tensor.bytes.data(), DType::kF32, i));
    }
    json_["rope_scaling"] = {{"rope_type", "longrope"},
                             {"short_factor", factors},
                             {"long_factor", factors},
                             {"attention_factor", 1.0}};
  }

  const Gguf& file_;
  const GgufMetadata& data_;
  std::string arch_;
  Json json_;
};

}  // namespace

std::string gguf_key(const Gguf& file, std::string_view key) {
  for (const auto& [here, there] : kKeys) {
    if (key != here) continue;
    if (!there.starts_with('.')) return std::string(there);
    return fmt::format("{}{}", file.metadata().text("general.architecture").value_or(""), there);
  }
  return std::string(key);
}

ModelConfig gguf_config(const Gguf& file) {
  const Json json = Translator(file).config();
  return parse_config_fields(Fields(json, file.path().string(),
                                    [&](std::string_view key) { return gguf_key(file, key); }));
}

}  // namespace quantspec
