#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "backend/reference/reference.h"
#include "base/error.h"
#include "base/fields.h"
#ifdef QUANTSPEC_CUDA
#include "backend/cuda/cuda.h"
#endif

namespace quantspec {

namespace {

#ifdef QUANTSPEC_CUDA
std::string why_not_cuda(int device) {
  const std::string why = cuda::unavailable(device);
  return why.empty() ? why : "no GPU that can be used: " + why;
}
std::vector<std::string> gpu_names() { return cuda::gpu_names(); }
#else
std::string why_not_cuda(int) {
  return "this build has no CUDA backend (it needs a CUDA toolkit; configure with "
         "-DQUANTSPEC_CUDA=ON)";
}
std::vector<std::string> gpu_names() { return {}; }
#endif

// REQUIRES: there are some.
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += fmt::format("{}{} ({})", i == 0 ? "" : ", ", i, names[i]);
  }
  return text;
}

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options) {
  const int device = options.device.value_or(0);
  const std::vector<std::string> names = gpu_names();
  if (!names.empty() && (device < 0 || device >= std::ssize(names))) {
    fail(ErrorKind::kInvalidRequest, "{} {}: there {} {}", field::kDevice, device,
         names.size() == 1 ? "is" : "are", listed(names));
  }
  if (const std::string why = why_not_cuda(device); !why.empty()) {
    if (options.device) {
      fail(ErrorKind::kDevice, "{} {}: {}; without it, {} auto or cpu works", field::kDevice,
           device, why, field::kBackend);
    }
    fail(ErrorKind::kDevice, "{} cuda: {}; {} auto or cpu works", field::kBackend, why,
         field::kBackend);
  }
#ifdef QUANTSPEC_CUDA
  return cuda::make_cuda_backend(device, options.num_threads, options.ranks, options.groups);
#else
  return nullptr;
#endif
}

}  // namespace

int num_gpus() { return static_cast<int>(gpu_names().size()); }

std::string cuda_unavailable(int device) { return why_not_cuda(device); }

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  if (options.num_threads < 0) {
    fail(ErrorKind::kInvalidRequest, "{} {}: a positive number, or 0 for all cores",
         field::kThreads, options.num_threads);
  }
  const std::string& name = options.name;
  if (name == "cuda" || (name == "auto" && (options.device || cuda_unavailable().empty()))) {
    return make_cuda_backend(options);
  }
  if (name != "auto" && name != "cpu" && name != "reference") {
    fail(ErrorKind::kInvalidRequest, "{} {}: there are auto, cuda, cpu, reference", field::kBackend,
         name);
  }
  if (options.device) {
    fail(ErrorKind::kInvalidRequest, "{} {}: is of {} cuda; {} {} runs on the processor",
         field::kDevice, *options.device, field::kBackend, field::kBackend, name);
  }
  if (name == "reference") {
    return reference::make_reference_backend(options.num_threads, options.ranks, options.groups);
  }
  return cpu::make_cpu_backend(options.num_threads, options.ranks, options.groups);
}

std::vector<std::string> cpu_instruction_sets() { return cpu::supported_isas(); }

}  // namespace quantspec
