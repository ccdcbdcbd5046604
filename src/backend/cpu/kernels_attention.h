// The kernels of decode attention and of pages, one set per instruction set: plain functions on
// plain data, no threads, no allocation. The orchestration is in attention.cc and pages.cc; the
// orders of the planes and of full-precision K and V are in packing.h.
//
// A column is one query row of one query head; all columns of a call read the same kv head. Columns
// are independent: the bits of one do not depend on how many there are.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quantspec::cpu {

inline constexpr int kMaxHeadDim = 256;
inline constexpr int kMaxPageSize = 256;
inline constexpr int kFullBand = 256;  // full-precision positions between two softmax rescalings

// The running softmax of some columns over a part of the tokens: out is relative to `max`.
struct Partial {
  float* out;  // [num_columns, head_dim]: sum of 2^(score - max) * value
  float* max;  // [num_columns]
  float* sum;  // [num_columns]: sum of 2^(score - max)
};

struct Columns {
  const float* q;  // [num_columns, head_dim], times the softmax scale * log2(e)
  int num_columns;
  int head_dim;
  Partial partial;  // updated
};

// One unit of a page.
struct PageUnit {
  const std::uint8_t* upper;
  const std::uint8_t* lower;  // null: the upper plane alone is read (KvRead::kUpper)
};

struct PageShape {
  int head_dim;
  int page_size;
  int value_groups;  // of 128 channels
};

// What single pages added to the softmax: the sum of 2^(score - max) over a page's tokens, and the
// column's max after that page. Column i is i * stride floats further, page p is p floats further.
struct PageSums {
  float* sum = nullptr;  // null: not wanted
  float* max = nullptr;
  std::ptrdiff_t stride = 0;
};

struct AttendPage {
  PageUnit page;
  PageUnit next;  // what to prefetch meanwhile; null upper: nothing
  PageShape shape;
  Columns columns;
  PageSums sums;  // of this page; written where wanted
};

// Up to kFullBand consecutive tokens in full precision. Column i sees the first tokens[i] of them;
// tokens never decreases.
struct AttendFull {
  const std::uint16_t* key_blocks[kFullBand / 16];    // [head_dim, 16 tokens]
  const std::uint16_t* value_blocks[kFullBand / 16];  // [16 tokens, head_dim]
  const int* tokens;                                  // [num_columns]
  Columns columns;
  const std::uint16_t* next;  // the key block to prefetch at the end; or null
};

// result = sum over i of 2^(max[i] - M) out[i], over the same sum of sum[i]; M = the greatest max.
// Partial i is i * stride floats further. Where wanted, the probability that each page got is added
// to page_mass.
struct Merge {
  const float* out;  // [head_dim]
  const float* max;
  const float* sum;
  std::ptrdiff_t stride;
  int num_partials;
  int head_dim;
  float* result;  // [head_dim]
  PageSums sums;  // of this column, all pages
  int num_pages;
  float* page_mass;  // [num_pages], added to; null: not wanted
};

// PageBoundsParams for one page.
struct PageBound {
  const std::uint8_t* upper;
  const std::uint8_t* next;  // a unit whose scales to prefetch meanwhile
  PageShape shape;
  const float* q;  // [num_columns, head_dim]
  int num_columns;
};

struct QuantizeUnit {
  const std::uint16_t* const* key_blocks;    // [page_size / 16] blocks of [head_dim, 16 tokens]
  const std::uint16_t* const* value_blocks;  // [page_size / 16] blocks of [16 tokens, head_dim]
  PageShape shape;
  std::uint8_t* upper;
  std::uint8_t* lower;
};

// Dequantizes tokens [first, first + count) of a unit into panels of prefill attention (fp32, the
// values of quant.h's target_value()): keys [count / 16][head_dim][16], values
// [head_dim / 16][panel_tokens][16]. REQUIRES: first, count: multiples of 16; both planes.
struct LoadPanels {
  PageUnit page;
  PageShape shape;
  int first;
  int count;
  float* keys;
  float* values;
  int panel_tokens;
};

struct AttentionKernels {
  void (*attend_page)(const AttendPage&);
  void (*attend_full)(const AttendFull&);
  void (*merge)(const Merge&);
  float (*page_bound)(const PageBound&);
  void (*quantize_unit)(const QuantizeUnit&);
  void (*load_panels)(const LoadPanels&);
};

}  // namespace quantspec::cpu
