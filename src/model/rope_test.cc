#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"

namespace quantspec {
namespace {

ModelConfig make_config(RopeConfig rope) {
  ModelConfig config{};
  config.head_dim = 64;
  config.max_positions = 512;
  config.rope = std::move(rope);
  return config;
}

struct Row {
  std::vector<float> cos;
  std::vector<float> sin;
};

Row row_at(const ModelConfig& config, int position, int context) {
  const int half = config.head_dim / 2;
  Row row{std::vector<float>(half), std::vector<float>(half)};
  Rope(config, context).tables(position, 1, row.cos.data(), row.sin.data());
  return row;
}

// A frequency is off by at most 2 ulp (that of pow and of the divisions after it), an angle by
// position times that; cos and sin are off by as much as the angle.
double tolerance(int position, double frequency) {
  return 1e-6 + 2 * 0x1p-23 * position * frequency;
}

// tests/testdata/rope.json: values of transformers 5.23, by tools/make_rope_tests.py.
TEST(Rope, AgreesWithTransformers) {
  const Json cases = parse_json_file(QUANTSPEC_TESTDATA "/rope.json");
  ASSERT_GE(cases.size(), 11u);
  int exact = 0;
  int total = 0;
  for (const auto& [name, test] : cases.items()) {
    const ModelConfig config = parse_config(test.at("config"), nullptr, name);
    for (const Json& expected : test.at("rows")) {
      const int position = expected.at("position");
      const Row row = row_at(config, position, expected.at("length"));
      const auto cos = expected.at("cos").get<std::vector<float>>();
      const auto sin = expected.at("sin").get<std::vector<float>>();
      ASSERT_EQ(row.cos.size(), cos.size());
      for (std::size_t i = 0; i < cos.size(); ++i) {
        // No type makes a frequency faster than the plain one.
        const double frequency = std::pow(config.rope.theta, -2.0 * i / config.head_dim);
        const double limit = tolerance(position, frequency);
        EXPECT_NEAR(row.cos[i], cos[i], limit) << name << " position " << position << " pair " << i;
        EXPECT_NEAR(row.sin[i], sin[i], limit) << name << " position " << position << " pair " << i;
        exact += std::abs(row.cos[i] - cos[i]) < 1e-6 && std::abs(row.sin[i] - sin[i]) < 1e-6;
        ++total;
      }
    }
  }
  // Almost all frequencies are the same bits: an error in one type would break hundreds of values.
  EXPECT_GT(exact, 0.99 * total) << exact << " of " << total;
}

TEST(Rope, DefaultIsTheClosedFormula) {
  const ModelConfig config = make_config({});
  for (const int position : {0, 1, 100, 8191}) {
    const Row row = row_at(config, position, position + 1);
    for (int i = 0; i < 32; ++i) {
      const double frequency = std::pow(10000.0, -2.0 * i / 64);
      EXPECT_NEAR(row.cos[i], std::cos(position * frequency), tolerance(position, frequency));
      EXPECT_NEAR(row.sin[i], std::sin(position * frequency), tolerance(position, frequency));
    }
  }
}

TEST(Rope, LinearStretchesPositions) {
  const Row a = row_at(make_config({}), 25, 26);
  const Row b = row_at(make_config({.type = RopeConfig::Type::kLinear, .factor = 4}), 100, 101);
  for (int i = 0; i < 32; ++i) EXPECT_NEAR(a.cos[i], b.cos[i], 1e-5);
}

TEST(Rope, RowsOfARangeAreThoseOfEachPosition) {
  const ModelConfig config = make_config({.theta = 500000});
  std::vector<float> cos(5 * 32);
  std::vector<float> sin(5 * 32);
  Rope(config, 1005).tables(1000, 5, cos.data(), sin.data());
  for (int row = 0; row < 5; ++row) {
    const Row one = row_at(config, 1000 + row, 1005);
    EXPECT_EQ(one.cos, std::vector<float>(cos.begin() + 32 * row, cos.begin() + 32 * (row + 1)));
    EXPECT_EQ(one.sin, std::vector<float>(sin.begin() + 32 * row, sin.begin() + 32 * (row + 1)));
  }
}

TEST(Rope, DynamicDependsOnAContextBeyondTheOriginal) {
  const ModelConfig config = make_config({.type = RopeConfig::Type::kDynamic, .factor = 2});
  const Row within = row_at(config, 50, 51);
  EXPECT_EQ(within.cos, row_at(config, 50, 512).cos);
  EXPECT_NE(within.cos, row_at(config, 50, 513).cos);
  EXPECT_EQ(within.cos, row_at(make_config({}), 50, 51).cos);
}

}  // namespace
}  // namespace quantspec
