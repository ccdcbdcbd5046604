#include "backend/cuda/cublas_lt.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>
#include <type_traits>

#include "base/error.h"
#include "base/fields.h"

namespace quantspec::cuda {

namespace {

CublasLt load() {
  // Where the system looks, and in the toolkit of this build.
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  void* library = dlopen(name.c_str(), RTLD_NOW);
  const std::string error = library == nullptr ? dlerror() : "";
  if (library == nullptr) library = dlopen((QUANTSPEC_CUDA_LIBRARIES "/" + name).c_str(), RTLD_NOW);
  if (library == nullptr) {
    fail(ErrorKind::kDevice,
         "the GPU's prefill needs cuBLASLt of CUDA {}, and it is not here ({}); its package is "
         "libcublas-{}-{}, LD_LIBRARY_PATH names its folder, and {} cpu works without",
         CUBLAS_VER_MAJOR, error, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10,
         field::kBackend);
  }
  CublasLt functions{};
  const auto find = [&](auto& function, const char* symbol) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    if (function == nullptr) fail(ErrorKind::kDevice, "{} has no {}: {}", name, symbol, dlerror());
  };
  find(functions.create, "cublasLtCreate");
  find(functions.destroy, "cublasLtDestroy");
  find(functions.status_string, "cublasLtGetStatusString");
  find(functions.product_init, "cublasLtMatmulDescInit_internal");
  find(functions.product_set, "cublasLtMatmulDescSetAttribute");
  find(functions.layout_init, "cublasLtMatrixLayoutInit_internal");
  find(functions.preference_init, "cublasLtMatmulPreferenceInit_internal");
  find(functions.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(functions.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(functions.check, "cublasLtMatmulAlgoCheck");
  find(functions.multiply, "cublasLtMatmul");
  return functions;
}

}  // namespace

const CublasLt& cublas_lt() {
  static const CublasLt functions = load();
  return functions;
}

}  // namespace quantspec::cuda
