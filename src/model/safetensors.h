// Checkpoints in the safetensors format (https://github.com/huggingface/safetensors), mapped into
// memory: an 8-byte little-endian header length, a JSON header, then the tensors, row-major and
// without holes. Every byte of a header is checked before a tensor is handed out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "base/mapped_file.h"
#include "model/weight_source.h"

namespace quantspec {

// One tensor of one file, at bytes [begin, end) of the file. Its dtype may be one that this project
// cannot compute with: only asking for it is an error.
struct TensorEntry {
  std::string dtype;  // as written: "BF16", "F16", "F32", ...
  std::vector<std::uint64_t> shape;
  std::size_t begin;
  std::size_t end;
};
using TensorEntries = std::map<std::string, TensorEntry, std::less<>>;  // by name

// The tensors of one file, given its bytes. `where` (its path) is for messages. Throws
// kCorruptFile.
TensorEntries parse_safetensors(std::span<const std::byte> file, std::string_view where);

// The file of each tensor, by name, from a parsed model.safetensors.index.json. Throws
// kCorruptFile, also for a file name that leaves the folder.
std::map<std::string, std::string> parse_safetensors_index(const Json& index,
                                                           std::string_view where);

// The checkpoint of a model folder: model.safetensors, or else the shards that
// model.safetensors.index.json names. Movable; thread-safe after construction. Its tensors live as
// long as it does, also when it moves.
class Checkpoint final : public WeightSource {
 public:
  // Throws kInvalidRequest where the folder has no checkpoint, kCorruptFile where it is broken.
  explicit Checkpoint(const std::filesystem::path& model_dir);

  bool has(std::string_view name) const override { return tensors_.contains(name); }
  std::vector<std::string> names() const override;
  // The tensor of that name, whose shape must be [rows, cols], or [cols] when rows == 1. Throws
  // kCorruptFile where it is missing or of another shape, kUnsupportedModel for other dtypes than
  // BF16, F16 and F32.
  TensorView tensor(std::string_view name, int rows, int cols) const override;
  SourceMatrix matrix(std::string_view name, int rows, int cols) const override {
    return tensor(name, rows, cols);
  }
  std::string own_name(std::string_view name) const override { return std::string(name); }
  std::string format_name(std::string_view name) const override;

  void forget(std::string_view name) const override;
  std::filesystem::path path() const override { return model_dir_; }
  std::size_t bytes() const override;
  void require_whole() const override;
  void require_unchanged() const override;
  std::uint64_t hash() const override;

 private:
  struct Location {
    std::size_t file;  // index into files_
    TensorEntry entry;
  };
  void add_file(const std::filesystem::path& path);
  void add_shards(const std::filesystem::path& index);

  std::filesystem::path model_dir_;
  std::vector<MappedFile> files_;
  std::map<std::string, Location, std::less<>> tensors_;
};

}  // namespace quantspec
