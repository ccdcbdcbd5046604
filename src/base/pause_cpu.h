// What a loop that waits for another thread does meanwhile.
#pragma once

namespace quantspec {

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // NOTE: isb, not yield, which most cores take for a nop and which would spin through thousands
  // of turns in a few microseconds; isb takes about as long as x86's pause.
  __asm__ volatile("isb" ::: "memory");
#endif
}

}  // namespace quantspec
