#include "model/coded_source.h"

#include <utility>
#include <vector>

namespace quantspec {

namespace {

// Rows as they are asked for, by any thread: a matrix is never there twice.
CodedMatrix coded(const TensorView& tensor, const RowEncoder& encoder) {
  const auto read = [tensor, encoder](int row, const RowCodes& out) {
    const auto cols = static_cast<std::size_t>(tensor.cols);
    std::vector<float> values(cols);
    for (std::size_t i = 0; i < cols; ++i) {
      values[i] = load_f32(tensor.data, tensor.dtype, row * cols + i);
    }
    encoder.encode(tensor.cols, values.data(), out);
  };
  return {encoder.format, tensor.rows, tensor.cols, read};
}

class CodedSource final : public WeightSource {
 public:
  CodedSource(std::unique_ptr<WeightSource> source, const RowEncoder& encoder)
      : source_(std::move(source)), encoder_(encoder) {}

  bool has(std::string_view name) const override { return source_->has(name); }
  std::vector<std::string> names() const override { return source_->names(); }
  SourceMatrix matrix(std::string_view name, int rows, int cols) const override {
    SourceMatrix found = source_->matrix(name, rows, cols);
    const auto* tensor = std::get_if<TensorView>(&found);
    if (tensor == nullptr || rows == 1) return found;
    return coded(*tensor, encoder_);
  }
  TensorView tensor(std::string_view name, int rows, int cols) const override {
    return source_->tensor(name, rows, cols);
  }
  std::string own_name(std::string_view name) const override { return source_->own_name(name); }
  std::string format_name(std::string_view name) const override {
    return source_->format_name(name);
  }
  void forget(std::string_view name) const override { source_->forget(name); }
  std::filesystem::path path() const override { return source_->path(); }
  std::size_t bytes() const override { return source_->bytes(); }
  void require_whole() const override { source_->require_whole(); }
  void require_unchanged() const override { source_->require_unchanged(); }
  std::uint64_t hash() const override { return source_->hash(); }

 private:
  std::unique_ptr<WeightSource> source_;
  RowEncoder encoder_;
};

}  // namespace

std::unique_ptr<WeightSource> in_eight_bits(std::unique_ptr<WeightSource> source,
                                            const RowEncoder& encoder) {
  return std::make_unique<CodedSource>(std::move(source), encoder);
}

}  // namespace quantspec
