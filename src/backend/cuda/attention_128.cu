#include "backend/cuda/attention_launch.cuh"

namespace quantspec::cuda {

template void launch_attention<128>(Device&, AttentionLaunch&);
template AttentionScratch scratch_of<128>(const Device&, AttentionLaunch&);

}  // namespace quantspec::cuda
