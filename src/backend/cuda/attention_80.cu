#include "backend/cuda/attention_launch.cuh"

namespace quantspec::cuda {

template void launch_attention<80>(Device&, AttentionLaunch&);
template AttentionScratch scratch_of<80>(const Device&, AttentionLaunch&);

}  // namespace quantspec::cuda
