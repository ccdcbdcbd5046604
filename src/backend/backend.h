// The backend: about fifteen coarse ops on plain data, one virtual call each. `reference` is the
// oracle (fp32, scalar, one equation one function); `cpu` is the fast one. Every op of every
// backend is tested against the reference.
//
// Thread-safety: one op at a time per backend object. Errors: kInvalidRequest for options that name
// what does not exist; internal checks otherwise.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/params.h"
#include "base/buffer.h"

namespace quantspec {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;         // as in --backend
  virtual std::string description() const = 0;  // for people: instruction set, threads

  // --- memory ---
  virtual Buffer allocate(std::size_t bytes) = 0;
  // Bytes of one layer's FullKv. Element size of full-precision K and V.
  virtual std::size_t full_kv_bytes(const KvShape& shape, int capacity) const = 0;

  // Bytes that the backend takes for itself in prefill, beyond what it is given to write to: for
  // matrices of up to this many inputs, and rows of that many floats between norm and output.
  virtual std::size_t scratch_bytes(int inputs, int row_floats) const = 0;

  // --- draft weights ---
  // Bytes of the upper (with scales) and of the lower plane of a [rows, cols] matrix.
  struct PlaneBytes {
    std::size_t upper;
    std::size_t lower;
  };
  virtual PlaneBytes plane_bytes(int rows, int cols, int group = kWeightGroup) const = 0;
  // Quantizes `full` (section 4 of docs/design.md) into the backend's order, in groups of
  // kWeightGroup; `lower` may be null.
  virtual void make_planes(const TensorView& full, std::byte* upper, std::byte* lower) = 0;
  // The same from codes that were made elsewhere, in groups of 64 or 128 inputs.
  virtual void import_planes(const CodedMatrix& coded, std::byte* upper, std::byte* lower) = 0;

  // --- one pass ---
  virtual void embed(const EmbedParams& params) = 0;
  virtual void qkv(const QkvParams& params) = 0;
  virtual void attention(const AttentionParams& params) = 0;
  virtual void page_bounds(const PageBoundsParams& params) = 0;
  virtual void prefill_attention(const PrefillAttentionParams& params) = 0;
  virtual void add_linear(const AddLinearParams& params) = 0;
  virtual void gate_up(const GateUpParams& params) = 0;
  virtual void head(const HeadParams& params) = 0;

  // --- KV, one layer ---
  // Quantizes positions [first_position, first_position + pages.size() * page_size) of `source`
  // into that layer of `pages`.
  virtual void quantize_pages(const KvShape& shape, int layer, FullKv source, int first_position,
                              std::span<const PagePlanes> pages) = 0;
  // The inverse, for a prompt that continues a cached prefix: dequantizes the pages (positions from
  // 0) into `target`.
  virtual void load_pages(const KvShape& shape, int layer, std::span<const PagePlanes> pages,
                          KvRead read, FullKv target) = 0;
  // Copies positions [first, first + count).
  virtual void copy_full_kv(const KvShape& shape, FullKv source, FullKv target, int first,
                            int count) = 0;

  // Copies, for every kv head, its `positions` ([num_kv_heads, n]) of `source` to the slots
  // [first_slot, first_slot + n) of `target`.
  virtual void gather_full_kv(const KvShape& shape, FullKv source, FullKv target,
                              std::span<const int> positions, int first_slot) = 0;

  // --- borders: canonical order (quant.h), for files, other backends and tests ---
  // Reads / writes K and V of one position and kv head as fp32: [head_dim] each. Writing rounds to
  // the backend's full precision.
  virtual void read_full_kv(const KvShape& shape, FullKv source, int kv_head, int position,
                            float* key, float* value) const = 0;
  virtual void write_full_kv(const KvShape& shape, FullKv target, int kv_head, int position,
                             const float* key, const float* value) = 0;
  // One unit of a page, from / to canonical order.
  virtual void export_unit(const KvShape& shape, int layer, int kv_head, PagePlanes page,
                           std::byte* upper, std::byte* lower) const = 0;
  virtual void import_unit(const KvShape& shape, int layer, int kv_head, const std::byte* upper,
                           const std::byte* lower, PagePlanes page) = 0;
};

struct BackendOptions {
  std::string name = "auto";  // auto | cpu | reference
  int num_threads = 0;        // 0: physical cores
};

// Throws kInvalidRequest naming the backends (or instruction sets) that exist here.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);

// The instruction sets that the cpu backend can use on this machine, best last. The environment
// variable QUANTSPEC_ISA names one to force, for tests.
std::vector<std::string> cpu_instruction_sets();

}  // namespace quantspec
