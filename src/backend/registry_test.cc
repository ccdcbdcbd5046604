// Which backend is made, and for which device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "backend/backend.h"
#include "backend/op_test_support.h"
#include "base/error.h"
#include "base/expect_error.h"
#ifdef QUANTSPEC_CUDA
#include "backend/cuda/cuda.h"
#endif

namespace quantspec {
namespace {

TEST(BackendsOnHost, CudaIsThereOrSaysWhyNot) {
  try {
    EXPECT_EQ(make_backend({"cuda"})->name(), "cuda");
    EXPECT_EQ(make_backend({"auto"})->name(), "cuda");
    EXPECT_EQ(cuda_unavailable(), "");
    EXPECT_GT(num_gpus(), 0);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice) << error.what();
    const auto names = test_backends();
    EXPECT_EQ(std::count(names.begin(), names.end(), "cuda"), 0);
    EXPECT_EQ(make_backend({"auto"})->name(), "cpu");
    EXPECT_NE(std::string(error.what()).find(cuda_unavailable()), std::string::npos);
  }
}

#ifndef QUANTSPEC_CUDA
TEST(BackendsOnHost, ABuildWithoutCudaSeesNoGpus) { EXPECT_EQ(num_gpus(), 0); }
#endif

TEST(BackendsOnHost, OnlyCudaHasDevices) {
  for (const std::string name : {"cpu", "reference"}) {
    expect_error(ErrorKind::kInvalidRequest, {"device 0: is of backend cuda; backend " + name},
                 [&] { make_backend({.name = name, .device = 0}); });
  }
}

// Nor does `auto` take the processor instead.
TEST(BackendsOnHost, ADeviceThatIsNotThereIsNamedBesideThoseThatAre) {
  for (const std::string name : {"cuda", "auto"}) {
    for (const int device : {-1, 999}) {
      const auto make = [&] { make_backend({.name = name, .device = device}); };
      const std::string field = "device " + std::to_string(device) + ": ";
      if (const std::string why = cuda_unavailable(); !why.empty()) {
        expect_error(ErrorKind::kDevice, {field + why, "backend auto or cpu works"}, make);
      } else {
        expect_error(ErrorKind::kInvalidRequest, {field + "there ", " 0 ("}, make);
      }
    }
  }
}

#ifdef QUANTSPEC_CUDA
// The last GPU beside the first, in turns and of other threads: kernels are prepared on each.
TEST(BackendsOnHost, DevicesOfAProcessAreApart) {
  if (const std::string why = cuda_unavailable(); !why.empty()) GTEST_SKIP() << why;
  const int last = static_cast<int>(cuda::gpu_names().size()) - 1;
  if (const std::string why = cuda::unavailable(last); !why.empty()) GTEST_SKIP() << why;
  const HostMatrix matrix(64, 256, DType::kBF16, 1);
  Floats x(17 * 256, 0.5f), expected;
  std::unique_ptr<Backend> backends[2];
  for (const int turn : {0, 1, 0, 1}) {
    std::thread([&] {
      const int device = turn == 0 ? 0 : last;
      auto& backend = backends[turn];
      if (!backend) backend = make_backend({.name = "cuda", .device = device});
      EXPECT_THAT(backend->description(), testing::HasSubstr(fmt::format("GPU {}: ", device)));
      const PlacedMatrix placed(*backend, matrix);
      const Linear linear{.target = placed.view()};
      Guarded<float> in(*backend, x), out(*backend, 17 * 64);
      backend->head({WeightRead::kTarget, in.data(), 17, {}, &linear, out.data()});
      if (expected.empty()) expected = out.values();
      EXPECT_EQ(out.values(), expected) << device;
    }).join();
  }
}
#endif

}  // namespace
}  // namespace quantspec
