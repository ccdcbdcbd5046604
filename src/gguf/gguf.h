// GGUF files (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), versions 2 and 3, mapped
// into memory: metadata, then where each tensor lies, then the tensors, each at a multiple of
// general.alignment. Every number of a header is checked before a tensor is handed out. What the
// bytes of a tensor mean: gguf/blocks.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "gguf/metadata.h"
#include "gguf/types.h"

namespace quantspec {

struct GgufTensor {
  GgmlType type;                     // it may be one that is not decoded here, of known size
  std::vector<std::uint64_t> shape;  // 1 to 4 of [inputs of a row, rows, ...], each below 2^31
  std::span<const std::byte> bytes;  // rows, one after another, each of whole blocks
};
using GgufTensors = std::map<std::string, GgufTensor, std::less<>>;  // by name

// One file.
struct GgufPart {
  GgufMetadata metadata;
  GgufTensors tensors;
};

// What a file says, given its bytes, in which texts and tensors lie. `where` (its path) is for
// messages. Throws kCorruptFile; kUnsupportedModel for other versions, for big-endian files and for
// tensors of a type of unknown size.
GgufPart parse_gguf(std::span<const std::byte> file, std::string_view where);

// In all parts together: twice what the largest models have.
inline constexpr std::size_t kMaxTensors = 1 << 18;

// A model of one file, or of parts x-00001-of-000NN.gguf, of which the first is given. Movable;
// thread-safe after construction. Texts and tensors live as long as it does, also when it moves.
class Gguf {
 public:
  // Throws as parse_gguf() does, kCorruptFile where parts do not belong together, and
  // kInvalidRequest for a part that is not the first.
  explicit Gguf(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return files_.front().path(); }
  const GgufMetadata& metadata() const { return metadata_; }  // of the first part
  bool has(std::string_view name) const { return tensors_.contains(name); }
  std::vector<std::string> names() const;  // of all tensors, in order
  // Throws kCorruptFile where it is missing.
  const GgufTensor& tensor(std::string_view name) const;
  // For messages: the file and the name of a tensor that is there.
  std::string where(std::string_view name) const;

  void forget(std::string_view name) const;  // as MappedFile's. REQUIRES: has(name)

  std::size_t bytes() const;  // of all files
  // As MappedFile's, of every file.
  void require_whole() const;
  void require_unchanged() const;
  // Of every byte of all files (base/hash.h). Reads them all.
  std::uint64_t hash() const;

 private:
  struct Location {
    std::size_t file;  // index into files_
    GgufTensor tensor;
  };
  GgufMetadata add_file(const std::filesystem::path& path);
  void add_parts(std::int64_t count);
  void require_number_of_tensors() const;

  std::vector<MappedFile> files_;
  GgufMetadata metadata_;
  std::map<std::string, Location, std::less<>> tensors_;
};

}  // namespace quantspec
