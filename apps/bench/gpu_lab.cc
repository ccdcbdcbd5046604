#include "apps/bench/gpu_lab.h"

#include <bit>
#include <cstring>
#include <limits>

#include "base/dtype.h"
#include "base/error.h"
#include "base/random.h"

namespace quantspec {

namespace {

constexpr std::size_t kNormals = std::size_t{1} << 20;

std::vector<float> normal_values(std::size_t count) {
  const CounterRng rng(1);
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto position = static_cast<std::int64_t>(i);
    const float radius = std::sqrt(-2 * std::log(rng.uniform(position, RandomStream::kSample)));
    x[i] = radius * std::cos(6.2831853f * rng.uniform(position, RandomStream::kSample, 1));
  }
  return x;
}

}  // namespace

GpuLab::GpuLab(const BackendOptions& backend)
    : backend_(make_backend(backend)),
      reference_(make_backend({"reference"})),
      normal_(normal_values(kNormals)) {
  copy_bandwidth_ = measure_copy();
}

std::vector<float> GpuLab::floats(std::size_t count, float deviation) const {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = deviation * normal_[i % kNormals];
  return values;
}

std::vector<std::uint16_t> GpuLab::bf16(std::size_t count, float deviation) const {
  std::vector<std::uint16_t> block(kNormals), values(count);
  for (std::size_t i = 0; i < kNormals; ++i) {
    block[i] =
        static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(deviation * normal_[i]) >> 16);
  }
  for (std::size_t first = 0; first < count; first += kNormals) {
    std::copy_n(block.data(), std::min(kNormals, count - first), values.data() + first);
  }
  return values;
}

Buffer GpuLab::upload(std::span<const float> values) {
  Buffer buffer = backend_->allocate(values.size_bytes());
  backend_->upload(buffer.data(), values.data(), values.size_bytes());
  return buffer;
}

Buffer GpuLab::repeated(std::span<const std::byte> block, std::size_t bytes) {
  Buffer buffer = backend_->allocate(bytes);
  const std::size_t first = std::min(block.size(), bytes);
  backend_->upload(buffer.data(), block.data(), first);
  for (std::size_t filled = first; filled < bytes;) {  // twice as much each time
    const std::size_t next = std::min(filled, bytes - filled);
    backend_->copy(buffer.data() + filled, buffer.data(), next);
    filled += next;
  }
  return buffer;
}

Buffer GpuLab::random_fp16(std::size_t bytes) {
  std::vector<std::uint16_t> block(kNormals);
  std::transform(normal_.begin(), normal_.end(), block.begin(), f32_to_f16);
  return repeated(std::as_bytes(std::span(block)), bytes);
}

Buffer GpuLab::random_floats(std::size_t count) {
  return repeated(std::as_bytes(std::span(normal_)), count * sizeof(float));
}

Buffer GpuLab::poisoned(std::size_t count) {
  return upload(std::vector<float>(count, std::numeric_limits<float>::quiet_NaN()));
}

std::vector<float> GpuLab::download(const Buffer& buffer, std::size_t count) {
  std::vector<float> values(count);
  backend_->download(values.data(), buffer.data(), count * sizeof(float));
  return values;
}

double GpuLab::measure_copy() {
  constexpr std::size_t kBytes = std::size_t{2} << 30;
  const Buffer from = random_fp16(kBytes);
  Buffer to = backend_->allocate(kBytes);
  const Times times = time([&](int) { backend_->copy(to.data(), from.data(), kBytes); });
  return 2.0 * kBytes / times.median;
}

double relative_error(std::span<const float> a, std::span<const float> b) {
  check(a.size() == b.size(), "compared results are of one size");
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(error / norm);
}

double bit_error(std::span<const float> a, std::span<const float> b) {
  const bool same = a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
  return same ? 0 : std::numeric_limits<double>::infinity();
}

}  // namespace quantspec
