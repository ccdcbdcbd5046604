#include "backend/cuda/attention_launch.cuh"

namespace quantspec::cuda {

template void launch_attention<128>(Device&, AttentionLaunch&);

}  // namespace quantspec::cuda
