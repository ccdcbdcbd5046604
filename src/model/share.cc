#include "model/share.h"

#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/params/segments.h"
#include "base/error.h"
#include "base/fields.h"
#include "model/tensor_names.h"

namespace quantspec {

namespace {

constexpr int kRankCounts[] = {1, 2, 4, 8};
static_assert(kMostSegments == 8);

struct Range {
  int first;
  int count;
};

Range equal_part(int size, int rank, int ranks) { return {size / ranks * rank, size / ranks}; }

// Inputs of a unit of a matrix's sums.
int unit_of(const SourceMatrix& matrix) {
  const auto* coded = std::get_if<CodedMatrix>(&matrix);
  return segment_unit(coded != nullptr ? coded->format : dense_format(DType::kF32));
}

// The columns of each rank, where a product's sum is cut.
std::vector<Range> columns_by_rank(int inputs, int unit, int ranks) {
  std::vector<Range> columns;
  for (int rank = 0; rank < ranks; ++rank) {
    const int first = segment_begin(inputs, unit, ranks, rank);
    columns.push_back({first, segment_begin(inputs, unit, ranks, rank + 1) - first});
  }
  return columns;
}

bool equal(const std::vector<Range>& a, const std::vector<Range>& b) {
  return std::ranges::equal(a, b, [](const Range& x, const Range& y) {
    return x.first == y.first && x.count == y.count;
  });
}

// How ranks share a model, or what is in the way.
struct Division {
  std::vector<Range> channels;  // of the MLP, by rank
  std::string obstacle;
};

Division division_of(const ModelConfig& model, const WeightSource& source, int ranks) {
  const auto no = [](std::string obstacle) { return Division{{}, std::move(obstacle)}; };
  if (model.num_kv_heads % ranks != 0) {
    return no(fmt::format("{} KV heads cannot be shared by {} ranks", model.num_kv_heads, ranks));
  }
  if (model.vocab_size % ranks != 0) {
    return no(fmt::format("a vocabulary of {} tokens cannot be shared by {} ranks",
                          model.vocab_size, ranks));
  }
  const int segments = num_segments(model);
  if (segments < ranks) {
    return no(
        fmt::format("sums over {} and {} inputs are made in {} segment{}, {} ranks need as "
                    "many",
                    model.num_heads * model.head_dim, model.intermediate_size, segments,
                    segments == 1 ? "" : "s", ranks));
  }
  Division division;
  const auto specs = layer_matrices(model);
  for (int layer = 0; layer < model.num_layers; ++layer) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (!specs[i].in_segments) continue;
      const auto& [member, part] = kLayerMatrices[i];
      const std::string name = tensor_name(layer, part, "weight");
      const int inputs = specs[i].inputs;
      const int unit = unit_of(source.matrix(name, specs[i].outputs, inputs));
      const std::vector<Range> columns = columns_by_rank(inputs, unit, ranks);
      if (member == &LayerWeights::down && division.channels.empty()) division.channels = columns;
      std::vector<Range> wanted = division.channels;
      if (member == &LayerWeights::o) {
        wanted.clear();
        for (int rank = 0; rank < ranks; ++rank) wanted.push_back(equal_part(inputs, rank, ranks));
      }
      const bool empty =
          std::ranges::any_of(columns, [](const Range& range) { return range.count == 0; });
      if (!empty && equal(columns, wanted)) continue;
      return no(fmt::format(
          "the {} columns of {} cannot be shared {} by {} ranks: their sums are cut at "
          "multiples of {}",
          inputs, source.own_name(name),
          member == &LayerWeights::o ? "by heads" : "as other layers' are", ranks, unit));
    }
  }
  return division;
}

}  // namespace

namespace {

std::vector<int> share_counts(const ModelConfig& model, const WeightSource& source) {
  std::vector<int> fitting;
  for (const int count : kRankCounts) {
    if (division_of(model, source, count).obstacle.empty()) fitting.push_back(count);
  }
  return fitting;
}

// The most of these shares that so many ranks can have. Ranks of different contexts have different
// ones. 0: there are too few.
int most_shares(const std::vector<int>& counts, int ranks, int context_ranks) {
  int most = 0;
  for (const int count : counts) {
    if (count <= ranks && count * context_ranks >= ranks) most = count;
  }
  return most;
}

}  // namespace

std::vector<int> rank_counts(const ModelConfig& model, const WeightSource& source,
                             int context_ranks) {
  const std::vector<int> shares = share_counts(model, source);
  std::vector<int> fitting;
  for (const int count : kRankCounts) {
    if (count % context_ranks == 0 && most_shares(shares, count, context_ranks) > 0) {
      fitting.push_back(count);
    }
  }
  return fitting;
}

namespace {

Division checked_division(const ModelConfig& model, const WeightSource& source, int ranks) {
  const bool known = std::ranges::find(kRankCounts, ranks) != std::end(kRankCounts);
  Division division;
  if (known) division = division_of(model, source, ranks);
  if (known && division.obstacle.empty()) return division;
  const std::string obstacle =
      known ? division.obstacle : fmt::format("{} ranks cannot share a model", ranks);
  fail(ErrorKind::kInvalidRequest, "{}: {}; {} can, or more with a larger {}",
       source.path().string(), obstacle, fmt::join(share_counts(model, source), " or "),
       field::kContextRanks);
}

}  // namespace

RankGroups rank_groups(const ModelConfig& model, const WeightSource& source, int ranks,
                       int context_ranks) {
  check(context_ranks >= 1 && ranks % context_ranks == 0, "ranks that share contexts are of all");
  if (context_ranks == 1) return {};
  const std::vector<int> counts = share_counts(model, source);
  if (const int shares = most_shares(counts, ranks, context_ranks); shares > 0) {
    return {.context = context_ranks, .alike = ranks / shares};
  }
  fail(ErrorKind::kInvalidRequest,
       "{}: of {} ranks {} share each context, so {} need KV heads and weights of their own, and "
       "only {} can; where {} share each context that works",
       source.path().string(), ranks, context_ranks, ranks / context_ranks,
       fmt::join(counts, " or "), ranks / counts.back());
}

namespace {

// --- parts of matrices ---------------------------------------------------------------------------

TensorView rows_of(const TensorView& tensor, const Range& rows) {
  TensorView part = tensor;
  part.rows = rows.count;
  part.data = static_cast<const std::byte*>(tensor.data) +
              static_cast<std::size_t>(rows.first) * stride_of(tensor) * size_of(tensor.dtype);
  return part;
}
TensorView columns_of(const TensorView& tensor, const Range& columns) {
  TensorView part = tensor;
  part.stride = stride_of(tensor);
  part.cols = columns.count;
  part.data = static_cast<const std::byte*>(tensor.data) +
              static_cast<std::size_t>(columns.first) * size_of(tensor.dtype);
  return part;
}
CodedMatrix rows_of(const CodedMatrix& coded, const Range& rows) {
  CodedMatrix part = coded;
  part.rows = rows.count;
  part.read = [read = coded.read, first = rows.first](int row, const RowCodes& out) {
    read(first + row, out);
  };
  part.columns = nullptr;
  return part;
}
CodedMatrix columns_of(const CodedMatrix& coded, const Range& columns) {
  check(coded.columns != nullptr, "a source gives columns of its matrices");
  return coded.columns(columns.first, columns.count);
}

class ShareSource final : public WeightSource {
 public:
  // One of so many shares, and of so many of the KV heads.
  struct Place {
    int share, shares, kv_share, kv_shares;
  };
  ShareSource(const ModelConfig& model, std::unique_ptr<WeightSource> source, const Place& place,
              const Range& channels)
      : model_(model), source_(std::move(source)), place_(place), channels_(channels) {}

  bool has(std::string_view name) const override { return source_->has(there(name)); }
  std::vector<std::string> names() const override { return source_->names(); }

  SourceMatrix matrix(std::string_view name, int rows, int cols) const override {
    const std::optional<Part> part = part_of(name);
    if (!part) return source_->matrix(name, rows, cols);
    if (name.ends_with(".bias")) return tensor(name, rows, cols);
    check(rows == part->rows.count && cols == part->cols.count, "a share has its part of a matrix");
    const SourceMatrix whole = source_->matrix(there(name), part->whole_rows, part->whole_cols);
    return std::visit(
        [&](const auto& m) -> SourceMatrix {
          if (part->in_columns) return columns_of(m, part->cols);
          return rows_of(m, part->rows);
        },
        whole);
  }
  // Of what is shared, biases alone.
  TensorView tensor(std::string_view name, int rows, int cols) const override {
    const std::optional<Part> part = part_of(name);
    if (!part || part->in_columns) return source_->tensor(name, rows, cols);
    check(rows == 1 && cols == part->rows.count, "a share has its part of a bias");
    const TensorView whole = source_->tensor(name, 1, part->whole_rows);
    const auto offset = static_cast<std::size_t>(part->rows.first) * size_of(whole.dtype);
    return {static_cast<const std::byte*>(whole.data) + offset, whole.dtype, 1, part->rows.count};
  }

  std::string own_name(std::string_view name) const override {
    return source_->own_name(there(name));
  }
  std::string format_name(std::string_view name) const override {
    return source_->format_name(there(name));
  }
  void forget(std::string_view name) const override { source_->forget(there(name)); }
  std::filesystem::path path() const override { return source_->path(); }
  std::size_t bytes() const override { return source_->bytes(); }
  void require_whole() const override { source_->require_whole(); }
  void require_unchanged() const override { source_->require_unchanged(); }
  std::uint64_t hash() const override { return source_->hash(); }
  MatrixPart part_of(std::string_view name, int rows, int cols) const override {
    const std::optional<Part> part = part_of(name);
    if (!part || part->whole_rows != rows || part->whole_cols != cols) return {0, rows, 0, cols};
    return {part->rows.first, part->rows.count, part->cols.first, part->cols.count};
  }

 private:
  struct Part {
    int whole_rows, whole_cols;
    bool in_columns;
    Range rows, cols;
  };

  // A tied head is rows of the embedding.
  std::string_view there(std::string_view name) const {
    return model_.tied_head && name == kHeadName ? kEmbeddingName : name;
  }

  // Of a matrix that is shared, and of its bias.
  std::optional<Part> part_of(std::string_view name) const {
    const int hidden = model_.hidden_size;
    if (name == kHeadName) return part(model_.vocab_size, hidden, false, own(model_.vocab_size));
    const std::string_view matrix = name.substr(0, name.rfind('.'));
    const auto specs = layer_matrices(model_);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const auto& [member, called] = kLayerMatrices[i];
      if (!matrix.ends_with(called)) continue;
      const MatrixSpec& spec = specs[i];
      const bool of_mlp = member == &LayerWeights::gate || member == &LayerWeights::up ||
                          member == &LayerWeights::down;
      const bool of_kv = member == &LayerWeights::k || member == &LayerWeights::v;
      const Range range = of_mlp  ? channels_
                          : of_kv ? equal_part(spec.outputs, place_.kv_share, place_.kv_shares)
                                  : own(spec.in_segments ? spec.inputs : spec.outputs);
      return part(spec.outputs, spec.inputs, spec.in_segments, range);
    }
    return std::nullopt;
  }
  static Part part(int rows, int cols, bool in_columns, const Range& range) {
    if (in_columns) return {rows, cols, true, {0, rows}, range};
    return {rows, cols, false, range, {0, cols}};
  }
  Range own(int size) const { return equal_part(size, place_.share, place_.shares); }

  ModelConfig model_;
  std::unique_ptr<WeightSource> source_;
  Place place_;
  Range channels_;
};

}  // namespace

Share share_of(const ModelConfig& model, std::unique_ptr<WeightSource> source, int rank,
               int ranks) {
  return share_of(model, std::move(source), rank, ranks, {});
}

Share share_of(const ModelConfig& model, std::unique_ptr<WeightSource> source, int rank, int ranks,
               const RankGroups& groups) {
  check(0 <= rank && rank < ranks && model.ranks == 1, "a rank shares a whole model");
  unread_tensors(model, *source);
  const int shares = ranks / groups.alike, share = rank / groups.alike;
  const int kv_shares = ranks / groups.context;
  const Division division = checked_division(model, *source, shares);
  ModelConfig config = model;
  config.ranks = shares;
  config.segments = num_segments(model) / shares;
  config.num_heads /= shares;
  config.num_kv_heads /= kv_shares;
  config.intermediate_size = division.channels[share].count;
  config.tied_head &= shares == 1;  // else a rank's rows of it are no embedding
  config.context_ranks = groups.context;
  config.context_rank = rank % groups.context;
  if (shares == 1) return {config, std::move(source)};
  const ShareSource::Place place{share, shares, rank / groups.context, kv_shares};
  return {config,
          std::make_unique<ShareSource>(model, std::move(source), place, division.channels[share])};
}

}  // namespace quantspec
