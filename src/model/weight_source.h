// Where a model's weights come from: a safetensors checkpoint, or a GGUF file. Tensors have the
// names that transformers gives them, whatever they are called in the file. Thread-safe; what a
// tensor refers to lives as long as its source does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "backend/params/linear.h"

namespace quantspec {

// Elements where they lie, or rows of codes.
using SourceMatrix = std::variant<TensorView, CodedMatrix>;

// Of a matrix, so many rows and columns from these on.
struct MatrixPart {
  int first_row, rows, first_col, cols;
};

// The files that weights are in.
class WeightFiles {
 public:
  virtual ~WeightFiles() = default;

  virtual std::filesystem::path path() const = 0;
  virtual std::size_t bytes() const = 0;  // of all files
  // As MappedFile's, of every file.
  virtual void require_whole() const = 0;
  virtual void require_unchanged() const = 0;
  // Of every byte of all files (base/hash.h). Reads them all.
  virtual std::uint64_t hash() const = 0;
};

class WeightSource : public WeightFiles {
 public:
  virtual bool has(std::string_view name) const = 0;
  virtual std::vector<std::string> names() const = 0;  // of all tensors, in order
  // The matrix of that name and shape. Throws kCorruptFile where it is missing or of another shape,
  // kUnsupportedModel for formats that are not read.
  virtual SourceMatrix matrix(std::string_view name, int rows, int cols) const = 0;
  // Elements alone: of [cols] where rows == 1. Throws the same.
  virtual TensorView tensor(std::string_view name, int rows, int cols) const = 0;
  // What its files call a tensor, or a key of config.json, for messages.
  virtual std::string own_name(std::string_view name) const = 0;
  // How matrix() gives it, for reports: "bf16", "Q4_K".
  virtual std::string format_name(std::string_view name) const = 0;

  // What it has of a matrix of the whole model, of this shape: all of it, but for a share
  // (share.h).
  virtual MatrixPart part_of(std::string_view, int rows, int cols) const {
    return {0, rows, 0, cols};
  }

  // Says that a tensor that is there was copied: as MappedFile's. What matrix() and tensor() gave
  // of it can be read as before.
  virtual void forget(std::string_view name) const = 0;
};

}  // namespace quantspec
