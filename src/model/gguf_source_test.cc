// What GGUF's metadata say of a model, and its tensors by the names that transformers gives them.
#include "model/gguf_source.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <span>

#include "backend/backend.h"
#include "base/expect_error.h"
#include "base/test_folder.h"
#include "gguf/blocks.h"
#include "gguf/test_support.h"
#include "model/model_files.h"
#include "model/rope.h"
#include "model/weights.h"

namespace quantspec {
namespace {

constexpr int kHidden = 64, kMlp = 96, kVocab = 40;
constexpr int kHeads = 4, kKvHeads = 2, kHeadDim = 32;  // more than hidden / heads
constexpr int kQ = kHeads * kHeadDim, kKv = kKvHeads * kHeadDim;

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

void expect_refused(ErrorKind kind, std::vector<std::string> mentions, TinyFile& file) {
  mentions.push_back("tiny.gguf");
  expect_error(kind, mentions, [&] { file.load(); });
}
void unsupported(const std::vector<std::string>& mentions, TinyFile& file) {
  expect_refused(ErrorKind::kUnsupportedModel, mentions, file);
}
void corrupt(const std::vector<std::string>& mentions, TinyFile& file) {
  expect_refused(ErrorKind::kCorruptFile, mentions, file);
}

// --- configuration -------------------------------------------------------------------------------

TEST(GgufConfig, EveryKeyIsRead) {
  TinyFile file;
  const ModelConfig config = file.config();
  EXPECT_EQ(config.family, "llama");
  EXPECT_EQ(config.num_layers, 1);
  EXPECT_EQ(config.hidden_size, kHidden);
  EXPECT_EQ(config.intermediate_size, kMlp);
  EXPECT_EQ(config.vocab_size, kVocab);
  EXPECT_EQ(config.max_positions, 512);
  EXPECT_EQ(config.num_heads, kHeads);
  EXPECT_EQ(config.num_kv_heads, kKvHeads);
  EXPECT_EQ(config.head_dim, kHeadDim);
  EXPECT_EQ(config.norm_epsilon, 2e-5f);
  EXPECT_EQ(config.rope.theta, 5000);
  EXPECT_EQ(config.rope.type, RopeConfig::Type::kDefault);
  EXPECT_FALSE(config.tied_head || config.sliding_window || config.bos_token);
  EXPECT_TRUE(config.eos_tokens.empty());
}

TEST(GgufConfig, WhatAFileMayLeaveOut) {
  TinyFile file;
  file.drop("attention.head_count_kv").drop("attention.key_length").drop("rope.freq_base");
  const ModelConfig config = file.config();
  EXPECT_EQ(config.num_kv_heads, kHeads);
  EXPECT_EQ(config.head_dim, kHidden / kHeads);
  EXPECT_EQ(config.rope.theta, 10000);
}

TEST(GgufConfig, ArchitecturesHaveTheirBiasesAndNorms) {
  for (const std::string arch : {"llama", "qwen2", "qwen3"}) {
    TinyFile file(arch);
    const ModelConfig config = file.config();
    EXPECT_EQ(config.family, arch);
    EXPECT_EQ(config.qkv_bias, arch == "qwen2");
    EXPECT_EQ(config.output_bias, false);
    EXPECT_EQ(config.qk_norm, arch == "qwen3");
    EXPECT_TRUE(file.load().unread_tensors().empty()) << arch;
  }
  TinyFile biased;
  biased.biases().vector("blk.0.attn_output.bias", kHidden);
  EXPECT_TRUE(biased.config().qkv_bias && biased.config().output_bias);
  EXPECT_TRUE(biased.load().unread_tensors().empty());
}

TEST(GgufConfig, TokensThatBeginAndEndATextAreTheVocabularys) {
  TinyFile file;
  std::vector<std::string> tokens;
  for (int i = 0; i < kVocab; ++i) tokens.push_back("t" + std::to_string(i));
  file.set("tokenizer.ggml.tokens", tokens);
  file.set("tokenizer.ggml.bos_token_id", 1u).set("tokenizer.ggml.eos_token_id", 7u);
  EXPECT_EQ(file.config().bos_token, 1);
  EXPECT_EQ(file.config().eos_tokens, std::vector<TokenId>{7});
  EXPECT_FALSE(open_model(file.write())->has_chat_template());
  file.set("tokenizer.chat_template", "{{ messages }}");
  EXPECT_TRUE(open_model(file.write())->has_chat_template());
}

TEST(GgufConfig, ASlidingWindowIsOfEveryLayer) {
  for (const std::string arch : {"qwen2", "qwen3"}) {
    TinyFile file(arch);
    EXPECT_EQ(file.put("attention.sliding_window", 100u).config().sliding_window, 100) << arch;
    EXPECT_FALSE(file.put("attention.sliding_window", 512u).config().sliding_window) << arch;
  }
  // ggml has none in llama.
  EXPECT_FALSE(TinyFile().put("attention.sliding_window", 100u).config().sliding_window);
}

TEST(GgufConfig, TheTypesOfScaledRope) {
  TinyFile none, linear, yarn;
  EXPECT_EQ(none.put("rope.scaling.type", "none").config().rope.type, RopeConfig::Type::kDefault);
  linear.put("rope.scaling.type", "linear").put("rope.scaling.factor", 4.0f);
  EXPECT_EQ(linear.config().rope.type, RopeConfig::Type::kLinear);
  EXPECT_EQ(linear.config().rope.factor, 4);

  yarn.put("rope.scaling.type", "yarn").put("rope.scaling.factor", 4.0f);
  yarn.put("rope.scaling.original_context_length", 128u);
  RopeConfig rope = yarn.config().rope;
  EXPECT_EQ(rope.type, RopeConfig::Type::kYarn);
  EXPECT_EQ(rope.factor, 4);
  EXPECT_EQ(rope.original_max_positions, 128);
  EXPECT_EQ(rope.beta_fast, 32);
  EXPECT_EQ(rope.beta_slow, 1);
  EXPECT_DOUBLE_EQ(rope.attention_factor, 0.1 * std::log(4.0) + 1);

  yarn.put("rope.scaling.yarn_beta_fast", 16.0f).put("rope.scaling.yarn_beta_slow", 2.0f);
  yarn.put("rope.scaling.attn_factor", 0.5f);
  rope = yarn.config().rope;
  EXPECT_EQ(rope.beta_fast, 16);
  EXPECT_EQ(rope.beta_slow, 2);
  EXPECT_DOUBLE_EQ(rope.attention_factor, 0.5 * (0.1 * std::log(4.0) + 1));
}

TEST(GgufConfig, FactorsOfRopeDivideTheFrequenciesAtAnyLength) {
  std::vector<float> factors;
  for (int i = 0; i < kHeadDim / 2; ++i) factors.push_back(1 + 0.5f * static_cast<float>(i));
  TinyFile file;
  file.tensor("rope_freqs.weight", GgmlType::kF32, {kHeadDim / 2}, bytes_of(factors));
  const ModelConfig config = file.config();
  EXPECT_EQ(config.rope.type, RopeConfig::Type::kLongrope);
  EXPECT_EQ(config.rope.short_factor, factors);
  EXPECT_EQ(config.rope.long_factor, factors);
  EXPECT_EQ(config.rope.attention_factor, 1);
  EXPECT_TRUE(file.load().unread_tensors().empty());
  for (const int context : {16, 512}) {
    float cosines[kHeadDim / 2], sines[kHeadDim / 2];
    Rope(config, context).tables(3, 1, cosines, sines);
    for (int i = 0; i < kHeadDim / 2; ++i) {
      const double angle = 3 * std::pow(5000.0, -2.0 * i / kHeadDim) / factors[i];
      EXPECT_NEAR(cosines[i], std::cos(angle), 1e-6) << i;
      EXPECT_NEAR(sines[i], std::sin(angle), 1e-6) << i;
    }
  }
}

// --- refusals ------------------------------------------------------------------------------------

TEST(GgufConfig, WhatIsNotSupportedIsRefusedByItsKey) {
  unsupported({"the architecture \"gemma\"", "supported: llama, qwen2, qwen3"},
              TinyFile().set("general.architecture", "gemma"));
  unsupported({"llama.expert_count"}, TinyFile().put("expert_count", 8u));
  unsupported({"llama.attn_logit_softcapping"}, TinyFile().put("attn_logit_softcapping", 50.0f));
  unsupported({"qwen2.final_logit_softcapping"},
              TinyFile("qwen2").put("final_logit_softcapping", 30.0f));
  for (const std::string name :
       {"attention.head_count", "attention.head_count_kv", "feed_forward_length"}) {
    unsupported({"qwen3." + name, "the same in all layers"},
                TinyFile("qwen3").put(name, std::vector<std::uint32_t>{2, 4}));
  }
  unsupported({"llama.rope.dimension_count = 16", "32"},
              TinyFile().put("rope.dimension_count", 16u));
  unsupported({"llama.rope.scaling.type = \"longer\"", "supported: none, linear, yarn"},
              TinyFile().put("rope.scaling.type", "longer"));
  EXPECT_NO_THROW(TinyFile().put("expert_count", 0u).load());
  EXPECT_NO_THROW(TinyFile().put("final_logit_softcapping", 0.0f).load());
  EXPECT_NO_THROW(TinyFile().put("rope.dimension_count", 32u).load());
}

TEST(GgufConfig, KeysThatAreMissingOrMakeNoSenseAreNamed) {
  for (const std::string name : {"block_count", "embedding_length", "feed_forward_length",
                                 "context_length", "attention.head_count"}) {
    const std::string key = "llama." + name;
    corrupt({"tiny.gguf: " + key + " must be an integer from", "nothing"}, TinyFile().drop(name));
    corrupt({"tiny.gguf: " + key, "found 0"}, TinyFile().put(name, 0u));
    corrupt({key}, TinyFile().put(name, "many"));
  }
  corrupt({"general.architecture is missing"}, TinyFile().drop("general.architecture"));
  corrupt({"llama.attention.head_count_kv must be a divisor of llama.attention.head_count = 4",
           "found 3"},
          TinyFile().put("attention.head_count_kv", 3u));
  unsupported({"llama.attention.key_length = 24 is not supported"},
              TinyFile().put("attention.key_length", 24u));
  corrupt({"llama.attention.layer_norm_rms_epsilon must be"},
          TinyFile().put("attention.layer_norm_rms_epsilon", -1.0f));
  corrupt({"llama.rope.freq_base must be"}, TinyFile().put("rope.freq_base", 0.0f));
  corrupt({"llama.rope.scaling.factor must be"}, TinyFile().put("rope.scaling.type", "linear"));
  corrupt({"tiny.gguf: rope_freqs.weight must be a list of 16 positive numbers"},
          TinyFile().vector("rope_freqs.weight", 8));
}

TEST(GgufSource, TensorsThatAreMissingOrOfAnotherShapeAreRefused) {
  corrupt({"token_embd.weight"}, TinyFile().drop("token_embd.weight"));
  corrupt({"output_norm.weight", "missing"}, TinyFile().drop("output_norm.weight"));
  corrupt({"blk.0.ffn_up.weight", "missing"}, TinyFile().drop("blk.0.ffn_up.weight"));
  corrupt({"blk.0.attn_k.bias", "missing"}, TinyFile("qwen2").drop("blk.0.attn_k.bias"));
  corrupt({"blk.0.attn_q_norm.weight", "missing"},
          TinyFile("qwen3").drop("blk.0.attn_q_norm.weight"));
  corrupt({"blk.1.", "missing"}, TinyFile().put("block_count", 2u));
  corrupt({"blk.0.ffn_up.weight", "96 rows of 64"},
          TinyFile().matrix("blk.0.ffn_up.weight", kHidden, kMlp));
  corrupt({"blk.0.attn_norm.weight"}, TinyFile().vector("blk.0.attn_norm.weight", 2 * kHidden));
  corrupt({"blk.0.attn_q.weight"}, TinyFile().matrix("blk.0.attn_q.weight", 30, kHidden));
  corrupt({"blk.0.attn_q.weight"},
          TinyFile().tensor("blk.0.attn_q.weight", GgmlType::kF32, {kHidden, kQ / 2, 2},
                            bytes_of(TinyFile::numbers(kHidden * kQ))));
  corrupt({"output.weight"}, TinyFile().matrix("output.weight", kVocab + 1, kHidden));
  corrupt({"rope_freqs.weight", "F32"},
          TinyFile().tensor("rope_freqs.weight", GgmlType::kF16, {16}, std::string(32, '\0')));
}

TEST(GgufSource, CodedNormsAndBiasesAndUnknownFormatsAreRefused) {
  const std::string coded(34 * 4, '\1');
  unsupported({"blk.0.ffn_norm.weight", "Q8_0", "F32, F16 or BF16"},
              TinyFile().tensor("blk.0.ffn_norm.weight", GgmlType::kQ8_0, {kHidden},
                                coded.substr(0, 34 * 2)));
  unsupported({"blk.0.attn_q.bias", "Q8_0", "F32, F16 or BF16"},
              TinyFile("qwen2").tensor("blk.0.attn_q.bias", GgmlType::kQ8_0, {kQ}, coded));
  unsupported({"blk.0.ffn_down.weight", "I16"},
              TinyFile().tensor("blk.0.ffn_down.weight", static_cast<GgmlType>(25), {kMlp, kHidden},
                                std::string(2 * kMlp * kHidden, '\0')));
}

TEST(GgufSource, MoreLayersThanTheMetadataSayAreRefused) {
  TinyFile file;
  file.vector("blk.1.attn_norm.weight", kHidden);
  corrupt({"llama.block_count = 1, and the checkpoint has \"blk.1.attn_norm.weight\""}, file);
}

// --- weights -------------------------------------------------------------------------------------

TEST(GgufSource, TensorsHaveTheNamesOfTransformers) {
  TinyFile file("qwen3");
  std::string names;
  for (const std::string& name : file.source()->names()) names += name + " ";
  EXPECT_EQ(names,
            "lm_head.weight model.embed_tokens.weight model.layers.0.input_layernorm.weight "
            "model.layers.0.mlp.down_proj.weight model.layers.0.mlp.gate_proj.weight "
            "model.layers.0.mlp.up_proj.weight model.layers.0.post_attention_layernorm.weight "
            "model.layers.0.self_attn.k_norm.weight model.layers.0.self_attn.k_proj.weight "
            "model.layers.0.self_attn.o_proj.weight model.layers.0.self_attn.q_norm.weight "
            "model.layers.0.self_attn.q_proj.weight model.layers.0.self_attn.v_proj.weight "
            "model.norm.weight ");
}

TEST(GgufSource, TensorsThatNobodyReadsAreNamed) {
  TinyFile file("qwen3");
  file.vector("blk.0.attn_sinks.weight", kHeads);
  file.vector("blk.x.attn_norm.weight", 1).vector("blk.0", 1).vector("vision", 1);
  EXPECT_EQ(file.load().unread_tensors(),
            (std::vector<std::string>{"blk.0", "blk.0.attn_sinks.weight", "blk.x.attn_norm.weight",
                                      "vision"}));
  TinyFile plain;
  plain.vector("blk.0.attn_q_norm.weight", kHeadDim);  // of qwen3 alone
  EXPECT_EQ(plain.load().unread_tensors(), std::vector<std::string>{"blk.0.attn_q_norm.weight"});
}

// A bias that is left out changes the text.
TEST(GgufConfig, BiasesThatAModelWouldNotReadAreRefused) {
  for (const char* arch : {"llama", "qwen3"}) {
    unsupported({"blk.0.attn_q.bias", arch}, TinyFile(arch).vector("blk.0.attn_q.bias", kQ));
    unsupported({"blk.0.ffn_up.bias", arch}, TinyFile(arch).vector("blk.0.ffn_up.bias", 8));
  }
  unsupported({"blk.0.attn_output.bias", "qwen2"},
              TinyFile("qwen2").vector("blk.0.attn_output.bias", kHidden));
}

TEST(GgufSource, AHeadIsTiedWhereThereIsNone) {
  TinyFile file;
  const Weights untied = file.load();
  EXPECT_NE(untied.head().target.data, untied.embedding().data);
  file.drop("output.weight");
  EXPECT_TRUE(file.config().tied_head);
  const Weights tied = file.load();
  EXPECT_EQ(tied.head().target.data, tied.embedding().data);
}

// Where a row of Q or K of an architecture llama lies: channels of pairs beside each other.
int row_in_file(int row) {
  const int head = row / kHeadDim, p = row % kHeadDim / (kHeadDim / 2);
  return head * kHeadDim + 2 * (row % (kHeadDim / 2)) + p;
}

// Every weight of a row is the row's number.
std::string numbered_rows(GgmlType type, int rows) {
  std::string bytes;
  for (int row = 0; row < rows; ++row) {
    const std::vector<float> numbers(kHidden, static_cast<float>(row));
    const std::string elements = bytes_of(numbers);
    if (type == GgmlType::kF32) bytes += elements;
    for (int c = 0; c < kHidden && type == GgmlType::kBF16; ++c) bytes += elements.substr(2, 2);
    for (int block = 0; block < kHidden / 32 && type == GgmlType::kQ8_0; ++block) {
      bytes += std::string("\0\x3c", 2) + std::string(32, static_cast<char>(row));
    }
  }
  return bytes;
}

std::vector<float> row_of(const SourceMatrix& source, int row) {
  std::vector<float> weights(kHidden);
  if (const auto* view = std::get_if<TensorView>(&source)) {
    for (int c = 0; c < kHidden; ++c) {
      weights[c] = load_f32(view->data, view->dtype, static_cast<std::size_t>(row) * kHidden + c);
    }
    return weights;
  }
  const auto& coded = std::get<CodedMatrix>(source);
  RowBuffer buffer(coded.format, kHidden);
  coded.read(row, buffer.view());
  decode_row(coded.format, kHidden, buffer.view(), /*upper_only=*/false, weights.data());
  return weights;
}

void expect_order(const std::string& arch, GgmlType type) {
  TinyFile file(arch);
  file.biases();
  if (std::string_view(arch) != "qwen2") file.vector("blk.0.attn_output.bias", kHidden);
  for (const auto& [there, here, rows] :
       {std::tuple{"attn_q", "q_proj", kQ}, {"attn_k", "k_proj", kKv}, {"attn_v", "v_proj", kKv}}) {
    file.tensor(fmt::format("blk.0.{}.weight", there), type, {kHidden, rows},
                numbered_rows(type, rows));
    const auto source = file.source();
    const std::string name = std::string("model.layers.0.self_attn.") + here;
    const SourceMatrix matrix = source->matrix(name + ".weight", rows, kHidden);
    const TensorView bias = source->tensor(name + ".bias", 1, rows);
    EXPECT_EQ(source->format_name(name + ".weight"), name_of(type));
    const bool moves = arch == "llama" && here != std::string("v_proj");
    for (int row = 0; row < rows; ++row) {
      const auto from = static_cast<float>(moves ? row_in_file(row) : row);
      EXPECT_EQ(row_of(matrix, row), std::vector<float>(kHidden, from)) << here << ", " << row;
      EXPECT_EQ(load_f32(bias.data, bias.dtype, row), from) << here << ", " << row;
    }
  }
}

TEST(GgufSource, RowsAndBiasesOfQAndKOfLlamaAloneAreMoved) {
  for (const GgmlType type : {GgmlType::kF32, GgmlType::kBF16, GgmlType::kQ8_0}) {
    for (const char* arch : {"llama", "qwen2", "qwen3"}) {
      SCOPED_TRACE(fmt::format("{} of {}", name_of(type), arch));
      expect_order(arch, type);
    }
  }
}

TEST(GgufSource, ReportsTheFile) {
  TinyFile file;
  const auto source = file.source();
  EXPECT_EQ(source->path().filename(), "tiny.gguf");
  EXPECT_EQ(source->bytes(), file.bytes().size());
  EXPECT_EQ(source->hash(), file.source()->hash());
  EXPECT_NE(source->hash(), TinyFile("qwen2").source()->hash());
  EXPECT_EQ(source->format_name("lm_head.weight"), "F32");
  EXPECT_EQ(source->format_name("other"), "none");
  EXPECT_TRUE(source->has("lm_head.weight"));
  EXPECT_FALSE(source->has("output.weight"));
}

TEST(GgufSource, AFileThatChangesMeanwhileIsNoticed) {
  MappedFile::survive_losses();
  TinyFile file;
  const auto path = file.write();
  const auto source = open_model(path)->weights();
  EXPECT_NO_THROW(source->require_unchanged());
  std::filesystem::resize_file(path, 4096);
  expect_error(ErrorKind::kCorruptFile, {"tiny.gguf"}, [&] { source->require_unchanged(); });
}

}  // namespace
}  // namespace quantspec
