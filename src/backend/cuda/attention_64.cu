#include "backend/cuda/attention_launch.cuh"

namespace quantspec::cuda {

template void launch_attention<64>(Device&, AttentionLaunch&);

}  // namespace quantspec::cuda
