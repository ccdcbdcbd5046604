#include "base/gemm.h"

#if defined(QUANTSPEC_GEMM_ONEDNN)
#include <dnnl.h>

#include <dnnl.hpp>
#else
#include <cblas.h>
#endif

#include <map>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <tuple>
#include <utility>
#include <vector>

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

Bf16Unit bf16_unit() {
  // An instruction set is the bits of all that it includes.
  const auto here = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  const auto includes = [here](unsigned isa) { return (here & isa) == isa; };
  if (includes(dnnl_cpu_isa_avx512_core_amx)) return Bf16Unit::kAmx;
  return includes(dnnl_cpu_isa_avx512_core_bf16) ? Bf16Unit::kAvx512 : Bf16Unit::kNone;
}

// 16: so that products have few shapes, for each of which oneDNN writes code.
int bf16_row_step() { return bf16_unit() == Bf16Unit::kAmx ? kGemmMostRows : 16; }

namespace {

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// oneDNN's code for the products of one shape. Threads run it at once, each with its own scratch.
struct Bf16Product {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul code;

  explicit Bf16Product(const Bf16Gemm& g)
      : description({matrix(g.m, g.k, {g.k, 1}), matrix(g.k, g.n, {1, g.k}),
                     dnnl::memory::desc({g.m, g.n}, dnnl::memory::data_type::f32,
                                        dnnl::memory::dims{g.n, 1})},
                    with_scratch_of_the_caller(), cpu_engine()),
        code(description) {}

  static dnnl::memory::desc matrix(int rows, int columns, const dnnl::memory::dims& strides) {
    return {{rows, columns}, dnnl::memory::data_type::bf16, strides};
  }
  static dnnl::primitive_attr with_scratch_of_the_caller() {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return attributes;
  }
};

// By shape, for the life of the process: a model has few, for rows come in few numbers.
const Bf16Product& product_for(const Bf16Gemm& g) {
  static std::shared_mutex mutex;
  static std::map<std::tuple<int, int, int>, Bf16Product> products;
  const std::tuple shape(g.m, g.n, g.k);
  {
    const std::shared_lock lock(mutex);
    if (const auto found = products.find(shape); found != products.end()) return found->second;
  }
  const std::unique_lock lock(mutex);
  return products.try_emplace(shape, g).first->second;
}

}  // namespace

void gemm(const Bf16Gemm& g) try {
  const InThisThread alone;
  const Bf16Product& product = product_for(g);
  thread_local std::vector<std::byte> scratch;
  const dnnl::memory::desc scratch_shape = product.description.scratchpad_desc();
  if (scratch.size() < scratch_shape.get_size()) scratch.resize(scratch_shape.get_size());
  const auto memory = [](const dnnl::memory::desc& shape, const void* data) {
    return dnnl::memory(shape, cpu_engine(), const_cast<void*>(data));
  };
  dnnl::stream stream(cpu_engine());
  product.code.execute(stream, {{DNNL_ARG_SRC, memory(product.description.src_desc(), g.a)},
                                {DNNL_ARG_WEIGHTS, memory(product.description.weights_desc(), g.b)},
                                {DNNL_ARG_DST, memory(product.description.dst_desc(), g.c)},
                                {DNNL_ARG_SCRATCHPAD, memory(scratch_shape, scratch.data())}});
  stream.wait();
} catch (const dnnl::error& error) {
  if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
  fail(ErrorKind::kInternal, "oneDNN refuses a matrix product in bf16: {}", error.what());
}

#else

void gemm(const Gemm& g) {
  [[maybe_unused]] static const bool one_thread = (openblas_set_num_threads(1), true);
  const auto op = [](bool transpose) { return transpose ? CblasTrans : CblasNoTrans; };
  const auto stride = [](std::ptrdiff_t elements) { return static_cast<blasint>(elements); };
  cblas_sgemm(CblasRowMajor, op(g.transpose_a), op(g.transpose_b), g.m, g.n, g.k, g.alpha, g.a,
              stride(g.lda), g.b, stride(g.ldb), g.accumulate ? 1.0f : 0.0f, g.c, stride(g.ldc));
}

GemmRows gemm_rows() { return {.least = kGemmMostRows, .step = kGemmMostRows}; }

Bf16Unit bf16_unit() { return Bf16Unit::kNone; }
int bf16_row_step() { return 1; }
void gemm(const Bf16Gemm&) { check(false, "products in bf16 are oneDNN's"); }

#endif

}  // namespace quantspec
