// The ops of the CUDA backend, by file; params/ and backend.h say what they compute. Pointers
// and page tables are in device memory unless said. All run on the device's stream, in order.
#pragma once

#include <span>

#include "backend/cuda/device.h"
#include "backend/params/context.h"
#include "backend/params/forward.h"

namespace quantspec::cuda {

class RowUpload;
struct RankSharing;

// --- pass_scratch.cc -----------------------------------------------------------------------------
// As Backend::pass_scratch_bytes.
std::size_t pass_scratch_bytes(const Device& device, const PassSizes& sizes,
                               const RankSharing& sharing);

// --- attention.cu --------------------------------------------------------------------------------
void attention(Device& device, const AttentionParams& params);
// As KvOps', for this and for prefill_attention().
void require_supported(const KvShape& shape);
// A target's of a KV head on one GPU, which would have those of all contexts (context.h).
int target_splits(const Device& device, const KvShape& shape);
// What it takes of Scratch::kAttention and kCounters, at most.
struct AttentionScratch {
  std::size_t results = 0, counters = 0;
};
AttentionScratch attention_scratch(const Device& device, const PassSizes& sizes,
                                   const RankSharing& sharing);

// --- prefill_attention.cu ------------------------------------------------------------------------
void prefill_attention(Device& device, const PrefillAttentionParams& params);
// own_kv_heads: those that a rank's queries read.
std::size_t unpacked_bytes(const KvShape& shape, int own_kv_heads, int tokens);

// --- pages.cu ------------------------------------------------------------------------------------
void quantize_pages(Device& device, const KvShape& shape, int first_layer,
                    std::span<const FullKv> sources, int first_position,
                    std::span<const PagePlanes> pages);
// Dequantizes both planes of pages (positions from 0), of some KV heads, into `target`, which has
// only these. Of ranks that share contexts: the units of shape.context_rank, whose pages they are.
void load_pages(Device& device, const KvShape& shape, const KvHeads& heads, int layer,
                std::span<const PagePlanes> pages, FullKv target);
void page_bounds(Device& device, const PageBoundsParams& params);
void select_pages(Device& device, const SelectPagesParams& params);

// --- full_kv.cu ----------------------------------------------------------------------------------
void copy_full_kv(Device& device, const KvShape& shape, FullKv source, FullKv target, int first,
                  int count);
// positions: host memory.
void gather_full_kv(Device& device, const KvShape& shape, FullKv source, FullKv target,
                    std::span<const int> positions, int first_slot);
// keys, values, upper, lower: host memory. These wait for the stream.
void read_full_kv(Device& device, const KvShape& shape, FullKv source, int kv_head, int first,
                  int count, float* keys, float* values);
void write_full_kv(Device& device, const KvShape& shape, FullKv target, int kv_head, int first,
                   int count, const float* keys, const float* values);
void export_unit(Device& device, const KvShape& shape, int layer, int kv_head, PagePlanes page,
                 std::byte* upper, std::byte* lower);
void import_unit(Device& device, const KvShape& shape, int layer, int kv_head,
                 const std::byte* upper, const std::byte* lower, PagePlanes page);

// --- planes.cu -----------------------------------------------------------------------------------
PlaneBytes plane_bytes(int rows, int cols, const WeightFormat& format);
void make_planes(Device& device, const Matrix& elements, std::byte* upper, std::byte* lower);
// coded: host memory, read by the threads of `rows`.
void import_planes(Device& device, RowUpload& rows, const CodedMatrix& coded, std::byte* upper,
                   std::byte* lower);

// --- unpack_planes.cu ----------------------------------------------------------------------------
// Rows [first, first + count) of planes as a target reads them, rounded to bf16: padded_cols(cols)
// of each, zeros beyond cols, rows `stride` elements apart. `first` is a multiple of kTileRows;
// `out`: 16-byte aligned.
void unpack_rows(Device& device, const Matrix& matrix, int first, int count, std::byte* out,
                 int stride);

// --- decode_linear.cu: Phase::kDecode ------------------------------------------------------------
void decode_qkv(Device& device, const QkvParams& params);
void decode_add_linear(Device& device, const AddLinearParams& params);
void decode_gate_up(Device& device, const GateUpParams& params);
void head(Device& device, const HeadParams& params);
// What these take of Scratch::kBatch, kActivations and kOfRank at most, whatever the weights are
// in, and what attention takes of kOfRank.
struct DecodeScratch {
  std::size_t batch = 0, activations = 0, of_rank = 0;
};
DecodeScratch decode_scratch(const Device& device, const PassSizes& sizes,
                             const RankSharing& sharing);

// --- prefill_linear.cc: Phase::kPrefill ----------------------------------------------------------
inline constexpr int kPrefillRows = 1024;  // of an op: a chunk of a prompt
// Outputs whose weights are unpacked at a time: in 16 bits they take as many bytes as an op's rows
// of activations would in fp32.
inline constexpr int kUnpackedRows = 2 * kPrefillRows;
void prefill_qkv(Device& device, const QkvParams& params);
void prefill_add_linear(Device& device, const AddLinearParams& params);
void prefill_gate_up(Device& device, const GateUpParams& params);
// What prefill takes of Scratch::kActivations, kOfRank and kWorkspace, at most.
struct PrefillScratch {
  std::size_t activations, of_rank, workspace;
};
PrefillScratch prefill_scratch(const PrefillSizes& sizes);
// Takes it.
void reserve_prefill(Device& device, const PrefillSizes& sizes);

// --- embed.cu ------------------------------------------------------------------------------------
void embed(Device& device, const EmbedParams& params);

// --- rounds.cu -----------------------------------------------------------------------------------
// Of Scratch::kRounds, for the results of so many sequences.
std::size_t rounds_scratch_bytes(std::size_t sequences);
// results: host memory. By one copy; waits for the stream.
void download_rounds(Device& device, std::span<const Round* const> rounds,
                     std::span<Round> results);

}  // namespace quantspec::cuda
