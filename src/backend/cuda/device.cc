#include "backend/cuda/device.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "backend/cuda/cuda.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

constexpr int kLeastCapability = 80;

// Copies of more are left to the driver.
constexpr std::size_t kMostStaged = std::size_t{256} << 10;
constexpr std::size_t kStagingBytes = std::size_t{1} << 20;

std::atomic<int> times_freed{0};

// cudaFree waits for kernels that may still use the memory.
void free_on_device(std::byte* data, std::size_t) {
  ++times_freed;
  cudaFree(data);
}

// Zeroed memory of the host that the GPU copies from and to by itself.
Buffer allocate_pinned(std::size_t bytes) {
  void* data = nullptr;
  QUANTSPEC_CUDA(cudaMallocHost(&data, bytes));
  std::memset(data, 0, bytes);
  return {static_cast<std::byte*>(data), bytes,
          [](std::byte* memory, std::size_t) { cudaFreeHost(memory); }};
}

// The most dynamic shared memory of a block of a GPU of that capability.
std::size_t shared_limit(int capability) {
  if (capability >= 90) return 227 << 10;
  return (capability == 80 || capability == 87 ? 163 : 99) << 10;
}

View view_of(const KvView& kv) {
  if (kv.all_full) return View::kAllFull;
  return kv.pages.data() == nullptr ? View::kNoPages : View::kPages;
}

}  // namespace

void require(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // it is not the next call's
  const ErrorKind kind =
      status == cudaErrorMemoryAllocation ? ErrorKind::kOutOfMemory : ErrorKind::kDevice;
  fail(kind, "the GPU: {} in {}", cudaGetErrorString(status), call);
}

std::string unavailable() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) cudaGetLastError();  // it is not the next call's
  if (status == cudaErrorInsufficientDriver) {
    return fmt::format("no NVIDIA driver, or one too old for CUDA {}", CUDART_VERSION / 1000);
  }
  if (status != cudaSuccess) return cudaGetErrorString(status);
  if (count == 0) return "no GPU is visible";
  int major = 0, minor = 0;
  QUANTSPEC_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  QUANTSPEC_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  if (10 * major + minor < kLeastCapability) {
    return fmt::format("GPU 0 has compute capability {}.{}, and 8.0 is needed", major, minor);
  }
  if (kernels_capability() > 0) return {};
  return fmt::format(
      "this build has no kernels for GPU 0, of compute capability {}.{} "
      "(QUANTSPEC_CUDA_ARCHITECTURES)",
      major, minor);
}

Buffer allocate_on_device(std::size_t bytes) {
  if (bytes == 0) return {};
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is not the next call's
    std::size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    fail(ErrorKind::kOutOfMemory, "the GPU: could not allocate {} bytes, {} of {} are free", bytes,
         available, total);
  }
  require(status, "cudaMalloc");
  Buffer buffer(static_cast<std::byte*>(data), bytes, free_on_device);
  QUANTSPEC_CUDA(cudaMemset(data, 0, bytes));
  QUANTSPEC_CUDA(cudaDeviceSynchronize());  // the stream of ops does not wait for it
  return buffer;
}

Device::Device() {
  if (const std::string why = unavailable(); !why.empty()) {
    fail(ErrorKind::kDevice, "no GPU that can be used: {}", why);
  }
  QUANTSPEC_CUDA(cudaSetDevice(0));
  cudaDeviceProp properties;
  QUANTSPEC_CUDA(cudaGetDeviceProperties(&properties, 0));
  name_ = properties.name;
  capability_ = kernels_capability();
  num_sms_ = properties.multiProcessorCount;
  max_shared_bytes_ = std::min(properties.sharedMemPerBlockOptin, shared_limit(capability_));
  l2_bytes_ = properties.l2CacheSize;
  QUANTSPEC_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  staging_ = allocate_pinned(kStagingBytes);
  reserve_states(kMaxSequences);
}

Device::~Device() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

std::byte* Device::scratch(Scratch which, std::size_t bytes) {
  Buffer& buffer = scratch_[static_cast<std::size_t>(which)];
  if (buffer.size() < bytes) {
    synchronize();
    buffer = {};
    buffer = allocate_on_device(bytes);
  }
  return buffer.data();
}

void Device::upload(void* to, const void* from, std::size_t bytes) {
  cudaStreamCaptureStatus capture;
  QUANTSPEC_CUDA(cudaStreamIsCapturing(stream_, &capture));
  check(capture == cudaStreamCaptureStatusNone, "a graph would repeat what is uploaded");
  const bool small = bytes <= kMostStaged;
  if (small) from = std::memcpy(stage(bytes), from, bytes);
  QUANTSPEC_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
  if (!small) synchronize();
}

void Device::download(void* to, const void* from, std::size_t bytes) {
  const bool small = bytes <= kMostStaged;
  std::byte* const staged = small ? stage(bytes) : nullptr;
  QUANTSPEC_CUDA(
      cudaMemcpyAsync(small ? staged : to, from, bytes, cudaMemcpyDeviceToHost, stream_));
  synchronize();
  if (small) std::memcpy(to, staged, bytes);
}

std::byte* Device::stage(std::size_t bytes) {
  if (staged_ + bytes > staging_.size()) synchronize();
  std::byte* const at = staging_.data() + staged_;
  staged_ += (bytes + 15) / 16 * 16;
  return at;
}

void Device::copy(void* to, const void* from, std::size_t bytes) {
  QUANTSPEC_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_));
}

void Device::upload_rows(void* to, std::size_t stride, const void* from, std::size_t bytes,
                         int rows) {
  QUANTSPEC_CUDA(
      cudaMemcpy2DAsync(to, stride, from, bytes, bytes, rows, cudaMemcpyHostToDevice, stream_));
  synchronize();
}

int Device::generation() { return times_freed; }

void Device::synchronize() {
  QUANTSPEC_CUDA(cudaStreamSynchronize(stream_));
  staged_ = 0;
}

void Device::reserve_states(std::size_t count) {
  if (count <= room_) return;
  synchronize();
  room_ = 0;
  given_.clear();
  states_ = {};
  round_states_ = {};
  states_ = allocate_on_device(std::bit_ceil(count) * sizeof(SequenceState));
  round_states_ = allocate_on_device(kNumViews * states_.size());
  room_ = std::bit_ceil(count);
}

const SequenceState* Device::states(std::span<const SequenceRows> sequences) {
  const auto of_round = [](const SequenceRows& rows) { return rows.round != nullptr; };
  const auto rounds = std::ranges::count_if(sequences, of_round);
  check(rounds == 0 || rounds == std::ssize(sequences),
        "the sequences of an op are all of rounds, or none is");
  if (rounds > 0) return round_states(View::kPages);
  to_give_.clear();
  for (const SequenceRows& rows : sequences) {
    const int pages = static_cast<int>(rows.kv.pages.size());
    to_give_.push_back(
        {rows.first_row, rows.num_rows, rows.first_position, rows.kv.first_full, pages});
  }
  reserve_states(to_give_.size());
  if (to_give_ != given_) {
    upload(states_.data(), to_give_.data(), to_give_.size() * sizeof(SequenceState));
    given_ = to_give_;
  }
  return states_.as<SequenceState>();
}

SequenceBatch Device::batch(std::span<const SequenceRows> sequences, int first, int count,
                            int num_kv_heads) {
  check(count >= 1 && count <= kMaxSequences, "a launch has 1 to kMaxSequences sequences");
  const SequenceState* given = states(sequences);
  SequenceBatch batch;
  batch.count = count;
  for (int i = 0; i < count; ++i) {
    const SequenceRows& rows = sequences[first + i];
    const KvView& kv = rows.kv;
    const SequenceState* from = rows.round == nullptr ? given : round_states(view_of(kv));
    batch.kv[i] = {.state = from + first + i,
                   .full = kv.full,
                   .pages = kv.pages.data(),
                   .page_lists = kv.page_lists.empty() ? nullptr : kv.page_lists.data(),
                   .pages_listed = static_cast<int>(kv.page_lists.size()) / num_kv_heads,
                   .gathered = kv.gathered,
                   .num_gathered = kv.num_gathered,
                   .max_pages = kv.page_mass.max_pages,
                   .page_mass = kv.page_mass.data};
  }
  return batch;
}

}  // namespace quantspec::cuda
