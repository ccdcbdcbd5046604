// cuBLASLt, loaded when it is first wanted. Linked, it would add a tenth of a second to every start
// of the program, on a machine without a GPU too, and where it is missing nothing would start.
#pragma once

#include <cublasLt.h>

namespace quantspec::cuda {

// The functions that prefill_gemm.cc calls; cuBLASLt's header says what they do.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmulDescInit_internal) product_init;
  decltype(&cublasLtMatmulDescSetAttribute) product_set;
  decltype(&cublasLtMatrixLayoutInit_internal) layout_init;
  decltype(&cublasLtMatmulPreferenceInit_internal) preference_init;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoCheck) check;
  decltype(&cublasLtMatmul) multiply;
};

// Thread-safe. Errors: kDevice, saying which library is missing.
const CublasLt& cublas_lt();

}  // namespace quantspec::cuda
