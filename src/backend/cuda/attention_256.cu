#include "backend/cuda/attention_launch.cuh"

namespace quantspec::cuda {

template void launch_attention<256>(Device&, AttentionLaunch&);
template AttentionScratch scratch_of<256>(const Device&, AttentionLaunch&);

}  // namespace quantspec::cuda
