#include "model/gguf_source.h"

#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "base/buffer.h"
#include "base/error.h"
#include "base/shown.h"
#include "gguf/blocks.h"
#include "model/tensor_names.h"

namespace quantspec {

namespace {

// What is called so in the file, and so in transformers.
struct Names {
  std::string_view there, here;
};
// Of a layer.
constexpr Names kParts[] = {
    {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
    {"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"}};
constexpr Names kOthers[] = {{"token_embd.weight", kEmbeddingName},
                             {"output.weight", kHeadName},
                             {"output_norm.weight", kFinalNormName},
                             {"rope_freqs.weight", "model.rotary_emb.inv_freq"}};  // in the config

// One of the two ways to name tensors: what the name of a layer's begins with, and the rest.
struct Naming {
  std::string_view layers;
  std::string_view Names::*name;
};
constexpr Naming kThere = {"blk.", &Names::there}, kHere = {"model.layers.", &Names::here};

// Names that are in neither list stay as they are.
std::string renamed(std::string_view name, const Naming& from, const Naming& to) {
  for (const Names& other : kOthers) {
    if (name == other.*from.name) return std::string(other.*to.name);
  }
  if (!name.starts_with(from.layers)) return std::string(name);
  int layer = 0;
  const char* first = name.data() + from.layers.size();
  const auto [end, error] = std::from_chars(first, name.data() + name.size(), layer);
  const std::string_view rest = name.substr(end - name.data());
  const std::size_t dot = rest.rfind('.');
  if (error != std::errc() || !rest.starts_with('.') || dot == 0) return std::string(name);
  for (const Names& part : kParts) {
    if (rest.substr(1, dot - 1) != part.*from.name) continue;
    return fmt::format("{}{}.{}{}", to.layers, layer, part.*to.name, rest.substr(dot));
  }
  return std::string(name);
}

// ggml rotates adjacent channels of an architecture llama, and the file's Q and K have the rows of
// a head in that order: (i, p) where transformers has (p, i), p < 2.
struct HeadRows {
  int head_dim = 0;  // 0: rows are in order

  int file_row(int row) const {
    if (head_dim == 0) return row;
    const int in_head = row % head_dim, half = head_dim / 2;
    return row - in_head + 2 * (in_head % half) + in_head / half;
  }
};

std::optional<DType> dtype_of(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return DType::kF32;
    case GgmlType::kF16:
      return DType::kF16;
    case GgmlType::kBF16:
      return DType::kBF16;
    default:
      return std::nullopt;
  }
}

// The rows of a matrix, as they lie in the file.
struct FileRows {
  std::span<const std::byte> blocks;
  std::size_t row_bytes;
  GgmlType type;
  WeightFormat format;
  HeadRows order;
  std::string where;
};

// Some columns, of whole blocks.
CodedMatrix coded(const FileRows& file, int rows, int first, int cols) {
  const std::size_t begin = row_bytes(file.type, first), bytes = row_bytes(file.type, cols);
  const auto read = [=](int row, const RowCodes& out) {
    const auto of_row =
        file.blocks.subspan(file.order.file_row(row) * file.row_bytes + begin, bytes);
    checked_format(file.type, of_row, file.where);
    read_row(file.type, of_row, cols, file.format, out);
  };
  const auto columns = [=](int from, int count) { return coded(file, rows, first + from, count); };
  return {file.format, rows, cols, read, columns};
}

class GgufSource final : public WeightSource {
 public:
  GgufSource(std::shared_ptr<const Gguf> file, const ModelConfig& config)
      : file_(std::move(file)), head_dim_(config.head_dim) {
    swaps_rows_ = file_->metadata().text("general.architecture") == "llama";
    for (const std::string& name : file_->names()) {
      names_.emplace(renamed(name, kThere, kHere), name);
    }
    if (swaps_rows_) reorder_elements();
  }

  bool has(std::string_view name) const override { return names_.contains(name); }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [here, there] : names_) names.push_back(here);
    return names;
  }

  SourceMatrix matrix(std::string_view name, int rows, int cols) const override {
    const auto& [there, tensor] = find(name, rows, cols);
    if (dtype_of(tensor.type)) return this->tensor(name, rows, cols);
    const std::string where = file_->where(there);
    // Every row's scales are checked as it is read, so that to ask for a matrix reads nothing. Only
    // the exponent of MXFP4 takes a look at all of them.
    const WeightFormat format = tensor.type == GgmlType::kMXFP4
                                    ? checked_format(tensor.type, tensor.bytes, where)
                                    : format_of(tensor.type, where);
    return coded(
        {tensor.bytes, row_bytes(tensor.type, cols), tensor.type, format, order_of(name), where},
        rows, 0, cols);
  }

  TensorView tensor(std::string_view name, int rows, int cols) const override {
    const auto& [there, tensor] = find(name, rows, cols);
    const auto dtype = dtype_of(tensor.type);
    if (!dtype) {
      fail(ErrorKind::kUnsupportedModel, "{}: is {}; it is read as F32, F16 or BF16 alone",
           file_->where(there), name_of(tensor.type));
    }
    const auto moved = reordered_.find(name);
    const void* data = moved == reordered_.end() ? tensor.bytes.data() : moved->second.data();
    return {data, *dtype, rows, cols};
  }

  std::string own_name(std::string_view name) const override {
    return gguf_key(*file_, renamed(name, kHere, kThere));
  }
  std::string format_name(std::string_view name) const override {
    const auto found = names_.find(name);
    return found == names_.end() ? "none" : name_of(file_->tensor(found->second).type);
  }

  void forget(std::string_view name) const override { file_->forget(names_.find(name)->second); }
  std::filesystem::path path() const override { return file_->path(); }
  std::size_t bytes() const override { return file_->bytes(); }
  void require_whole() const override { file_->require_whole(); }
  void require_unchanged() const override { file_->require_unchanged(); }
  std::uint64_t hash() const override { return file_->hash(); }

 private:
  HeadRows order_of(std::string_view name) const {
    const bool rotated = name.find(".self_attn.q_proj.") != name.npos ||
                         name.find(".self_attn.k_proj.") != name.npos;
    return {swaps_rows_ && rotated ? head_dim_ : 0};
  }

  // Elements are read where they lie, so those that lie in another order get a place of their own.
  void reorder_elements() {
    for (const auto& [here, there] : names_) {
      const GgufTensor& tensor = file_->tensor(there);
      const HeadRows order = order_of(here);
      if (order.head_dim == 0 || !dtype_of(tensor.type)) continue;
      const std::uint64_t rows = tensor.shape.back();
      const std::size_t row = tensor.bytes.size() / rows;
      if (rows % order.head_dim != 0) continue;  // find() refuses its shape
      Buffer& memory = reordered_.emplace(here, Buffer(tensor.bytes.size())).first->second;
      for (std::uint64_t r = 0; r < rows; ++r) {
        std::memcpy(memory.data() + r * row,
                    tensor.bytes.data() + order.file_row(static_cast<int>(r)) * row, row);
      }
    }
  }

  // What the file calls it, and what it has there.
  std::pair<std::string, const GgufTensor&> find(std::string_view name, int rows, int cols) const {
    std::string there = renamed(name, kHere, kThere);
    const GgufTensor& tensor = file_->tensor(there);
    const auto r = static_cast<std::uint64_t>(rows), c = static_cast<std::uint64_t>(cols);
    if (tensor.shape != std::vector{c, r} && !(rows == 1 && tensor.shape == std::vector{c})) {
      fail(ErrorKind::kCorruptFile, "{}: is not of {} rows of {} weights, as the metadata asks for",
           file_->where(there), rows, cols);
    }
    return {std::move(there), tensor};
  }

  std::shared_ptr<const Gguf> file_;
  int head_dim_;
  bool swaps_rows_ = false;
  std::map<std::string, std::string, std::less<>> names_;  // here -> in the file
  std::map<std::string, Buffer, std::less<>> reordered_;   // by the name here
};

}  // namespace

std::unique_ptr<WeightSource> gguf_source(std::shared_ptr<const Gguf> file,
                                          const ModelConfig& config) {
  return std::make_unique<GgufSource>(std::move(file), config);
}

}  // namespace quantspec
