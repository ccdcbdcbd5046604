// A source of weights that are not there, for tests of what is reckoned before any are loaded.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/weight_source.h"

namespace quantspec {

// Of any shape that is asked for, in bf16.
class BlankSource final : public WeightSource {
 public:
  bool has(std::string_view) const override { return true; }
  std::vector<std::string> names() const override { return {}; }
  SourceMatrix matrix(std::string_view name, int rows, int cols) const override {
    return tensor(name, rows, cols);
  }
  TensorView tensor(std::string_view, int rows, int cols) const override {
    return {nullptr, DType::kBF16, rows, cols};
  }
  std::string own_name(std::string_view name) const override { return std::string(name); }
  std::string format_name(std::string_view) const override { return "BF16"; }
  void forget(std::string_view) const override {}
  std::filesystem::path path() const override { return "blank"; }
  std::size_t bytes() const override { return 0; }
  void require_whole() const override {}
  void require_unchanged() const override {}
  std::uint64_t hash() const override { return 0; }
};

}  // namespace quantspec
