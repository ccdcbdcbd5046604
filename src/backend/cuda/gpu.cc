#include "backend/cuda/gpu.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "backend/cuda/cuda.h"
#include "backend/cuda/held_memory.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

// What is called of the driver: the runtime would make a context on GPU 0 for a thread that had
// none, if it were to be given back what it had.
struct Driver {
  decltype(&cuCtxGetCurrent) get_current;
  decltype(&cuCtxSetCurrent) set_current;
  decltype(&cuDevicePrimaryCtxRetain) retain;
};

Driver load_driver() {
  Driver driver{};
  const auto find = [](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(driver_function(name));
  };
  find(driver.get_current, "cuCtxGetCurrent");
  find(driver.set_current, "cuCtxSetCurrent");
  find(driver.retain, "cuDevicePrimaryCtxRetain");
  return driver;
}

const Driver& driver() {
  static const Driver functions = load_driver();
  return functions;
}

void require(CUresult status, const char* call, int ordinal) {
  if (status == CUDA_SUCCESS) return;
  fail(status == CUDA_ERROR_OUT_OF_MEMORY ? ErrorKind::kOutOfMemory : ErrorKind::kDevice,
       "the GPU: error {} of device {} in {}", static_cast<int>(status), ordinal, call);
}

int gpu_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // it is not the next call's
  return 0;
}

}  // namespace

void require(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // it is not the next call's
  const ErrorKind kind =
      status == cudaErrorMemoryAllocation ? ErrorKind::kOutOfMemory : ErrorKind::kDevice;
  fail(kind, "the GPU: {} in {}", cudaGetErrorString(status), call);
}

void* driver_function(const char* name) {
  constexpr unsigned kVersion = 12000;  // of what is called
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  QUANTSPEC_CUDA(
      cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess)
    fail(ErrorKind::kDevice, "the GPU: its driver has no {}", name);
  return found;
}

std::vector<std::string> gpu_names() {
  std::vector<std::string> names(gpu_count());
  for (int i = 0; i < static_cast<int>(names.size()); ++i) {
    cudaDeviceProp properties;
    QUANTSPEC_CUDA(cudaGetDeviceProperties(&properties, i));
    names[i] = properties.name;
  }
  return names;
}

Gpu& Gpu::at(int ordinal) {
  struct Slot {
    std::once_flag once;
    std::unique_ptr<Gpu> gpu;
  };
  static auto& slots = *new std::vector<Slot>(gpu_count());  // also of what outlives statics
  check(ordinal >= 0 && ordinal < std::ssize(slots), "there is such a GPU");
  Slot& slot = slots[ordinal];
  std::call_once(slot.once, [&] { slot.gpu = std::make_unique<Gpu>(ordinal); });
  return *slot.gpu;
}

Gpu::Gpu(int ordinal) : ordinal_(ordinal) {
  require(driver().retain(&context_, ordinal), "cuDevicePrimaryCtxRetain", ordinal);
}

Buffer Gpu::allocate(std::size_t bytes) {
  if (bytes == 0) return {};
  const CurrentGpu current(*this);
  ++allocations_;
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is not the next call's
    std::size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    fail(ErrorKind::kOutOfMemory, "the GPU: could not allocate {} bytes, {} of {} are free", bytes,
         available, total);
  }
  cuda::require(status, "cudaMalloc");
  Buffer buffer(static_cast<std::byte*>(data), bytes,
                [this](std::byte* memory, std::size_t) { free(memory); });
  QUANTSPEC_CUDA(cudaMemset(data, 0, bytes));
  QUANTSPEC_CUDA(cudaDeviceSynchronize());  // the stream of ops does not wait for it
  return buffer;
}

Buffer Gpu::allocate_on_host(std::size_t bytes) {
  if (bytes == 0) return {};
  const CurrentGpu current(*this);
  ++allocations_;
  void* data = nullptr;
  const cudaError_t status = cudaMallocHost(&data, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is not the next call's
    fail(ErrorKind::kOutOfMemory,
         "the host: could not allocate {} bytes that the GPU copies from and to", bytes);
  }
  cuda::require(status, "cudaMallocHost");
  std::memset(data, 0, bytes);
  return {static_cast<std::byte*>(data), bytes,
          [this](std::byte* memory, std::size_t) { free_on_host(memory); }};
}

// cudaFree waits for kernels that may still use the memory.
void Gpu::free(std::byte* data) noexcept {
  const CurrentGpu current(*this, CurrentGpu::Failing::kIsLeft);
  ++frees_;
  if (!stays(data)) cudaFree(data);
}

void Gpu::free_on_host(std::byte* data) noexcept {
  const CurrentGpu current(*this, CurrentGpu::Failing::kIsLeft);
  cudaDeviceSynchronize();
  cudaFreeHost(data);
}

CUresult CurrentGpu::enter(const Gpu& gpu) noexcept {
  CUresult status = driver().get_current(&before_);
  if (status != CUDA_SUCCESS || before_ == gpu.context()) return status;
  status = driver().set_current(gpu.context());
  changed_ = status == CUDA_SUCCESS;
  return status;
}

CurrentGpu::CurrentGpu(const Gpu& gpu) { require(enter(gpu), "cuCtxSetCurrent", gpu.ordinal()); }

CurrentGpu::CurrentGpu(const Gpu& gpu, Failing) noexcept { enter(gpu); }

CurrentGpu::~CurrentGpu() {
  if (changed_) driver().set_current(before_);
}

}  // namespace quantspec::cuda
