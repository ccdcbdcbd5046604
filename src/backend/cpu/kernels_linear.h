// The kernels of one instruction set for everything but decode attention and pages: plain functions
// on plain pointers, called for one piece of an op by one thread. Counts and strides are in
// elements. See kernels.h for what may be included here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/encode_kernels.h"

namespace quantspec::cpu {

// Where a linear layer's result goes: y[row * stride + output] = (accumulate ? y : 0) + bias + W x.
// What it is added to comes first: so bias and sum can come from different places (segments.h).
struct LinearOutput {
  float* y;
  std::ptrdiff_t stride;
  const float* bias;  // [outputs] or null
  bool accumulate;
};

// Where segments end (params/segments.h), in inputs, `count` of them. NOTE: numbers alone, for a
// function would be compiled for every instruction set.
struct SegmentEnds {
  int count;
  const int* at;
};
inline constexpr int kSegmentLevels = 3;  // sums that wait at most for others, of 8 segments

// Inputs that a full-precision kernel takes at once; the last block is padded with zeros.
inline constexpr int kInputBlock = 32;

// Some consecutive outputs of W x, W at full precision.
struct FullGemv {
  const void* weights;  // [outputs, inputs], any alignment
  int outputs;
  int inputs;
  SegmentEnds segments;  // in whole blocks of kInputBlock, but for the last
  const float* x;        // from `arrange` of the same DType
  int rows;
  LinearOutput out;
  const void* next;  // weights to prefetch at the end: those that this thread reads next; or null
};

// Rows of activations quantized for integer dots; see quantize_row in quantize-inl.h. A step has a
// record: its size, then from [n] on, for n = 1, 2, 4.., size * sum of the codes of each of n equal
// parts of its inputs. So weights in groups of any size find their sums, down to `step / parts`.
struct QuantizedRows {
  std::int8_t* codes;  // [rows, 2, padded]: high bytes, low bytes
  float* records;      // [rows, steps, 2 * parts]
  int padded;          // inputs rounded up to 32
  int step;            // inputs of one step: 64 or 128
  int steps;
  int parts;
};

// How parameters and codes lie in planes (order: weight_planes.h).
struct PlaneFormat {
  int lower_bits;              // of a code: 0, 1, 2 or 4
  const std::uint8_t* values;  // [16] what codes stand for, plus 128; null: for themselves
  int group;                   // inputs of one scale
  int span_groups;             // groups behind one header
  int header_bytes;
  bool two_levels;
  bool has_offset;
};

// Some consecutive outputs of W x, W from its planes.
struct PlaneGemv {
  PlaneFormat format;
  const std::byte* upper;  // both at the block of 16 outputs that begins with the first output
  const std::byte* lower;
  std::ptrdiff_t upper_bytes;  // of a block
  std::ptrdiff_t lower_bytes;
  bool split;    // all planes, by activations of two bytes; else the upper one, by one byte
  float factor;  // a weight is scale * (factor * code + centre) + offset
  float centre;
  int outputs;
  int inputs;
  SegmentEnds segments;  // in whole spans and whole steps of x, but for the last
  QuantizedRows x;
  int rows;
  LinearOutput out;
  const std::byte* next_upper;  // to prefetch at the end, as in FullGemv; or null, both
  const std::byte* next_lower;
};

// The weights of some of 16 outputs: out[i * stride + input] for output first + i of a block.
struct PlaneUnpack {
  PlaneFormat format;
  const std::byte* upper;  // of the block
  const std::byte* lower;
  float unit;  // a weight is (unit * scale) * (code - zero) + offset
  int zero;
  int inputs;
  int first;
  int outputs;
  float* out;
  std::ptrdiff_t stride;
};

// C[row][16 p + lane] = (accumulate ? C : 0) + sum over k of A[row][k] * panels[p][k][lane]
struct PanelGemm {
  const float* a;
  std::ptrdiff_t a_stride;
  int rows;
  const float* panels;
  std::ptrdiff_t panel_stride;
  int num_panels;
  int depth;
  float* c;
  std::ptrdiff_t c_stride;
  bool accumulate;
};

struct LinearKernels {
  // --- by DType: fp32, fp16, bf16 ---
  void (*full_gemv[3])(const FullGemv&);
  // Inputs [rows, inputs] in full_gemv's own order. out: [rows, inputs rounded up to kInputBlock].
  void (*arrange[3])(const float* x, int rows, int inputs, float* out);
  void (*to_f32[3])(const void* in, int count, float* out);

  // --- elementwise ---
  void (*to_f16)(const float* in, int count, std::uint16_t* out);
  // out = x * weight / sqrt(mean(x^2) + epsilon); out may be x.
  void (*rms_norm)(const float* x, const float* weight, float epsilon, int count, float* out);
  // Rotates the pairs (c, c + head_dim / 2) of one head; cos, sin: [head_dim / 2].
  void (*rope)(float* x, const float* cos, const float* sin, int head_dim);
  // gate = silu(gate) * up
  void (*silu_mul)(float* gate, const float* up, int count);
  // out = factor * x; out may be x.
  void (*scale)(const float* x, float factor, int count, float* out);
  void (*add)(const float* x, int count, float* out);  // out += x

  // --- weights from planes ---
  // `split`: codes of 15 bits instead of 8.
  void (*quantize_row)(const float* x, int inputs, bool split, const QuantizedRows& out, int row);
  void (*plane_gemv)(const PlaneGemv&);
  void (*unpack_planes)(const PlaneUnpack&);
  EncodeKernels encode;  // elements into planes

  // --- prefill attention ---
  void (*panel_gemm)(const PanelGemm&);
  // Values [tokens, dim] of fp16 into panels [dim / 16][panel_tokens][16].
  void (*value_panels)(const std::uint16_t* values, int tokens, int dim, int panel_tokens,
                       float* panels);
  // One step of the online softmax: scores become probabilities relative to the new *max, those
  // from `visible` to `width` become 0; *sum follows. Returns what earlier results must be scaled
  // by.
  float (*softmax_step)(float* scores, int visible, int width, float* max, float* sum);
};

}  // namespace quantspec::cpu
