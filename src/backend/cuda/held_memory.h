// Memory of a GPU that other processes have opened (peer_memory.h): its owner may give it back
// while they still use it, and then it stays as long as it is held. Thread-safe.
#pragma once

namespace quantspec::cuda {

// `base`: as cudaMalloc() gave it.
void hold(void* base);
// Whether its owner has given it back: the caller frees it. REQUIRES: hold(base) came before.
[[nodiscard]] bool let_go(void* base);
// Its owner gives it back. Whether it is held: then it is not the owner's to free.
[[nodiscard]] bool stays(void* base) noexcept;

}  // namespace quantspec::cuda
