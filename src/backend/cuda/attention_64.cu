#include "backend/cuda/attention_launch.cuh"

namespace quantspec::cuda {

template void launch_attention<64>(Device&, AttentionLaunch&);
template AttentionScratch scratch_of<64>(const Device&, AttentionLaunch&);

}  // namespace quantspec::cuda
