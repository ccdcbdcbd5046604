#include "backend/cuda/prefill_gemm.h"

#include <algorithm>
#include <memory>

#include "backend/cuda/cublas_lt.h"
#include "backend/cuda/device.h"
#include "backend/cuda/layout.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;  // what cuBLAS asks for on 9.0
constexpr std::uintptr_t kMaxAlignment = 256;

void require_blas(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(ErrorKind::kDevice, "the GPU: {} in {}", cublas_lt().status_string(status), call);
}
#define QUANTSPEC_CUBLAS(call) require_blas((call), #call)

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF32:
      break;
  }
  return CUDA_R_32F;
}

template <typename T>
void set(cublasLtMatmulDescOpaque_t& product, cublasLtMatmulDescAttributes_t attribute, T value) {
  QUANTSPEC_CUBLAS(cublas_lt().product_set(&product, attribute, &value, sizeof(value)));
}
template <typename T>
void set(cublasLtMatmulPreferenceOpaque_t& preference,
         cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  QUANTSPEC_CUBLAS(cublas_lt().preference_set(&preference, attribute, &value, sizeof(value)));
}

}  // namespace

// In cuBLAS's column-major terms: out [outputs, rows] = W [inputs, outputs]^T x [inputs, rows].
struct PrefillGemm::Problem {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t weights, x, out;

  Problem(const Shape& shape, const float* bias) {
    const cudaDataType_t type = data_type(shape.dtype);
    // NOTE: pedantic: fp32 weights are multiplied in fp32, not in tf32.
    const cublasComputeType_t compute =
        shape.dtype == DType::kF32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
    QUANTSPEC_CUBLAS(cublas_lt().product_init(&product, sizeof(product), compute, CUDA_R_32F));
    set(product, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (bias != nullptr) {
      set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
      set(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    const int stride = padded_cols(shape.inputs);
    QUANTSPEC_CUBLAS(
        cublas_lt().layout_init(&weights, sizeof(weights), type, stride, shape.outputs, stride));
    QUANTSPEC_CUBLAS(cublas_lt().layout_init(&x, sizeof(x), type, stride, shape.rows, stride));
    QUANTSPEC_CUBLAS(cublas_lt().layout_init(&out, sizeof(out), CUDA_R_32F, shape.outputs,
                                             shape.rows, shape.outputs));
  }
};

PrefillGemm::PrefillGemm() { QUANTSPEC_CUBLAS(cublas_lt().create(&handle_)); }

PrefillGemm::~PrefillGemm() { cublas_lt().destroy(handle_); }

const cublasLtMatmulAlgo_t& PrefillGemm::algorithm(const Shape& shape, Problem& problem) {
  if (const auto found = algorithms_.find(shape); found != algorithms_.end()) return found->second;
  cublasLtMatmulPreferenceOpaque_t preference;
  QUANTSPEC_CUBLAS(cublas_lt().preference_init(&preference, sizeof(preference)));
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.alignment);
  // NOTE: partial sums only through the workspace: in place they are added by atomics, in any
  // order, and two runs differ.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status =
      cublas_lt().heuristic(handle_, &problem.product, &problem.weights, &problem.x, &problem.out,
                            &problem.out, &preference, 1, &result, &found);
  if (status != CUBLAS_STATUS_SUCCESS || found == 0) {
    fail(ErrorKind::kDevice, "cuBLASLt has no algorithm for [{}, {}] x [{}, {}] in {} ({})",
         shape.rows, shape.inputs, shape.inputs, shape.outputs, name_of(shape.dtype),
         cublas_lt().status_string(status));
  }
  return algorithms_.emplace(shape, result.algo).first->second;
}

void PrefillGemm::multiply(Device& device, const Linear& linear, const void* x, int rows, bool add,
                           float* out) {
  const auto address = reinterpret_cast<std::uintptr_t>(out);
  const Shape shape{
      .dtype = linear.full.dtype,
      .rows = rows,
      .inputs = linear.inputs(),
      .outputs = linear.outputs(),
      .add = add,
      .bias = linear.bias != nullptr,
      .alignment = static_cast<unsigned>(std::min(address & (~address + 1), kMaxAlignment))};
  Problem problem(shape, linear.bias);
  const float alpha = 1.0f, beta = add ? 1.0f : 0.0f;
  const cublasLtMatmulAlgo_t& chosen = algorithm(shape, problem);
  QUANTSPEC_CUBLAS(cublas_lt().multiply(
      handle_, &problem.product, &alpha, linear.full.data, &problem.weights, x, &problem.x, &beta,
      out, &problem.out, out, &problem.out, &chosen,
      device.scratch(Scratch::kWorkspace, kWorkspaceBytes), kWorkspaceBytes, device.stream()));
}

PrefillGemm& prefill_gemm(Device& device) {
  std::shared_ptr<PrefillGemm>& gemm = device.prefill_gemm();
  if (gemm == nullptr) gemm = std::make_shared<PrefillGemm>();
  return *gemm;
}

}  // namespace quantspec::cuda
