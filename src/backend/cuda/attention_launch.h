// The launch of decode attention, a file for each head_dim (attention_<head_dim>.cu).
#pragma once

#include "backend/cuda/attention_shape.cuh"
#include "quant/quant.h"

namespace quantspec::cuda {

struct AttentionLaunch {
  AttentionArgs args;  // up to `scale`, and `batch`
  KvRead read;
  int columns;           // the most of a sequence: rows times group
  int num_pages;         // the most of a sequence
  bool wants_page_mass;  // some sequence does
};

// The masses of pages, from what a launch of attention left (attention_mass.cu).
void launch_page_mass(Device& device, const AttentionArgs& args);

// Fills in the rest of args.
template <int kHeadDim>
void launch_attention(Device& device, AttentionLaunch& launch);

extern template void launch_attention<64>(Device&, AttentionLaunch&);
extern template void launch_attention<80>(Device&, AttentionLaunch&);
extern template void launch_attention<96>(Device&, AttentionLaunch&);
extern template void launch_attention<128>(Device&, AttentionLaunch&);
extern template void launch_attention<256>(Device&, AttentionLaunch&);

}  // namespace quantspec::cuda
