#include "model/coded_source.h"

#include <utility>
#include <vector>

namespace quantspec {

namespace {

// Some columns; rows as they are asked for, by any thread: a matrix is never there twice.
CodedMatrix coded(const TensorView& tensor, const RowEncoder& encoder, int first, int cols) {
  const auto read = [=](int row, const RowCodes& out) {
    std::vector<float> values(static_cast<std::size_t>(cols));
    const std::size_t from = static_cast<std::size_t>(row) * stride_of(tensor) + first;
    for (int i = 0; i < cols; ++i) values[i] = load_f32(tensor.data, tensor.dtype, from + i);
    encoder.encode(cols, values.data(), out);
  };
  const auto columns = [=](int begin, int count) {
    return coded(tensor, encoder, first + begin, count);
  };
  return {encoder.format, tensor.rows, cols, read, columns};
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
    return coded(*tensor, encoder_, 0, tensor->cols);
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
