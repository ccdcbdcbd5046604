// Loops over a row, compiled for the vectors that this processor has. Private to the sampler.
#pragma once

namespace quantspec {

#if defined(__x86_64__)
template <typename F>
[[gnu::target("avx2"), gnu::flatten]] auto with_avx2(const F& f) {
  return f();
}
#endif

// f(), a plain loop. The compiler's baseline for x86-64 has vectors of 4 floats; here they have 8
// where there are such. The bits are the same: a vector's lanes round as a scalar does, nothing is
// fused (-ffp-contract=off), and where order matters the loop itself says in which it adds.
template <typename F>
auto vectorized(const F& f) {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) return with_avx2(f);
#endif
  return f();
}

}  // namespace quantspec
