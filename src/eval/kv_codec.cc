#include "eval/kv_codec.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"

namespace quantspec {

namespace {

float to_fp16(float value) { return f16_to_f32(f32_to_f16(value)); }

// x[0], x[stride], ... (count of them) in place.
void paper_group(KvRead read, float* x, std::ptrdiff_t stride, int count) {
  float low = x[0], high = x[0];
  for (int i = 1; i < count; ++i) {
    low = std::min(low, x[i * stride]);
    high = std::max(high, x[i * stride]);
  }
  const float min = to_fp16(low);
  const float scale = to_fp16((high - low) / 15);
  const float step = scale / 16;
  for (int i = 0; i < count; ++i) {
    float& value = x[i * stride];
    if (!std::isfinite(scale)) {
      value = std::numeric_limits<float>::quiet_NaN();
    } else if (scale == 0) {
      value = min;
    } else {
      const float upper =
          std::clamp(std::nearbyint((value - min) / scale), 0.0f, 15.0f) * scale + min;
      const float lower = std::clamp(std::nearbyint((value - upper) / step), -8.0f, 7.0f);
      value = read == KvRead::kUpper ? upper : upper + lower * step;
    }
  }
}

// A page of keys or values: [page_size, head_dim].
void paper_page(const KvShape& shape, KvRead read, GroupAxis axis, float* x) {
  const int dim = shape.head_dim;
  if (axis == GroupAxis::kChannel) {
    for (int channel = 0; channel < dim; ++channel) {
      paper_group(read, x + channel, dim, shape.page_size);
    }
    return;
  }
  for (int token = 0; token < shape.page_size; ++token) {
    float* row = x + static_cast<std::ptrdiff_t>(token) * dim;
    for (int first = 0; first < dim; first += kValueGroup) {
      paper_group(read, row + first, 1, std::min(kValueGroup, dim - first));
    }
  }
}

void our_page(const KvShape& shape, KvRead read, float* keys, float* values) {
  const KvShape unit{1, 1, shape.head_dim, shape.page_size};
  std::vector<std::byte> upper(unit.upper_unit_bytes()), lower(unit.lower_unit_bytes());
  encode_unit(unit, keys, values, upper.data(), lower.data());
  decode_unit(unit, upper.data(), lower.data(), read, keys, values);
}

}  // namespace

void quantize_and_read(const KvCodec& codec, const KvShape& shape, float* keys, float* values) {
  check(codec.read != KvRead::kFull, "a codec reads 4 or 8 bits");
  if (codec.quantizer == KvCodec::Quantizer::kPaper) {
    paper_page(shape, codec.read, codec.keys, keys);
    paper_page(shape, codec.read, codec.values, values);
    return;
  }
  check(codec.keys == GroupAxis::kChannel && codec.values == GroupAxis::kToken,
        "our quantizer has its own axes");
  our_page(shape, codec.read, keys, values);
}

}  // namespace quantspec
