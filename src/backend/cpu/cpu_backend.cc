#include "backend/cpu/cpu_backend.h"

#include <fmt/format.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/packing.h"
#include "backend/cpu/pages.h"
#include "backend/cpu/prefill.h"
#include "backend/cpu/prefill_attention.h"
#include "backend/cpu/weight_planes.h"
#include "backend/params/pass.h"
#include "base/error.h"
#include "quant/encode_row.h"

namespace quantspec::cpu {

CpuBackend::CpuBackend(Isa isa, int num_threads, Communicator* ranks, RankGroups groups)
    : HostBackend(ranks, groups),
      isa_(isa),
      kernels_(kernels(isa)),
      pool_(num_threads > 0 ? num_threads : num_physical_cores()),
      scratch_(pool_.num_threads()),
      attention_(kernels_.attention, pool_, context_group()) {}

std::string CpuBackend::description() const {
  return fmt::format("cpu ({}, {} thread{})", name_of(isa_), pool_.num_threads(),
                     pool_.num_threads() == 1 ? "" : "s");
}

// NOTE: a huge page is one memory node's, and mixes K and V of many heads: with several nodes, only
// weight planes ask for huge pages.
Buffer CpuBackend::make_buffer(std::size_t bytes) {
  return Buffer(bytes, pool_.num_nodes() == 1 ? HugePages::kFrom2MiB : HugePages::kNever);
}

std::size_t CpuBackend::full_kv_bytes(const KvShape& shape, int capacity) const {
  return cpu::full_kv_bytes(shape, capacity);
}

// --- weights -------------------------------------------------------------------------------------

std::size_t CpuBackend::scratch_bytes(const PrefillSizes& sizes) const {
  return sizeof(float) * sizes.row_floats +
         prefill_bytes(kernels_, pool_.num_threads(), prefill_rows(), sizes.inputs);
}

PlaneBytes CpuBackend::plane_bytes(int rows, int cols, const WeightFormat& format) const {
  return weight_plane_bytes(rows, cols, format);
}

RowEncoder CpuBackend::encoder() const {
  return {sliced_format(kFineGroup), kernels_.linear.encode};
}

void CpuBackend::make_planes(const Matrix& elements, const WeightFormat& format, std::byte* upper,
                             std::byte* lower) {
  make_weight_planes(context(), elements, format, upper, lower);
}

void CpuBackend::import_planes(const CodedMatrix& coded, std::byte* upper, std::byte* lower) {
  import_weight_planes(context(), coded, upper, lower);
}

// --- one pass ------------------------------------------------------------------------------------

void CpuBackend::embed(const EmbedParams& p) {
  const Matrix& table = p.table;
  for (const SequenceRows& rows : p.sequences) {
    const TokenId* tokens = rows.tokens + (rows.first_position - rows.first_token);
    for_rows(pool_, rows.num_rows, [&](int i) {
      check(tokens[i] >= 0 && tokens[i] < table.rows, "a token is in the vocabulary");
      read_weight_rows(linear(), table, tokens[i], 1,
                       p.out + std::size_t(rows.first_row + i) * table.cols);
    });
  }
  if (p.cos != nullptr) copy_angles(p);
}

const float* CpuBackend::normed(const Norm& norm, const float* x, int num_rows, int width) {
  if (norm.weight == nullptr) return x;
  float* out = scratch_.get<float>(Scratch::kNormed, static_cast<std::size_t>(num_rows) * width);
  for_rows(pool_, num_rows, [&](int row) {
    const std::size_t first = static_cast<std::size_t>(row) * width;
    linear().rms_norm(x + first, norm.weight, norm.epsilon, width, out + first);
  });
  return out;
}

void CpuBackend::qkv(const QkvParams& p) {
  check_shape(p.shape);
  const bool wants_kv = !p.sequences.empty();
  const std::size_t kv_width = static_cast<std::size_t>(p.shape.num_kv_heads) * p.shape.head_dim;
  Projection projections[3];
  int count = 0;
  float* keys = nullptr;
  float* values = nullptr;
  if (p.q_out != nullptr) projections[count++] = {p.q, p.q_out};
  if (wants_kv) {
    keys = scratch_.get<float>(Scratch::kKeys, p.num_rows * kv_width);
    values = scratch_.get<float>(Scratch::kValues, p.num_rows * kv_width);
    projections[count++] = {p.k, keys};
    projections[count++] = {p.v, values};
  }
  if (count == 0 || p.num_rows == 0) return;
  const int hidden = projections[0].linear->inputs();
  project(context(), {.phase = p.phase,
                      .weights = p.weights,
                      .x = normed(p.norm, p.x, p.num_rows, hidden),
                      .rows = p.num_rows,
                      .projections = {projections, static_cast<std::size_t>(count)}});
  if (p.q_out != nullptr) finish_queries(p);
  if (wants_kv) append_keys_values(p, keys, values);
}

namespace {

// Per-head norm and rotation of one row of queries or keys.
void finish_heads(const LinearKernels& kernels, const QkvParams& p, const Norm& norm, int row,
                  int num_heads, float* x) {
  const int dim = p.shape.head_dim;
  const std::size_t angle = static_cast<std::size_t>(row) * (dim / 2);
  for (int head = 0; head < num_heads; ++head, x += dim) {
    if (norm.weight != nullptr) kernels.rms_norm(x, norm.weight, norm.epsilon, dim, x);
    kernels.rope(x, p.cos + angle, p.sin + angle, dim);
  }
}

}  // namespace

void CpuBackend::finish_queries(const QkvParams& p) {
  const std::size_t width = static_cast<std::size_t>(p.num_heads) * p.shape.head_dim;
  for_rows(pool_, p.num_rows, [&](int row) {
    finish_heads(linear(), p, p.q_norm, row, p.num_heads, p.q_out + row * width);
  });
}

void CpuBackend::append_keys_values(const QkvParams& p, float* keys, const float* values) {
  const KvShape& shape = p.shape;
  const std::size_t width = static_cast<std::size_t>(shape.num_kv_heads) * shape.head_dim;
  for (const SequenceRows& sequence : p.sequences) {
    const FullKv& full = sequence.kv.full;
    auto* target = reinterpret_cast<std::uint16_t*>(full.data);
    for_rows(pool_, sequence.num_rows, [&](int i) {
      const int row = sequence.first_row + i;
      const int slot = (sequence.first_position + i) % full.capacity;
      float* row_keys = keys + row * width;
      const float* row_values = values + row * width;
      finish_heads(linear(), p, p.k_norm, row, shape.num_kv_heads, row_keys);
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        std::uint16_t key[kMaxHeadDim];
        linear().to_f16(row_keys + head * shape.head_dim, shape.head_dim, key);
        std::uint16_t* column = target + full_key_index(shape, full.capacity, head, slot, 0);
        for (int c = 0; c < shape.head_dim; ++c) column[16 * c] = key[c];
        linear().to_f16(row_values + head * shape.head_dim, shape.head_dim,
                        target + full_value_row(shape, full.capacity, head, slot));
      }
    });
  }
}

void CpuBackend::attention(const AttentionParams& p) { attention_.run(p); }

void CpuBackend::page_bounds(const PageBoundsParams& p) {
  cpu::page_bounds(kernels_.attention, pool_, p);
}

void CpuBackend::prefill_attention(const PrefillAttentionParams& p) {
  const LayerPages pages = pages_of_queries(p);
  attend_in_parts(p, [&](const PrefillAttentionParams& part) {
    cpu::prefill_attention(context(), part, pages, own_kv_heads(p.shape));
  });
}

void CpuBackend::add_linear(const AddLinearParams& p) {
  if (p.num_rows == 0) return;
  const auto count = static_cast<std::size_t>(p.num_rows) * p.linear->outputs();
  Linear linear = *p.linear;
  float* y = p.x;
  if (adds_sums()) {
    linear.bias = nullptr;
    y = scratch_.get<float>(Scratch::kShared, count);
  }
  const Projection projection = {&linear, y};
  project(context(), {.phase = p.phase,
                      .weights = p.weights,
                      .x = p.in,
                      .rows = p.num_rows,
                      .projections = {&projection, 1},
                      .accumulate = !adds_sums()});
  if (adds_sums()) add_sums(p, {y, count});
}

void CpuBackend::gate_up(const GateUpParams& p) {
  if (p.num_rows == 0) return;
  const int width = p.gate->outputs();
  float* up = scratch_.get<float>(Scratch::kUp, static_cast<std::size_t>(p.num_rows) * width);
  const Projection projections[] = {{p.gate, p.out}, {p.up, up}};
  project(context(), {.phase = p.phase,
                      .weights = p.weights,
                      .x = normed(p.norm, p.x, p.num_rows, p.gate->inputs()),
                      .rows = p.num_rows,
                      .projections = projections});
  for_rows(pool_, p.num_rows, [&](int row) {
    const std::size_t first = static_cast<std::size_t>(row) * width;
    linear().silu_mul(p.out + first, up + first, width);
  });
}

void CpuBackend::head(const HeadParams& p) {
  if (p.num_rows == 0) return;
  const auto count = static_cast<std::size_t>(p.num_rows) * p.head->outputs();
  float* logits = adds_sums() ? scratch_.get<float>(Scratch::kShared, count) : p.logits;
  const Projection projection = {p.head, logits};
  project(context(), {.phase = Phase::kDecode,
                      .weights = p.weights,
                      .x = normed(p.norm, p.x, p.num_rows, p.head->inputs()),
                      .rows = p.num_rows,
                      .projections = {&projection, 1}});
  if (adds_sums()) gather_logits(p, {logits, count});
}

// --- KV, one layer -------------------------------------------------------------------------------

void CpuBackend::quantize_pages(const KvShape& shape, int first_layer,
                                std::span<const FullKv> sources, int first_position,
                                std::span<const PagePlanes> pages) {
  cpu::quantize_pages(kernels_.attention, pool_, shape, first_layer, sources, first_position,
                      pages);
}

void CpuBackend::copy_full_kv(const KvShape& shape, FullKv source, FullKv target, int first,
                              int count) {
  cpu::copy_full_kv(pool_, shape, source, target, first, count);
}

void CpuBackend::gather_full_kv(const KvShape& shape, FullKv source, FullKv target,
                                std::span<const int> positions, int first_slot) {
  cpu::gather_full_kv(pool_, shape, source, target, positions, first_slot);
}

void CpuBackend::read_full_kv(const KvShape& shape, FullKv source, int kv_head, int first,
                              int count, float* keys, float* values) const {
  cpu::read_full_kv(shape, source, kv_head, first, count, keys, values);
}

void CpuBackend::write_full_kv(const KvShape& shape, FullKv target, int kv_head, int first,
                               int count, const float* keys, const float* values) {
  cpu::write_full_kv(shape, target, kv_head, first, count, keys, values);
}

void CpuBackend::export_unit(const KvShape& shape, int layer, int kv_head, PagePlanes page,
                             std::byte* upper, std::byte* lower) const {
  cpu::export_unit(shape, layer, kv_head, page, upper, lower);
}

void CpuBackend::import_unit(const KvShape& shape, int layer, int kv_head, const std::byte* upper,
                             const std::byte* lower, PagePlanes page) {
  cpu::import_unit(shape, layer, kv_head, upper, lower, page);
}

std::unique_ptr<Backend> make_cpu_backend(int num_threads, Communicator* ranks, RankGroups groups) {
  return std::make_unique<CpuBackend>(choose_isa(), num_threads, ranks, groups);
}

}  // namespace quantspec::cpu
