// The tensors of a GGUF file, by the names that transformers gives them.
#include "model/gguf_source.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <span>

#include "gguf/blocks.h"
#include "model/gguf_test_support.h"
#include "tokenizer/tokenizer.h"

namespace quantspec {
namespace {

using namespace tiny_gguf;

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

TEST(GgufSource, AFileThatChangedIsNotSaidToBeWrong) {
  MappedFile::survive_losses();
  TinyFile file;
  const auto path = file.write();
  const auto files = open_model(path);
  const auto tokenizer = [&] { files->tokenizer(); };
  expect_error(ErrorKind::kUnsupportedModel, {"tiny.gguf"}, tokenizer);
  std::filesystem::resize_file(path, 4096);
  expect_error(ErrorKind::kCorruptFile, {"tiny.gguf", "while it was in use"}, tokenizer);
}

// --- refusals ------------------------------------------------------------------------------------

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

// What ranks read of a matrix that they share.
TEST(GgufSource, ColumnsOfCodesAreThoseOfTheWhole) {
  constexpr int kCols = 768, kFirst = 256, kCount = 512;
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  for (const GgmlType type :
       {GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kQ8_0,
        GgmlType::kQ2_K, GgmlType::kQ3_K, GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K,
        GgmlType::kIQ4_NL, GgmlType::kIQ4_XS, GgmlType::kMXFP4}) {
    std::string bytes(kHidden * row_bytes(type, kCols), '\0');
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 % 31);
    TinyFile file;
    file.tensor("blk.0.ffn_down.weight", type, {kCols, kHidden}, bytes);
    const auto source = file.source();
    const auto whole = std::get<CodedMatrix>(source->matrix(name, kHidden, kCols));
    const CodedMatrix part = whole.columns(kFirst, kCount);
    EXPECT_EQ(part.rows, kHidden);
    EXPECT_EQ(part.cols, kCount);
    for (int row = 0; row < kHidden; ++row) {
      const auto weights = [&](const CodedMatrix& matrix) {
        RowBuffer buffer(matrix.format, matrix.cols);
        matrix.read(row, buffer.view());
        std::vector<float> out(matrix.cols);
        decode_row(matrix.format, matrix.cols, buffer.view(), false, out.data());
        return out;
      };
      const std::vector<float> all = weights(whole);
      ASSERT_EQ(weights(part),
                std::vector<float>(all.begin() + kFirst, all.begin() + kFirst + kCount))
          << name_of(type) << ", row " << row;
    }
  }
}

TEST(GgufSource, MoreLayersThanTheMetadataSayAreRefused) {
  TinyFile file;
  file.vector("blk.1.attn_norm.weight", kHidden);
  corrupt({"llama.block_count = 1, and the checkpoint has \"blk.1.attn_norm.weight\""}, file);
}

}  // namespace
}  // namespace quantspec
