// Full-precision K and V, and pages, of the CPU backend: the ops of backend.h that move between
// them or look at pages alone, and their conversion to canonical order. The orders are in
// packing.h.
//
// Thread-safety: as the backend's: one op at a time per pool.
#pragma once

#include <cstddef>
#include <span>

#include "backend/cpu/kernels_attention.h"
#include "backend/params/attention.h"
#include "base/thread_pool.h"

namespace quantspec::cpu {

// Throws kInvalidRequest for a head_dim or a page size that the kernels do not handle.
void check_shape(const KvShape& shape);

std::size_t full_kv_bytes(const KvShape& shape, int capacity);

// Backend::quantize_pages. REQUIRES: first_position is a multiple of 16.
void quantize_pages(const AttentionKernels& kernels, ThreadPool& pool, const KvShape& shape,
                    int first_layer, std::span<const FullKv> sources, int first_position,
                    std::span<const PagePlanes> pages);
void copy_full_kv(ThreadPool& pool, const KvShape& shape, FullKv source, FullKv target, int first,
                  int count);

// Backend::gather_full_kv.
void gather_full_kv(ThreadPool& pool, const KvShape& shape, FullKv source, FullKv target,
                    std::span<const int> positions, int first_slot);

// Backend::page_bounds: it reads the scales of the keys alone.
void page_bounds(const AttentionKernels& kernels, ThreadPool& pool, const PageBoundsParams& params);

void read_full_kv(const KvShape& shape, FullKv source, int kv_head, int first, int count,
                  float* keys, float* values);
void write_full_kv(const KvShape& shape, FullKv target, int kv_head, int first, int count,
                   const float* keys, const float* values);

void export_unit(const KvShape& shape, int layer, int kv_head, PagePlanes page, std::byte* upper,
                 std::byte* lower);
void import_unit(const KvShape& shape, int layer, int kv_head, const std::byte* upper,
                 const std::byte* lower, PagePlanes page);

}  // namespace quantspec::cpu
