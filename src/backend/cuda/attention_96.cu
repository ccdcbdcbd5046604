#include "backend/cuda/attention_launch.cuh"

namespace quantspec::cuda {

template void launch_attention<96>(Device&, AttentionLaunch&);
template AttentionScratch scratch_of<96>(const Device&, AttentionLaunch&);

}  // namespace quantspec::cuda
