#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "backend/reference/reference.h"
#include "base/error.h"
#ifdef QUANTSPEC_CUDA
#include "backend/cuda/cuda.h"
#endif

namespace quantspec {

std::string cuda_unavailable() {
#ifdef QUANTSPEC_CUDA
  const std::string why = cuda::unavailable(0);
  return why.empty() ? why : "no GPU that can be used: " + why;
#else
  return "this build has no CUDA backend (it needs a CUDA toolkit; configure with "
         "-DQUANTSPEC_CUDA=ON)";
#endif
}

namespace {

std::unique_ptr<Backend> make_cuda_backend() {
  if (const std::string why = cuda_unavailable(); !why.empty()) {
    fail(ErrorKind::kDevice, "{} cuda: {}; {} auto or cpu works", Field::kBackend, why,
         Field::kBackend);
  }
#ifdef QUANTSPEC_CUDA
  return cuda::make_cuda_backend(0);
#else
  return nullptr;
#endif
}

}  // namespace

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  if (options.num_threads < 0) {
    fail(ErrorKind::kInvalidRequest, "{} {}: a positive number, or 0 for all cores",
         Field::kThreads, options.num_threads);
  }
  if (options.name == "cuda") return make_cuda_backend();
  if (options.name == "auto" && cuda_unavailable().empty()) return make_cuda_backend();
  if (options.name == "auto" || options.name == "cpu")
    return cpu::make_cpu_backend(options.num_threads);
  if (options.name == "reference") return reference::make_reference_backend(options.num_threads);
  fail(ErrorKind::kInvalidRequest, "{} {}: there are auto, cuda, cpu, reference", Field::kBackend,
       options.name);
}

std::vector<std::string> cpu_instruction_sets() { return cpu::supported_isas(); }

}  // namespace quantspec
