#include "model/weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <span>
#include <stdexcept>

#include "backend/backend.h"
#include "base/expect_error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/test_folder.h"
#include "model/safetensors.h"
#include "quant/encode_row.h"

namespace quantspec {
namespace {

std::filesystem::path model_dir(const std::string& name) {
  return std::filesystem::path(QUANTSPEC_TESTDATA) / "models" / name;
}

struct Loaded {
  explicit Loaded(const std::string& name)
      : config(load_config(model_dir(name))),
        backend(make_backend({.name = "reference", .num_threads = 1})),
        weights(config, std::make_unique<Checkpoint>(model_dir(name)), *backend) {}

  ModelConfig config;
  std::unique_ptr<Backend> backend;
  Weights weights;
};

std::vector<const Linear*> linears_of(const Weights& weights) {
  std::vector<const Linear*> linears;
  for (const LayerWeights& w : weights.layers()) {
    linears.insert(linears.end(), {&w.q, &w.k, &w.v, &w.o, &w.gate, &w.up, &w.down});
  }
  linears.push_back(&weights.head());
  return linears;
}

void expect_norm(const Norm& norm, const TensorView& tensor, float epsilon) {
  EXPECT_EQ(norm.epsilon, epsilon);
  for (int i = 0; i < tensor.cols; ++i) {
    EXPECT_EQ(norm.weight[i], load_f32(tensor.data, tensor.dtype, i)) << i;
  }
}

// Every checkpoint of tests/testdata/models loads: all families, biases, norms, dtypes, shards.
TEST(Weights, LoadsEveryTestModel) {
  int count = 0;
  for (const auto& folder : std::filesystem::directory_iterator(model_dir(""))) {
    SCOPED_TRACE(folder.path().string());
    const Loaded model(folder.path().filename());
    const ModelConfig& config = model.config;
    ASSERT_EQ(model.weights.layers().size(), static_cast<std::size_t>(config.num_layers));
    EXPECT_EQ(model.weights.embedding().rows, config.vocab_size);
    for (const LayerWeights& layer : model.weights.layers()) {
      EXPECT_EQ(layer.q.outputs(), config.num_heads * config.head_dim);
      EXPECT_EQ(layer.k.outputs(), config.num_kv_heads * config.head_dim);
      EXPECT_EQ(layer.down.inputs(), config.intermediate_size);
      EXPECT_EQ(layer.q.target.format.dtype, config.dtype);
      EXPECT_EQ(layer.v.bias != nullptr, config.qkv_bias);
      EXPECT_EQ(layer.o.bias != nullptr, config.output_bias);
      EXPECT_EQ(layer.q_norm.weight != nullptr, config.qk_norm);
      EXPECT_EQ(layer.k_norm.weight != nullptr, config.qk_norm);
    }
    EXPECT_EQ(model.weights.head().target.data == model.weights.embedding().data, config.tied_head);
    ++count;
  }
  EXPECT_GE(count, 8);
}

TEST(Weights, NormsAndBiasesAreThoseOfTheCheckpoint) {
  const Loaded qwen3("qwen3-qk-norm");
  const Checkpoint tensors(model_dir("qwen3-qk-norm"));
  const float epsilon = qwen3.config.norm_epsilon;
  const int hidden = qwen3.config.hidden_size;
  const int head_dim = qwen3.config.head_dim;
  const LayerWeights& layer = qwen3.weights.layers()[1];
  const auto tensor = [&](const char* name, int size) {
    return tensors.tensor(std::string("model.") + name + ".weight", 1, size);
  };
  expect_norm(layer.input_norm, tensor("layers.1.input_layernorm", hidden), epsilon);
  expect_norm(layer.post_norm, tensor("layers.1.post_attention_layernorm", hidden), epsilon);
  expect_norm(layer.q_norm, tensor("layers.1.self_attn.q_norm", head_dim), epsilon);
  expect_norm(layer.k_norm, tensor("layers.1.self_attn.k_norm", head_dim), epsilon);
  expect_norm(qwen3.weights.final_norm(), tensor("norm", hidden), epsilon);

  const Loaded qwen2("qwen2-bias");
  const Linear& k = qwen2.weights.layers()[0].k;
  const TensorView bias = Checkpoint(model_dir("qwen2-bias"))
                              .tensor("model.layers.0.self_attn.k_proj.bias", 1, k.outputs());
  EXPECT_EQ(bias.cols, k.outputs());
  EXPECT_NE(k.bias[0], 0.0f) << "the test model has random biases";
}

TEST(Weights, MatricesAreMappedNotCopied) {
  Loaded model("llama3-gqa");
  const void* data = model.weights.layers()[0].q.target.data;
  const Weights moved = std::move(model.weights);
  EXPECT_EQ(moved.layers()[0].q.target.data, data);
  EXPECT_GT(moved.target_bytes(), 0u);
  EXPECT_EQ(moved.draft_bytes(), 0u);
  EXPECT_EQ(moved.layers()[0].q.draft.data, nullptr);
}

TEST(Weights, DraftPlanesAreThoseTheDraftReads) {
  Loaded model("qwen3-qk-norm");
  for (const WeightRead read : {WeightRead::kUpper, WeightRead::kBoth, WeightRead::kTarget}) {
    model.weights.make_draft_planes(*model.backend, read);
    EXPECT_EQ(model.weights.draft_bytes(),
              Weights::draft_bytes_for(model.config, model.weights.source(), *model.backend, read));
    for (const Linear* linear : linears_of(model.weights)) {
      EXPECT_EQ(linear->draft.data != nullptr, read != WeightRead::kTarget);
      EXPECT_EQ(linear->draft.lower != nullptr, read == WeightRead::kBoth);
    }
  }
}

TEST(Weights, DraftPlanesAreTheBackendsOwn) {
  Loaded model("llama2-mha");
  model.weights.make_draft_planes(*model.backend, WeightRead::kBoth);
  for (const Linear* linear : linears_of(model.weights)) {
    const WeightFormat format = model.backend->encoder().format;
    const auto bytes = model.backend->plane_bytes(linear->outputs(), linear->inputs(), format);
    EXPECT_EQ(linear->draft.format, format);
    std::vector<std::byte> upper(bytes.upper);
    std::vector<std::byte> lower(bytes.lower);
    model.backend->make_planes(linear->target, format, upper.data(), lower.data());
    EXPECT_EQ(std::memcmp(linear->draft.data, upper.data(), upper.size()), 0);
    EXPECT_EQ(std::memcmp(linear->draft.lower, lower.data(), lower.size()), 0);
  }
}

TEST(Weights, CancelledPlanesLeaveThoseBefore) {
  Loaded model("llama2-mha");
  model.weights.make_draft_planes(*model.backend, WeightRead::kUpper);
  const void* before = model.weights.head().draft.data;
  const std::size_t bytes = model.weights.draft_bytes();
  int calls = 0;
  const auto cancel = [&](int done, int total) {
    EXPECT_EQ(done, ++calls);
    EXPECT_EQ(total, 7 * model.config.num_layers + 1);
    if (done == 3) throw std::runtime_error("cancelled");
  };
  EXPECT_THROW(model.weights.make_draft_planes(*model.backend, WeightRead::kBoth, cancel),
               std::runtime_error);
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(model.weights.head().draft.data, before);
  EXPECT_EQ(model.weights.head().draft.lower, nullptr);
  EXPECT_EQ(model.weights.draft_bytes(), bytes);
}

TEST(Weights, RefusesACheckpointOfAnotherModel) {
  const auto backend = make_backend({.name = "reference", .num_threads = 1});
  ModelConfig config = load_config(model_dir("llama2-mha"));
  const auto load = [&] {
    Weights(config, std::make_unique<Checkpoint>(model_dir("llama2-mha")), *backend);
  };
  config.hidden_size += 16;
  expect_error(ErrorKind::kCorruptFile, {"model.safetensors", "model.embed_tokens.weight"}, load);
  config.hidden_size -= 16;
  config.qkv_bias = true;
  expect_error(ErrorKind::kCorruptFile, {"model.layers.0.self_attn.q_proj.bias", "missing"}, load);
  config.qkv_bias = false;
  config.num_layers = 3;
  expect_error(ErrorKind::kCorruptFile, {"model.layers.2.", "missing"}, load);
}

// A folder with the tensors of a test model, and others that are copies of some of them.
class OtherTensors {
 public:
  OtherTensors(const std::string& model, const std::map<std::string, std::string>& copies) {
    const std::string file = read_file(model_dir(model) / "model.safetensors");
    auto tensors = parse_safetensors(std::as_bytes(std::span(file)), "f");
    for (const auto& [name, original] : copies) tensors[name] = tensors.at(original);
    Json header = Json::object();
    std::string data;
    for (const auto& [name, entry] : tensors) {
      const std::size_t begin = data.size();
      data += file.substr(entry.begin, entry.end - entry.begin);
      header[name] = {
          {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
    folder_.write("model.safetensors", bytes + text + data);
  }

  Weights load(const ModelConfig& config) const {
    const auto backend = make_backend({.name = "reference", .num_threads = 1});
    return Weights(config, std::make_unique<Checkpoint>(folder_.path()), *backend);
  }
  std::filesystem::path folder() const { return folder_.path(); }

 private:
  TestFolder folder_;
};

TEST(Weights, TensorsThatNobodyReadsAreNamed) {
  const ModelConfig config = load_config(model_dir("llama2-mha"));
  const std::string norm = "model.norm.weight";
  const OtherTensors tensors("llama2-mha", {{"model.layers.0.self_attn.q_proj.bias", norm},
                                            {"model.layers.1.self_attn.rotary_emb.inv_freq", norm},
                                            {"vision.weight", norm}});
  EXPECT_EQ(tensors.load(config).unread_tensors(),
            (std::vector<std::string>{"model.layers.0.self_attn.q_proj.bias", "vision.weight"}));
  EXPECT_TRUE(Loaded("llama2-mha").weights.unread_tensors().empty());
}

TEST(Weights, MoreLayersThanTheConfigHasAreRefused) {
  ModelConfig config = load_config(model_dir("llama2-mha"));
  config.num_layers = 1;
  expect_error(ErrorKind::kCorruptFile,
               {"num_hidden_layers = 1", "\"model.layers.1.", "do not belong together"},
               [&] { OtherTensors("llama2-mha", {}).load(config); });
}

TEST(Weights, ALayersNumberMayBeTooLargeForAnInteger) {
  const std::string beyond = "model.layers.99999999999.mlp.up_proj.weight";
  expect_error(ErrorKind::kCorruptFile, {beyond, "do not belong together"}, [&] {
    OtherTensors("llama2-mha", {{beyond, "model.norm.weight"}})
        .load(load_config(model_dir("llama2-mha")));
  });
}

TEST(Weights, AHeadBesideATiedEmbeddingMustBeTheEmbedding) {
  ModelConfig config = load_config(model_dir("llama2-mha"));
  ASSERT_FALSE(config.tied_head);
  config.tied_head = true;
  expect_error(ErrorKind::kCorruptFile, {"tie_word_embeddings", "lm_head.weight"},
               [&] { OtherTensors("llama2-mha", {}).load(config); });
  const OtherTensors same("llama2-mha", {{"lm_head.weight", "model.embed_tokens.weight"}});
  EXPECT_TRUE(same.load(config).unread_tensors().empty());

  MappedFile::survive_losses();
  const Checkpoint checkpoint(same.folder());
  EXPECT_TRUE(unread_tensors(config, checkpoint).empty());
  const auto file = same.folder() / "model.safetensors";
  std::filesystem::resize_file(file, 4096);
  expect_error(ErrorKind::kCorruptFile, {"model.safetensors", "became shorter"},
               [&] { unread_tensors(config, checkpoint); });
}

}  // namespace
}  // namespace quantspec
