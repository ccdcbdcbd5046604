// What ops do for many sequences at once beside attention and qkv, of every backend.
#include "backend/op_test_support.h"

namespace quantspec {
namespace {

class BatchOps : public OpTest {};

// More than a launch on a GPU has.
TEST_P(BatchOps, EmbedTakesAnyNumberOfSequences) {
  constexpr int kSequences = 70, kHidden = 48, kHalf = 32;
  const HostMatrix matrix(97, kHidden, DType::kF16, 1);
  const PlacedMatrix table(*backend_, matrix);
  const Floats cosines = normal_floats(std::size_t{300} * kHalf, 2), sines(cosines.size());
  const Guarded<float> cos_table(*backend_, cosines), sin_table(*backend_, sines);
  std::vector<TokenId> tokens;
  std::vector<int> positions;  // of each row
  for (int i = 0; i < kSequences; ++i) {
    for (int row = 0; row < 1 + i % 3; ++row) {
      positions.push_back(4 * i + row);
      tokens.push_back(static_cast<TokenId>(31 * tokens.size() % 97));
    }
  }
  const Guarded<TokenId> at(*backend_, tokens);
  for (const bool of_rounds : {false, true}) {
    std::vector<SequenceRows> sequences;
    int first_row = 0;
    for (int i = 0; i < kSequences; ++i) {
      sequences.push_back({first_row, 1 + i % 3, 4 * i, {}, at.data() + first_row, 4 * i});
      first_row += 1 + i % 3;
    }
    std::optional<TestLanes> lanes;
    if (of_rounds) lanes.emplace(*backend_, sequences, true);
    const std::size_t count = tokens.size();
    Guarded<float> out(*backend_, count * kHidden), cos(*backend_, count * kHalf);
    Guarded<float> sin(*backend_, count * kHalf);
    backend_->embed({.sequences = sequences,
                     .table = table.view(),
                     .out = out.data(),
                     .page_size = 32,
                     .num_rows = static_cast<int>(count),
                     .cos_table = cos_table.data(),
                     .sin_table = sin_table.data(),
                     .half = kHalf,
                     .cos = cos.data(),
                     .sin = sin.data()});
    EXPECT_TRUE(out.intact() && cos.intact() && sin.intact() && at.intact() &&
                (!lanes || lanes->intact()));
    const Floats values = out.values(), cos_values = cos.values();
    for (std::size_t row = 0; row < count; ++row) {
      for (int i = 0; i < kHidden; ++i) {
        ASSERT_EQ(values[row * kHidden + i], matrix.at(tokens[row], i)) << row;
      }
      EXPECT_TRUE(same_bits(&cos_values[row * kHalf], &cosines[positions[row] * kHalf], kHalf))
          << row;
    }
  }
}

QUANTSPEC_FOR_ALL_BACKENDS(BatchOps);

}  // namespace
}  // namespace quantspec
