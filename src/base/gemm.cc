#include "base/gemm.h"

#if defined(QUANTSPEC_GEMM_ONEDNN)
#include <dnnl.h>
#else
#include <cblas.h>
#endif

#include <new>

#include "base/error.h"

#if defined(QUANTSPEC_GEMM_ONEDNN)
// NOTE: Debian's oneDNN runs on GNU OpenMP whatever our compiler, so its two functions are declared
// here: a compiler's own omp.h may belong to another runtime.
extern "C" {
void omp_set_num_threads(int num_threads);
int omp_get_max_threads(void);
}
#endif

namespace quantspec {

#if defined(QUANTSPEC_GEMM_ONEDNN)

namespace {

// What oneDNN does meanwhile, it does in this thread.
class InThisThread {
 public:
  InThisThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~InThisThread() { omp_set_num_threads(before_); }
  InThisThread(const InThisThread&) = delete;
  InThisThread& operator=(const InThisThread&) = delete;

 private:
  int before_;
};

}  // namespace

void gemm(const Gemm& g) {
  const InThisThread alone;
  const dnnl_status_t status =
      dnnl_sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', g.m, g.n, g.k, g.alpha, g.a,
                 g.lda, g.b, g.ldb, g.accumulate ? 1.0f : 0.0f, g.c, g.ldc);
  if (status == dnnl_out_of_memory) throw std::bad_alloc();
  check(status == dnnl_success, "oneDNN refuses a matrix product");
}

GemmRows gemm_rows() { return {.least = 18, .step = 6}; }

#else

void gemm(const Gemm& g) {
  [[maybe_unused]] static const bool one_thread = (openblas_set_num_threads(1), true);
  const auto op = [](bool transpose) { return transpose ? CblasTrans : CblasNoTrans; };
  const auto stride = [](std::ptrdiff_t elements) { return static_cast<blasint>(elements); };
  cblas_sgemm(CblasRowMajor, op(g.transpose_a), op(g.transpose_b), g.m, g.n, g.k, g.alpha, g.a,
              stride(g.lda), g.b, stride(g.ldb), g.accumulate ? 1.0f : 0.0f, g.c, stride(g.ldc));
}

GemmRows gemm_rows() { return {.least = kGemmMostRows, .step = kGemmMostRows}; }

#endif

}  // namespace quantspec
