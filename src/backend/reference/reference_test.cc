// The oracle against its definition, written once more in double and without any order of sums:
// what the other backends are compared with must itself be beyond doubt.
#include "backend/reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "backend/params/attention.h"
#include "backend/params/pass.h"
#include "base/error.h"
#include "base/random.h"
#include "quant/encode_row.h"

namespace quantspec {
namespace {

using Floats = std::vector<float>;

// fp32 sums of a few hundred terms against double.
constexpr double kTolerance = 2e-5;

Floats random_floats(std::size_t count, std::uint64_t seed, float scale = 1.0f) {
  Floats x(count);
  const CounterRng rng(seed);
  for (std::size_t i = 0; i < count; ++i) {
    x[i] = scale * (2 * rng.uniform(std::int64_t(i), RandomStream::kSample) - 1);
  }
  return x;
}

Matrix view_of(const Floats& weights, int cols) {
  return dense({weights.data(), DType::kF32, static_cast<int>(weights.size()) / cols, cols});
}

class Reference : public testing::Test {
 protected:
  std::unique_ptr<Backend> backend_ = reference::make_reference_backend(2);
};

Floats normed(const Floats& x, const Floats& weight, double epsilon) {
  double square = 0;
  for (const float value : x) square += double{value} * value;
  Floats out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    out[i] = float(x[i] * weight[i] / std::sqrt(square / double(x.size()) + epsilon));
  }
  return out;
}

// weight(o, i) summed with x.
double dot(const std::function<double(int)>& weight, const float* x, int count) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += weight(i) * x[i];
  return sum;
}

TEST_F(Reference, AddLinearIsTheEquation) {
  constexpr int kIn = 200, kOut = 35, kRows = 40;
  const Floats weights = random_floats(kIn * kOut, 1), bias = random_floats(kOut, 2);
  const Floats in = random_floats(kIn * kRows, 3), start = random_floats(kOut * kRows, 4);
  const auto bytes = backend_->plane_bytes(kOut, kIn, sliced_format());
  Buffer upper = backend_->allocate(bytes.upper), lower = backend_->allocate(bytes.lower);
  backend_->make_planes(view_of(weights, kIn), sliced_format(), upper.data(), lower.data());
  const Linear linear{
      view_of(weights, kIn), {sliced_format(), kOut, kIn, upper.data(), lower.data()}, bias.data()};
  std::vector<std::uint8_t> codes(kIn);
  std::vector<GroupScale> scales(sliced_format().groups(kIn));
  for (const WeightRead read : {WeightRead::kUpper, WeightRead::kBoth, WeightRead::kTarget}) {
    Floats x = start;
    backend_->add_linear({Phase::kDecode, read, in.data(), kRows, &linear, x.data()});
    for (int o = 0; o < kOut; ++o) {
      encode_row(sliced_format(), kIn, &weights[o * kIn],
                 {codes.data(), scales.data(), nullptr, nullptr});
      const auto weight = [&](int i) -> double {
        const double scale = f16_to_f32(scales[i / kWeightGroup].scale);
        const double offset = f16_to_f32(scales[i / kWeightGroup].offset);
        if (read == WeightRead::kTarget) return weights[o * kIn + i];
        if (read == WeightRead::kBoth) return offset + scale * codes[i];
        return offset + scale * (16 * (codes[i] / 16) + 7.5);
      };
      for (int row = 0; row < kRows; ++row) {
        const double expected = start[row * kOut + o] + bias[o] + dot(weight, &in[row * kIn], kIn);
        ASSERT_NEAR(x[row * kOut + o], expected, kTolerance) << "read " << int(read);
      }
    }
  }
}

TEST_F(Reference, GateUpAndHeadAreTheEquations) {
  constexpr int kHidden = 48, kOut = 20;
  const Floats x = random_floats(kHidden, 1, 3), norm = random_floats(kHidden, 2);
  const Floats gate = random_floats(kHidden * kOut, 3), up = random_floats(kHidden * kOut, 4);
  const Linear gate_linear{view_of(gate, kHidden)}, up_linear{view_of(up, kHidden)};
  Floats out(kOut), logits(kOut);
  backend_->gate_up({Phase::kDecode,
                     WeightRead::kTarget,
                     x.data(),
                     1,
                     {norm.data(), 1e-2f},
                     &gate_linear,
                     &up_linear,
                     out.data()});
  backend_->head(
      {WeightRead::kTarget, x.data(), 1, {norm.data(), 1e-2f}, &up_linear, logits.data()});
  const Floats y = normed(x, norm, 1e-2);
  for (int o = 0; o < kOut; ++o) {
    const double g = dot([&](int i) { return gate[o * kHidden + i]; }, y.data(), kHidden);
    const double u = dot([&](int i) { return up[o * kHidden + i]; }, y.data(), kHidden);
    EXPECT_NEAR(out[o], g / (1 + std::exp(-g)) * u, kTolerance);
    EXPECT_NEAR(logits[o], u, kTolerance);
  }
}

TEST_F(Reference, QkvNormsEachHeadThenRotatesItAndAppendsKAndV) {
  constexpr int kHidden = 48, kDim = 16, kHeads = 2;
  const KvShape shape{1, 1, kDim, 16};
  const Floats x = random_floats(kHidden, 1), norm = random_floats(kHidden, 2);
  const Floats q_norm = random_floats(kDim, 3), k_norm = random_floats(kDim, 4);
  const Floats wq = random_floats(kHidden * kDim * kHeads, 5);
  const Floats wk = random_floats(kHidden * kDim, 6), wv = random_floats(kHidden * kDim, 7);
  const Linear q{view_of(wq, kHidden)}, k{view_of(wk, kHidden)}, v{view_of(wv, kHidden)};
  Floats cos(kDim / 2), sin(kDim / 2), q_out(kHeads * kDim), key(kDim), value(kDim);
  for (int c = 0; c < kDim / 2; ++c) {
    cos[c] = std::cos(0.1f + c);
    sin[c] = std::sin(0.1f + c);
  }
  Buffer ring = backend_->allocate(backend_->full_kv_bytes(shape, 32));
  const SequenceRows rows{0, 1, 45, {{}, {ring.data(), 32}, 0}};
  backend_->qkv({Phase::kDecode,
                 WeightRead::kTarget,
                 kHeads,
                 shape,
                 x.data(),
                 1,
                 {norm.data(), 1e-5f},
                 &q,
                 &k,
                 &v,
                 {q_norm.data(), 1e-6f},
                 {k_norm.data(), 1e-6f},
                 cos.data(),
                 sin.data(),
                 q_out.data(),
                 {&rows, 1}});
  const Floats y = normed(x, norm, 1e-5);
  const auto project = [&](const Floats& w, int head) {
    Floats out(kDim);
    for (int c = 0; c < kDim; ++c) {
      out[c] =
          float(dot([&](int i) { return w[(head * kDim + c) * kHidden + i]; }, y.data(), kHidden));
    }
    return out;
  };
  const auto rotated = [&](const Floats& head) {
    Floats out(kDim);
    for (int c = 0; c < kDim / 2; ++c) {  // the complex product (a + ib)(cos + i sin)
      out[c] = head[c] * cos[c] - head[c + kDim / 2] * sin[c];
      out[c + kDim / 2] = head[c + kDim / 2] * cos[c] + head[c] * sin[c];
    }
    return out;
  };
  for (int head = 0; head < kHeads; ++head) {
    const Floats expected = rotated(normed(project(wq, head), q_norm, 1e-6));
    for (int c = 0; c < kDim; ++c) EXPECT_NEAR(q_out[head * kDim + c], expected[c], kTolerance);
  }
  // Position 45 of a ring of 32 is slot 13, so position 13 names the same place.
  backend_->read_full_kv(shape, {ring.data(), 32}, 0, 13, 1, key.data(), value.data());
  const Floats expected_key = rotated(normed(project(wk, 0), k_norm, 1e-6));
  const Floats expected_value = project(wv, 0);
  for (int c = 0; c < kDim; ++c) {
    EXPECT_NEAR(key[c], expected_key[c], kTolerance);
    EXPECT_NEAR(value[c], expected_value[c], kTolerance);
  }
}

// Two pages, then the ring from slot 0 again after its end; three query heads to a kv head.
TEST_F(Reference, AttentionIsTheEquation) {
  constexpr int kDim = 48, kPage = 16, kGroup = 3, kPages = 2, kFirst = 60, kRows = 3;
  constexpr int kEnd = kFirst + kRows;
  const KvShape shape{2, 2, kDim, kPage};
  const float scale = 0.3f;
  std::vector<Floats> keys(2), values(2);  // what each kv head's positions are read as
  Buffer ring = backend_->allocate(backend_->full_kv_bytes(shape, 32));
  Buffer upper = backend_->allocate(kPages * shape.units() * shape.upper_unit_bytes());
  Buffer lower = backend_->allocate(kPages * shape.units() * shape.lower_unit_bytes());
  std::vector<PagePlanes> pages;
  for (int page = 0; page < kPages; ++page) {
    pages.push_back({upper.data() + page * shape.units() * shape.upper_unit_bytes(),
                     lower.data() + page * shape.units() * shape.lower_unit_bytes()});
  }
  const Floats q = random_floats(kRows * 2 * kGroup * kDim, 1);
  for (const KvRead read : {KvRead::kUpper, KvRead::kBoth}) {
    for (int h = 0; h < 2; ++h) {
      keys[h] = random_floats(kEnd * kDim, 10 + h);
      values[h] = random_floats(kEnd * kDim, 20 + h);
      for (int page = 0; page < kPages; ++page) {
        float* k = &keys[h][page * kPage * kDim];
        float* v = &values[h][page * kPage * kDim];
        std::byte* u = pages[page].upper + shape.upper_offset(1, h);
        std::byte* l = pages[page].lower + shape.lower_offset(1, h);
        encode_unit(shape, k, v, u, l);
        decode_unit(shape, u, l, read, k, v);
      }
      for (int p = kPages * kPage; p < kEnd; ++p) {
        backend_->write_full_kv(shape, {ring.data(), 32}, h, p, 1, &keys[h][p * kDim],
                                &values[h][p * kDim]);
      }
    }
    Floats out(q.size());
    const SequenceRows rows{0, kRows, kFirst, {pages, {ring.data(), 32}, kPages * kPage, 1, read}};
    backend_->attention({q.data(), out.data(), 2 * kGroup, shape, scale, {&rows, 1}});
    for (int row = 0; row < kRows; ++row) {
      for (int head = 0; head < 2 * kGroup; ++head) {
        const std::size_t at = (std::size_t(row) * 2 * kGroup + head) * kDim;
        const int kv = head / kGroup, count = kFirst + row + 1;
        std::vector<double> prob(count);
        double sum = 0;
        for (int t = 0; t < count; ++t) {
          prob[t] =
              std::exp(scale * dot([&](int c) { return keys[kv][t * kDim + c]; }, &q[at], kDim));
          sum += prob[t];
        }
        for (int c = 0; c < kDim; ++c) {
          double expected = 0;
          for (int t = 0; t < count; ++t) expected += prob[t] / sum * values[kv][t * kDim + c];
          ASSERT_NEAR(out[at + c], expected, kTolerance);
        }
      }
    }
  }
}

// Beyond one tile of rows and one panel of values, in place.
TEST_F(Reference, PrefillAttentionEqualsAttentionBitForBit) {
  constexpr int kDim = 48, kFirst = 300, kRows = 70;
  const KvShape shape{1, 2, kDim, 16};
  Buffer memory = backend_->allocate(backend_->full_kv_bytes(shape, 384));
  const FullKv kv{memory.data(), 384};
  for (int p = 0; p < kFirst + kRows; ++p) {
    for (int h = 0; h < 2; ++h) {
      backend_->write_full_kv(shape, kv, h, p, 1, random_floats(kDim, 4 * p + h).data(),
                              random_floats(kDim, 4 * p + 2 + h).data());
    }
  }
  Floats q = random_floats(kRows * 4 * kDim, 1), out(q.size());
  const SequenceRows rows{0, kRows, kFirst, {{}, kv, 0}};
  backend_->attention({q.data(), out.data(), 4, shape, 0.5f, {&rows, 1}});
  backend_->prefill_attention({q.data(), q.data(), 4, shape, 0.5f, kFirst, kRows, {.full = kv}});
  EXPECT_EQ(q, out);
}

TEST_F(Reference, MissingPlanesAreRefused) {
  const Floats weights = random_floats(16 * 16, 1), in = random_floats(16, 2);
  Floats x(16);
  Linear linear{view_of(weights, 16)};
  EXPECT_THROW(
      backend_->add_linear({Phase::kDecode, WeightRead::kUpper, in.data(), 1, &linear, x.data()}),
      Error);
  Buffer upper = backend_->allocate(backend_->plane_bytes(16, 16, sliced_format()).upper);
  backend_->make_planes(linear.target, sliced_format(), upper.data(), nullptr);
  linear.draft = {sliced_format(), 16, 16, upper.data()};
  EXPECT_THROW(
      backend_->add_linear({Phase::kDecode, WeightRead::kBoth, in.data(), 1, &linear, x.data()}),
      Error);
}

}  // namespace
}  // namespace quantspec
