// The kernels of ranks.h.
#include "backend/cuda/context.h"
#include "backend/cuda/device.h"
#include "backend/cuda/layout.h"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/ranks_kernel.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

// How long this thread has waited.
class Watch {
 public:
  __device__ Watch(const RankPlaces& places)
      : places_(places), over_(load_system(&places.counts->given_up) != 0) {}

  // Whether to wait no longer for words of a rank that are not there.
  __device__ bool is_over(int rank) {
    if (over_) return true;
    if (++looks_ % kLooks != 0) return false;
    const std::uint64_t now = nanoseconds();
    if (since_ == 0) since_ = now;
    const int left = load_system(&places_.signs->left);
    const bool late = now - since_ > places_.patience;
    if (left == 0 && !late && load_system(&places_.counts->given_up) == 0) return false;
    over_ = true;
    if (left != 0 || late) give_up(left != 0 ? left : 1 + places_.ids[rank]);
    return false;  // one more look: who left may have sent before
  }

 private:
  static constexpr int kLooks = 1024;  // at a word; about a millisecond
  __device__ void give_up(int missing) {
    store_system(&places_.signs->missing, missing);
    store_system(&places_.counts->given_up, 1);
  }

  const RankPlaces& places_;
  bool over_;
  int looks_ = 0;
  std::uint64_t since_ = 0;
};

// A balanced tree, ((0 + 1) + (2 + 3)).
template <int kRanks>
__device__ __forceinline__ float4 tree_sum(float4 (&parts)[kRanks]) {
#pragma unroll
  for (int step = 1; step < kRanks; step *= 2) {
#pragma unroll
    for (int rank = 0; rank < kRanks; rank += 2 * step) {
      const float4 other = parts[rank + step];
      parts[rank].x += other.x;
      parts[rank].y += other.y;
      parts[rank].z += other.z;
      parts[rank].w += other.w;
    }
  }
  return parts[0];
}

// Which elements a quad is of: up to four of a row, or, where rows are no whole quads, of two.
struct Rows {
  unsigned outputs;
  unsigned count;  // of elements
  bool quads;      // rows are whole quads, 16-byte aligned

  // Calls f(index of the quad's element, row, output).
  template <typename F>
  __device__ __forceinline__ void for_each(unsigned quad, const F& f) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned element = 4 * quad + i;
      if (element < count) f(i, element / outputs, element % outputs);
    }
  }
};

__device__ __forceinline__ float& at(float4& x, int i) {
  return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}

// Nothing but that all have come; what they wrote before can be read.
struct Meeting {
  static constexpr bool kFences = true, kSame = true;
  Rows rows{.outputs = 4, .count = 4, .quads = true};
  const float4* own;
  __device__ __forceinline__ float4 given(unsigned quad, int) const { return __ldcg(own + quad); }

  struct Ahead {};
  __device__ __forceinline__ Ahead ahead(unsigned) const { return {}; }
  template <int kRanks>
  __device__ __forceinline__ void use(unsigned, Ahead, float4 (&)[kRanks]) const {
    __threadfence_system();
  }
};

// x = sum + (bias + x), as finish_plain() of linear_finish.cuh has it.
struct Add {
  Rows rows;
  const float4* own;
  const float* bias;
  float* x;

  static constexpr bool kFences = false, kSame = true;
  __device__ __forceinline__ float4 given(unsigned quad, int) const { return __ldcg(own + quad); }
  using Ahead = float4;  // bias + x
  __device__ __forceinline__ float4 ahead(unsigned quad) const {
    float4 to{};
    if (rows.quads) {
      const float4 there = __ldcg(reinterpret_cast<const float4*>(x) + quad);
      if (bias != nullptr) {
        to = *reinterpret_cast<const float4*>(bias + 4 * quad % rows.outputs);
      }
      return {to.x + there.x, to.y + there.y, to.z + there.z, to.w + there.w};
    }
    rows.for_each(quad, [&](int i, unsigned row, unsigned output) {
      at(to, i) = (bias == nullptr ? 0.0f : bias[output]) + __ldcg(x + row * rows.outputs + output);
    });
    return to;
  }
  template <int kRanks>
  __device__ __forceinline__ void use(unsigned quad, float4 to, float4 (&parts)[kRanks]) const {
    float4 sum = tree_sum(parts);
    sum = {sum.x + to.x, sum.y + to.y, sum.z + to.z, sum.w + to.w};
    if (rows.quads) {
      reinterpret_cast<float4*>(x)[quad] = sum;
      return;
    }
    rows.for_each(quad, [&](int i, unsigned row, unsigned output) {
      x[row * rows.outputs + output] = at(sum, i);
    });
  }
};

// Rows side by side.
struct Gather {
  Rows rows;
  const float4* own;
  float* all;

  static constexpr bool kFences = false, kSame = true;
  __device__ __forceinline__ float4 given(unsigned quad, int) const { return __ldcg(own + quad); }
  struct Ahead {};
  __device__ __forceinline__ Ahead ahead(unsigned) const { return {}; }
  template <int kRanks>
  __device__ __forceinline__ void use(unsigned quad, Ahead, float4 (&parts)[kRanks]) const {
    const auto place = [&](int rank, unsigned row, unsigned output) {
      return all + (static_cast<std::size_t>(row) * kRanks + rank) * rows.outputs + output;
    };
    if (rows.quads) {
      const unsigned row = 4 * quad / rows.outputs, output = 4 * quad % rows.outputs;
#pragma unroll
      for (int rank = 0; rank < kRanks; ++rank) {
        *reinterpret_cast<float4*>(place(rank, row, output)) = parts[rank];
      }
      return;
    }
    rows.for_each(quad, [&](int i, unsigned row, unsigned output) {
#pragma unroll
      for (int rank = 0; rank < kRanks; ++rank) *place(rank, row, output) = at(parts[rank], i);
    });
  }
};

// Partial results of attention, to who has their queries: of each split and column, rows in quads,
// then one of the exponent and the sum.
struct Partials {
  RankPartials of;
  unsigned quads;  // of a split's column
  int rank;
  Rows rows;

  struct Place {
    unsigned quad, column, place, head, sequence;  // head of the getter
  };
  __device__ __forceinline__ Place place(unsigned index) const {
    Place at;
    const auto next = [&](unsigned size) {
      const unsigned here = index % size;
      index /= size;
      return here;
    };
    at.quad = next(quads);
    at.column = next(of.columns);
    at.place = next(of.places);
    at.head = next(of.each);
    at.sequence = index;
    return at;
  }
  // Which split a giver has there for a getter; splits.all(): none.
  __device__ __forceinline__ int split(const Place& at, int giver, int getter, int ranks) const {
    const int unit = of.first_unit + getter / of.alike * of.each + static_cast<int>(at.head);
    return of.splits.in_place(at.place, first_split(giver, unit, ranks));
  }

  static constexpr bool kFences = false, kSame = false;
  __device__ __forceinline__ float4 given(unsigned index, int getter) const {
    const Place at = place(index);
    if (split(at, rank, getter, of.splits.ranks) == of.splits.all()) return {};  // nobody wrote it
    const unsigned head = getter / of.alike * of.each + at.head;
    const unsigned block = at.column / of.block_columns, column = at.column % of.block_columns;
    const std::size_t from =
        (((std::size_t{at.sequence} * of.heads + head) * of.column_blocks + block) * of.places +
         at.place) *
            of.block_columns +
        column;
    if (at.quad + 1 < quads) {
      return __ldcg(reinterpret_cast<const float4*>(of.rows + from * of.head_dim) + at.quad);
    }
    const float2 sums = __ldcg(of.sums + from);
    return {sums.x, sums.y, 0.0f, 0.0f};
  }
  struct Ahead {};
  __device__ __forceinline__ Ahead ahead(unsigned) const { return {}; }
  template <int kRanks>
  __device__ __forceinline__ void use(unsigned index, Ahead, float4 (&parts)[kRanks]) const {
    const Place at = place(index);
    const std::size_t row = std::size_t{at.sequence} * of.each + at.head;
#pragma unroll
    for (int giver = 0; giver < kRanks; ++giver) {
      const int whose = split(at, giver, rank, kRanks);
      if (whose == of.splits.all()) continue;  // what was given is nothing's
      const std::size_t to = (row * of.splits.all() + whose) * of.columns + at.column;
      if (at.quad + 1 < quads) {
        reinterpret_cast<float4*>(of.all_rows + to * of.head_dim)[at.quad] = parts[giver];
      } else {
        of.all_sums[to] = {parts[giver].x, parts[giver].y};
      }
    }
  }
};

// What all ranks have, quad by quad (kSame: to all the same): what is given to this one, and what
// the others sent. A thread sends the quads that it takes, in every step: so what it took before is
// what others may send next.
template <int kRanks, typename Op>
__global__ void __launch_bounds__(kRankThreads)
    exchange(const __grid_constant__ RankPlaces places, unsigned quads,
             const __grid_constant__ Op op) {
  wait_for_previous_kernels();
  // Not where products of other ranks may need what the next kernel's blocks would take.
  if (places.alone) let_next_kernel_start();
  const unsigned threads = gridDim.x * kRankThreads;
  const unsigned thread = blockIdx.x * kRankThreads + threadIdx.x;
  std::uint32_t step = __ldcg(&places.steps[blockIdx.x]);
  Watch watch(places);
  // Pieces are of equal size, so that each thread has a part in each: see above.
  const unsigned pieces = (quads + kPieceQuads - 1) / kPieceQuads;
  const unsigned piece = pieces > 0 ? (quads + pieces - 1) / pieces : 0;
  for (unsigned first = 0; first < quads; first += piece, ++step) {
    // Places are zero again before anybody learns of it.
    if (Op::kFences || first > 0) __threadfence_system();
    const unsigned count = min(quads - first, piece);
    const unsigned slot = step % 2 * kRanks * kPieceQuads;
    const unsigned mine = slot + places.rank * kPieceQuads;
#pragma unroll 4
    for (unsigned i = thread; i < count; i += threads) {
      float4 words{};
      if constexpr (Op::kSame) words = nonzero(op.given(first + i, 0));
#pragma unroll
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank == places.rank) continue;
        if constexpr (!Op::kSame) words = nonzero(op.given(first + i, rank));
        store_system(places.inboxes[rank] + mine + i, words);
      }
    }
    float4* const inbox = places.inboxes[places.rank] + slot;
    constexpr int kBatch = kMostRanks / kRanks;  // quads whose loads are under way together
#pragma unroll 1
    for (unsigned base = thread; base < count; base += kBatch * threads) {
      float4 parts[kBatch][kRanks];
      typename Op::Ahead ahead[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const unsigned i = base + k * threads;
        if (i >= count) break;
#pragma unroll
        for (int rank = 0; rank < kRanks; ++rank) {
          parts[k][rank] = rank == places.rank ? op.given(first + i, rank)
                                               : load_system(inbox + rank * kPieceQuads + i);
        }
        ahead[k] = op.ahead(first + i);
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const unsigned i = base + k * threads;
        if (i >= count) break;
#pragma unroll
        for (int rank = 0; rank < kRanks; ++rank) {
          if (rank == places.rank) continue;
          float4& part = parts[k][rank];
          float4* const from = inbox + rank * kPieceQuads + i;
          while (!is_there(part) && !watch.is_over(rank)) part = load_system(from);
          store_system(from, {0.0f, 0.0f, 0.0f, 0.0f});
          part = {part.x + 0.0f, part.y + 0.0f, part.z + 0.0f, part.w + 0.0f};  // -0 was 0
        }
        op.use(first + i, ahead[k], parts[k]);
      }
    }
  }
  if (!places.alone) let_next_kernel_start();
  __syncthreads();
  if (threadIdx.x == 0) places.steps[blockIdx.x] = step;
}

// A copy for each y; a word is what all addresses are multiples of.
template <typename Word>
__global__ void __launch_bounds__(kRankThreads) copy(const __grid_constant__ RowCopies copies) {
  const RowCopy& one = copies.of[blockIdx.y];
  const auto words = static_cast<unsigned>(one.bytes / sizeof(Word));
  const unsigned count = words * copies.rows;
  const auto* const from = static_cast<const std::byte*>(one.from);
  auto* const to = static_cast<std::byte*>(one.to);
#pragma unroll 4
  for (unsigned i = blockIdx.x * kRankThreads + threadIdx.x; i < count;
       i += gridDim.x * kRankThreads) {
    const unsigned row = i / words, at = i % words * static_cast<unsigned>(sizeof(Word));
    *reinterpret_cast<Word*>(to + row * one.to_stride + at) =
        __ldcg(reinterpret_cast<const Word*>(from + row * one.from_stride + at));
  }
}

// f.operator()<size>()
template <typename F>
void with_ranks(int size, const F& f) {
  switch (size) {
    case 2:
      return f.template operator()<2>();
    case 4:
      return f.template operator()<4>();
    case 8:
      return f.template operator()<8>();
  }
  check(false, "ranks are 2, 4 or 8");
}

Rows rows_of(std::size_t rows, int outputs, const void* to) {
  const std::size_t count = rows * outputs;
  check(count < std::size_t{1} << 31, "ranks exchange less than 2^31 numbers at a time");
  const bool quads = outputs % 4 == 0 && reinterpret_cast<std::uintptr_t>(to) % 16 == 0;
  return {static_cast<unsigned>(outputs), static_cast<unsigned>(count), quads};
}

template <typename Op>
void launch(const RankPlaces& places, const Device& device, OpOrder order, const Op& op) {
  cudaLaunchConfig_t config{};
  config.gridDim = places.blocks;
  config.blockDim = kRankThreads;
  config.stream = device.stream();
  cudaLaunchAttribute attribute = launch_attribute(device, order);
  config.attrs = &attribute;
  config.numAttrs = device.capability() >= 90 ? 1 : 0;
  with_ranks(places.size, [&]<int kRanks>() {
    QUANTSPEC_CUDA(
        cudaLaunchKernelEx(&config, exchange<kRanks, Op>, places, (op.rows.count + 3) / 4, op));
  });
}

}  // namespace

void launch_add_sums(const RankPlaces& places, const Device& device, const float* sums,
                     const float* bias, int rows, int outputs, float* x) {
  Rows of = rows_of(rows, outputs, x);
  of.quads = of.quads && reinterpret_cast<std::uintptr_t>(bias) % 16 == 0;
  launch(places, device, OpOrder::kOverlaps,
         Add{of, reinterpret_cast<const float4*>(sums), bias, x});
}

void launch_gather(const RankPlaces& places, const Device& device, const float* own, int rows,
                   int outputs, float* all) {
  launch(places, device, OpOrder::kOverlaps,
         Gather{rows_of(rows, outputs, all), reinterpret_cast<const float4*>(own), all});
}

void launch_partials(const RankPlaces& places, const Device& device, const RankPartials& partials) {
  const int quads = partials.head_dim / 4 + 1;
  const std::size_t columns = static_cast<std::size_t>(partials.sequences) * partials.each *
                              partials.places * partials.columns;
  launch(places, device, OpOrder::kOverlaps,
         Partials{partials, static_cast<unsigned>(quads), places.rank,
                  rows_of(columns, 4 * quads, nullptr)});
}

void launch_meeting(const RankPlaces& places, const Device& device) {
  launch(places, device, OpOrder::kAfter, Meeting{.own = &places.counts->greeting});
}

void launch_copies(const RowCopies& copies, cudaStream_t stream) {
  constexpr int kBlocks = 264;  // of all copies: two for each multiprocessor of a large GPU
  std::uintptr_t all = 0;
  std::size_t bytes = 0;
  for (int i = 0; i < copies.count; ++i) {
    const RowCopy& one = copies.of[i];
    all |= reinterpret_cast<std::uintptr_t>(one.from) | one.from_stride |
           reinterpret_cast<std::uintptr_t>(one.to) | one.to_stride | one.bytes;
    bytes += one.bytes * copies.rows;
  }
  if (bytes == 0) return;
  check(bytes < std::size_t{1} << 32, "ranks copy less than 4 GiB at a time");
  const dim3 grid(divide_up(kBlocks, copies.count), copies.count);
  if (all % sizeof(uint4) == 0) {
    copy<uint4><<<grid, kRankThreads, 0, stream>>>(copies);
  } else {
    copy<unsigned><<<grid, kRankThreads, 0, stream>>>(copies);
  }
  require_launch("launch_copies");
}

void load_rank_kernels(int size) {
  const auto load = [&](auto* kernel) {
    cudaFuncAttributes attributes;
    QUANTSPEC_CUDA(cudaFuncGetAttributes(&attributes, kernel));
  };
  with_ranks(size, [&]<int kRanks>() {
    load(exchange<kRanks, Add>);
    load(exchange<kRanks, Gather>);
    load(exchange<kRanks, Partials>);
    load(exchange<kRanks, Meeting>);
  });
}

}  // namespace quantspec::cuda
