// The ops of backend.h on this machine's cores: each one a few calls into linear, attention and
// pages, with the small per-row work in between. Scratch grows to the largest op seen.
#pragma once

#include "backend/cpu/attention.h"
#include "backend/cpu/context.h"
#include "backend/cpu/isa.h"
#include "backend/host/host.h"
#include "backend/params/pass.h"

namespace quantspec::cpu {

class CpuBackend final : public HostBackend {
 public:
  CpuBackend(Isa isa, int num_threads, Communicator* ranks = nullptr, RankGroups groups = {});

  std::string name() const override { return "cpu"; }
  std::string description() const override;

  std::size_t full_kv_bytes(const KvShape& shape, int capacity) const override;
  int full_kv_strips() const override { return 2; }

  std::size_t scratch_bytes(const PrefillSizes& sizes) const override;
  PlaneBytes plane_bytes(int rows, int cols, const WeightFormat& format) const override;
  RowEncoder encoder() const override;
  void make_planes(const Matrix& elements, const WeightFormat& format, std::byte* upper,
                   std::byte* lower) override;
  void import_planes(const CodedMatrix& coded, std::byte* upper, std::byte* lower) override;

  void embed(const EmbedParams& params) override;
  void qkv(const QkvParams& params) override;
  void attention(const AttentionParams& params) override;
  void page_bounds(const PageBoundsParams& params) override;
  void prefill_attention(const PrefillAttentionParams& params) override;
  void add_linear(const AddLinearParams& params) override;
  void gate_up(const GateUpParams& params) override;
  void head(const HeadParams& params) override;

  void quantize_pages(const KvShape& shape, int first_layer, std::span<const FullKv> sources,
                      int first_position, std::span<const PagePlanes> pages) override;
  void copy_full_kv(const KvShape& shape, FullKv source, FullKv target, int first,
                    int count) override;
  void gather_full_kv(const KvShape& shape, FullKv source, FullKv target,
                      std::span<const int> positions, int first_slot) override;
  void read_full_kv(const KvShape& shape, FullKv source, int kv_head, int first, int count,
                    float* keys, float* values) const override;
  void write_full_kv(const KvShape& shape, FullKv target, int kv_head, int first, int count,
                     const float* keys, const float* values) override;
  void export_unit(const KvShape& shape, int layer, int kv_head, PagePlanes page, std::byte* upper,
                   std::byte* lower) const override;
  void import_unit(const KvShape& shape, int layer, int kv_head, const std::byte* upper,
                   const std::byte* lower, PagePlanes page) override;

 private:
  Buffer make_buffer(std::size_t bytes) override;
  Context context() { return {pool_, kernels_, scratch_}; }
  const LinearKernels& linear() const { return kernels_.linear; }

  // norm(x) for all rows, in scratch; x itself where there is no norm.
  const float* normed(const Norm& norm, const float* x, int num_rows, int width);
  void finish_queries(const QkvParams& params);
  void append_keys_values(const QkvParams& params, float* keys, const float* values);

  Isa isa_;
  const Kernels& kernels_;
  ThreadPool pool_;
  Scratch scratch_;
  DecodeAttention attention_;
};

}  // namespace quantspec::cpu
