#include "backend/cuda/prefill_gemm.h"

#include <algorithm>
#include <memory>

#include "backend/cuda/cublas_lt.h"
#include "backend/cuda/device.h"
#include "backend/cuda/layout.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

// Rows of a product: algorithms are chosen for so many, and more go through one product after
// another. A chunk of a prompt has no more.
constexpr int kMostRows = 1024;
constexpr int kCandidates = 16;

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

// What divides the distance of two rows of out, in bytes.
std::uint32_t out_alignment(int out_stride) {
  constexpr std::uint32_t kMost = 128;
  const std::uint32_t bytes = sizeof(float) * static_cast<std::uint32_t>(out_stride);
  return std::min(bytes & (~bytes + 1), kMost);
}

}  // namespace

// In cuBLAS's column-major terms: out [outputs, rows] = W [inputs, outputs]^T x [inputs, rows].
struct PrefillGemm::Problem {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t weights, x, out;

  Problem(const Shape& shape, int rows, const float* bias) {
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
    QUANTSPEC_CUBLAS(cublas_lt().layout_init(&weights, sizeof(weights), type, stride,
                                             shape.outputs.count, stride));
    QUANTSPEC_CUBLAS(cublas_lt().layout_init(&x, sizeof(x), type, stride, rows, stride));
    QUANTSPEC_CUBLAS(cublas_lt().layout_init(&out, sizeof(out), CUDA_R_32F, shape.outputs.count,
                                             rows, shape.outputs.stride));
  }
};

PrefillGemm::PrefillGemm() { QUANTSPEC_CUBLAS(cublas_lt().create(&handle_)); }

PrefillGemm::~PrefillGemm() { cublas_lt().destroy(handle_); }

// Whether products of fewer rows, down to one, can be had by it too.
bool PrefillGemm::takes_any_rows(const Shape& shape, const float* bias,
                                 const cublasLtMatmulAlgo_t& algorithm) {
  for (int rows = 1; rows < kMostRows; rows = 2 * rows + 1) {
    Problem problem(shape, rows, bias);
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status =
        cublas_lt().check(handle_, &problem.product, &problem.weights, &problem.x, &problem.out,
                          &problem.out, &algorithm, &result);
    if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kGemmWorkspaceBytes) return false;
  }
  return true;
}

const cublasLtMatmulAlgo_t& PrefillGemm::algorithm(const Shape& shape, const float* bias) {
  if (const auto found = algorithms_.find(shape); found != algorithms_.end()) return found->second;
  Problem problem(shape, kMostRows, bias);
  cublasLtMatmulPreferenceOpaque_t preference;
  QUANTSPEC_CUBLAS(cublas_lt().preference_init(&preference, sizeof(preference)));
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kGemmWorkspaceBytes);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out_alignment(shape.outputs.stride));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out_alignment(shape.outputs.stride));
  // NOTE: partial sums only through the workspace: in place they are added by atomics, in any
  // order, and two runs differ.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  cublasLtMatmulHeuristicResult_t results[kCandidates] = {};
  int count = 0;
  const cublasStatus_t status =
      cublas_lt().heuristic(handle_, &problem.product, &problem.weights, &problem.x, &problem.out,
                            &problem.out, &preference, kCandidates, results, &count);
  for (int i = 0; i < (status == CUBLAS_STATUS_SUCCESS ? count : 0); ++i) {  // the fastest first
    if (results[i].state == CUBLAS_STATUS_SUCCESS && takes_any_rows(shape, bias, results[i].algo)) {
      return algorithms_.emplace(shape, results[i].algo).first->second;
    }
  }
  fail(ErrorKind::kDevice,
       "cuBLASLt has no algorithm that takes 1 to {} rows of a [{}, {}] matrix in {} ({}; of {} "
       "none)",
       kMostRows, shape.outputs.count, shape.inputs, name_of(shape.dtype),
       cublas_lt().status_string(status), count);
}

void PrefillGemm::multiply(Device& device, const Matrix& weights, const float* bias, const void* x,
                           int rows, bool add, float* out, int out_stride, const Outputs& as) {
  check(weights.format.dense(), "a GEMM is of elements");
  Shape shape{.dtype = weights.format.dtype,
              .inputs = weights.cols,
              .outputs = as,
              .add = add,
              .bias = bias != nullptr};
  const cublasLtMatmulAlgo_t& chosen = algorithm(shape, bias);
  shape.outputs = {weights.rows, out_stride};
  check(reinterpret_cast<std::uintptr_t>(out) % out_alignment(out_stride) == 0,
        "rows of a product are aligned");
  const float alpha = 1.0f, beta = add ? 1.0f : 0.0f;
  const std::size_t x_bytes =
      static_cast<std::size_t>(padded_cols(shape.inputs)) * size_of(shape.dtype);
  for (int first = 0; first < rows; first += kMostRows) {
    Problem problem(shape, std::min(kMostRows, rows - first), bias);
    const auto* rows_x = static_cast<const std::byte*>(x) + first * x_bytes;
    float* const rows_out = out + static_cast<std::size_t>(first) * out_stride;
    QUANTSPEC_CUBLAS(cublas_lt().multiply(handle_, &problem.product, &alpha, weights.data,
                                          &problem.weights, rows_x, &problem.x, &beta, rows_out,
                                          &problem.out, rows_out, &problem.out, &chosen,
                                          device.scratch(Scratch::kWorkspace, kGemmWorkspaceBytes),
                                          kGemmWorkspaceBytes, device.stream()));
  }
}

PrefillGemm& prefill_gemm(Device& device) {
  std::shared_ptr<PrefillGemm>& gemm = device.prefill_gemm();
  if (gemm == nullptr) gemm = std::make_shared<PrefillGemm>();
  return *gemm;
}

}  // namespace quantspec::cuda
