#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/host/host.h"
#include "backend/params/attention.h"
#include "backend/params/pass.h"
#include "backend/reference/ops.h"
#include "backend/reference/reference.h"
#include "base/error.h"
#include "quant/encode_row.h"

namespace quantspec::reference {

namespace {

float silu(float x) { return x / (1.0f + std::exp(-x)); }

// Per-head norm (when there is one) and RoPE of rows of projected queries or keys,
// [num_rows, num_heads * head_dim].
void norm_and_rotate(const QkvParams& params, const Norm& norm, int num_heads, float* heads) {
  const int dim = params.shape.head_dim;
  for (int row = 0; row < params.num_rows; ++row) {
    const std::ptrdiff_t angles = static_cast<std::ptrdiff_t>(row) * (dim / 2);
    for (int h = 0; h < num_heads; ++h) {
      float* head = heads + (static_cast<std::ptrdiff_t>(row) * num_heads + h) * dim;
      rms_norm(norm, head, dim, head);
      rotate(head, dim, params.cos + angles, params.sin + angles);
    }
  }
}

// Where a kv head's page_mass goes, from zero.
PageMass page_mass(const KvShape& shape, const KvView& view, int kv_head) {
  if (view.page_mass.data == nullptr) return {};
  check(view.page_lists.empty(), "page_mass is of all pages, not of listed ones");
  const std::ptrdiff_t count = std::ssize(view.pages), room = view.page_mass.max_pages;
  check(count <= room, "page_mass has room for the pages");
  float* mass = view.page_mass.data + kv_head * room;
  std::fill_n(mass, count, 0.0f);
  std::fill(mass + count, mass + room, std::nanf(""));
  return {mass, static_cast<int>(count), shape.page_size};
}

class ReferenceBackend final : public HostBackend {
 public:
  ReferenceBackend(int num_threads, Communicator* ranks, RankGroups groups)
      : HostBackend(ranks, groups), pool_(num_threads == 0 ? num_physical_cores() : num_threads) {}

  std::string name() const override { return "reference"; }
  std::string description() const override {
    return fmt::format("reference, fp32 loops, {} threads", pool_.num_threads());
  }

  // --- memory ---

  std::size_t full_kv_bytes(const KvShape& shape, int capacity) const override {
    return full_kv_floats(shape, capacity) * sizeof(float);
  }
  int full_kv_strips() const override { return 1; }

  // --- draft weights ---

  std::size_t scratch_bytes(const PrefillSizes& sizes) const override {
    return sizeof(float) * sizes.row_floats;
  }
  PlaneBytes plane_bytes(int rows, int cols, const WeightFormat& format) const override {
    return {upper_plane_bytes(rows, cols, format), lower_plane_bytes(rows, cols, format)};
  }
  RowEncoder encoder() const override { return {sliced_format(kFineGroup)}; }
  void make_planes(const Matrix& elements, const WeightFormat& format, std::byte* upper,
                   std::byte* lower) override {
    encode_planes(pool_, elements, format, upper, lower);
  }
  void import_planes(const CodedMatrix& coded, std::byte* upper, std::byte* lower) override {
    store_planes(pool_, coded, upper, lower);
  }

  // --- one pass ---

  void embed(const EmbedParams& params) override {
    const int hidden = params.table.cols;
    for (const SequenceRows& rows : params.sequences) {
      float* out = params.out + static_cast<std::ptrdiff_t>(rows.first_row) * hidden;
      for (int row = 0; row < rows.num_rows; ++row) {
        const TokenId token = rows.tokens[rows.first_position + row - rows.first_token];
        check(token >= 0 && token < params.table.rows, "a token lies outside the vocabulary");
        read_row(params.table, WeightRead::kTarget, token, out);
        out += hidden;
      }
    }
    if (params.cos != nullptr) copy_angles(params);
  }

  void qkv(const QkvParams& params) override {
    const int rows = params.num_rows;
    const int hidden = params.k->inputs();
    const std::vector<float> x = rms_norm_rows(pool_, params.norm, params.x, rows, hidden);
    if (params.q_out != nullptr) {
      std::vector<float> q = apply_linear(pool_, *params.q, params.weights, x.data(), rows);
      norm_and_rotate(params, params.q_norm, params.num_heads, q.data());
      std::copy(q.begin(), q.end(), params.q_out);
    }
    if (params.sequences.empty()) return;
    std::vector<float> k = apply_linear(pool_, *params.k, params.weights, x.data(), rows);
    const std::vector<float> v = apply_linear(pool_, *params.v, params.weights, x.data(), rows);
    norm_and_rotate(params, params.k_norm, params.shape.num_kv_heads, k.data());
    for (const SequenceRows& sequence : params.sequences) {
      append(params.shape, sequence, k.data(), v.data());
    }
  }

  void attention(const AttentionParams& params) override {
    const int dim = params.shape.head_dim;
    const KvHeads kv_heads = own_kv_heads(params.shape);
    const int group = params.num_heads / kv_heads.count;
    const std::ptrdiff_t stride = static_cast<std::ptrdiff_t>(params.num_heads) * dim;
    std::vector<std::vector<std::byte>> rooms;
    std::vector<LayerPages> pages_of;
    for (const SequenceRows& sequence : params.sequences) {
      const KvView& view = sequence.kv;
      check(params.shape.context_ranks == 1 ||
                (view.page_lists.empty() && view.page_mass.data == nullptr),
            "of a shared context all pages are read");
      const int tokens = static_cast<int>(view.pages.size()) * params.shape.page_size;
      rooms.emplace_back(unpacked_bytes(params.shape, tokens));
      pages_of.push_back(pages_of_queries(params.shape, view, rooms.back().data(), true));
    }
    const auto attend_head = [&](std::size_t index, int kv_head) {
      const SequenceRows& sequence = params.sequences[index];
      const KvView& view = sequence.kv;
      const int end = sequence.first_position + sequence.num_rows;
      const ReadKv read = read_kv(params.shape, view, pages_of[index], kv_head, end);
      const HeadKv kv{read.keys.data(), read.values.data()};
      const PageMass pages = page_mass(params.shape, view, kv_head);
      const int first_head = (kv_head - kv_heads.first) * group;
      for (int head = first_head; head < first_head + group; ++head) {
        for (int i = 0; i < sequence.num_rows; i += kAttentionRows) {
          const std::ptrdiff_t first = (sequence.first_row + i) * stride + head * dim;
          reference::attend(kv, dim, params.scale, read.count - sequence.num_rows + i,
                            std::min(kAttentionRows, sequence.num_rows - i), params.q + first,
                            params.out + first, stride, pages);
        }
      }
    };
    const std::int64_t count = kv_heads.count;
    pool_.parallel_for(std::ssize(params.sequences) * count, [&](std::int64_t task, int) {
      attend_head(task / count, kv_heads.first + static_cast<int>(task % count));
    });
  }

  void page_bounds(const PageBoundsParams& params) override {
    const KvShape& shape = params.shape;
    check(shape.context_ranks == 1, "of a shared context all pages are read");
    const int group = params.num_heads / shape.num_kv_heads;
    for (const SequenceRows& rows : params.sequences) {
      const KvView& kv = rows.kv;
      if (rows.num_rows == 0 || kv.page_lists.empty()) continue;
      check(rows.num_rows == 1, "bounds are of one row");
      const float* q = params.q + static_cast<std::ptrdiff_t>(rows.first_row) * params.num_heads *
                                      shape.head_dim;
      for_each_unit(shape, kv.pages, [&](int page, int kv_head) {
        const std::byte* unit = kv.pages[page].upper + shape.upper_offset(kv.layer, kv_head);
        kv.page_scores.data[std::ptrdiff_t{kv_head} * kv.page_scores.max_pages + page] =
            page_bound(shape, unit, q + std::ptrdiff_t{kv_head} * group * shape.head_dim, group);
      });
    }
  }

  void prefill_attention(const PrefillAttentionParams& params) override {
    const LayerPages pages = pages_of_queries(params);
    attend_in_parts(params, [&](const PrefillAttentionParams& part) { attend(part, pages); });
  }
  void attend(const PrefillAttentionParams& params, const LayerPages& pages) {
    const int end = params.first_position + params.num_rows;
    check(end - params.kv.first_full <= params.kv.full.capacity,
          "prefill attention needs a slot for every position in full precision");
    const int dim = params.shape.head_dim;
    const KvHeads kv_heads = own_kv_heads(params.shape);
    const int group = params.num_heads / kv_heads.count;
    const std::ptrdiff_t stride = static_cast<std::ptrdiff_t>(params.num_heads) * dim;
    std::vector<ReadKv> heads;
    for (int i = 0; i < kv_heads.count; ++i) {
      heads.push_back(read_kv(params.shape, params.kv, pages, kv_heads.first + i, end));
    }
    const std::int64_t tiles = (params.num_rows + kAttentionRows - 1) / kAttentionRows;
    pool_.parallel_for(tiles * params.num_heads, [&](std::int64_t task, int) {
      const int head = static_cast<int>(task % params.num_heads);
      const int first_row = static_cast<int>(task / params.num_heads) * kAttentionRows;
      const ReadKv& kv = heads[head / group];
      const std::ptrdiff_t first = first_row * stride + head * dim;
      reference::attend({kv.keys.data(), kv.values.data()}, dim, params.scale,
                        params.first_position + first_row,
                        std::min(kAttentionRows, params.num_rows - first_row), params.q + first,
                        params.out + first, stride);
    });
  }

  void add_linear(const AddLinearParams& params) override {
    if (!adds_sums()) {
      return reference::add_linear(pool_, *params.linear, params.weights, params.in,
                                   params.num_rows, params.x);
    }
    Linear linear = *params.linear;
    linear.bias = nullptr;
    add_sums(params, apply_linear(pool_, linear, params.weights, params.in, params.num_rows));
  }

  void gate_up(const GateUpParams& params) override {
    const int rows = params.num_rows;
    const std::vector<float> x =
        rms_norm_rows(pool_, params.norm, params.x, rows, params.gate->inputs());
    const auto gate = apply_linear(pool_, *params.gate, params.weights, x.data(), rows);
    const auto up = apply_linear(pool_, *params.up, params.weights, x.data(), rows);
    for (std::size_t i = 0; i < gate.size(); ++i) params.out[i] = silu(gate[i]) * up[i];
  }

  void head(const HeadParams& params) override {
    const int rows = params.num_rows;
    const std::vector<float> x =
        rms_norm_rows(pool_, params.norm, params.x, rows, params.head->inputs());
    const auto logits = apply_linear(pool_, *params.head, params.weights, x.data(), rows);
    if (adds_sums()) return gather_logits(params, logits);
    std::copy(logits.begin(), logits.end(), params.logits);
  }

  // --- KV ---

  void quantize_pages(const KvShape& shape, int first_layer, std::span<const FullKv> sources,
                      int first_position, std::span<const PagePlanes> pages) override {
    for (const FullKv& source : sources) {
      quantize_layer(shape, first_layer++, source, first_position, pages);
    }
  }
  void quantize_layer(const KvShape& shape, int layer, FullKv source, int first_position,
                      std::span<const PagePlanes> pages) {
    for_each_unit(shape, pages, [&](int page, int kv_head) {
      const int first = first_position + page * shape.page_size;
      if (!has_unit(shape, first / shape.page_size, layer, kv_head)) return;
      std::vector<float> keys(static_cast<std::size_t>(shape.page_size) * shape.head_dim);
      std::vector<float> values(keys.size());
      read_full_kv(shape, source, kv_head, first, shape.page_size, keys.data(), values.data());
      encode_unit(shape, keys.data(), values.data(),
                  pages[page].upper + own_upper_offset(shape, layer, kv_head),
                  pages[page].lower + own_lower_offset(shape, layer, kv_head));
    });
  }

  void copy_full_kv(const KvShape& shape, FullKv source, FullKv target, int first,
                    int count) override {
    std::vector<float> keys(static_cast<std::size_t>(count) * shape.head_dim), values(keys.size());
    for (int kv_head = 0; kv_head < shape.num_kv_heads; ++kv_head) {
      read_full_kv(shape, source, kv_head, first, count, keys.data(), values.data());
      write_full_kv(shape, target, kv_head, first, count, keys.data(), values.data());
    }
  }

  void gather_full_kv(const KvShape& shape, FullKv source, FullKv target,
                      std::span<const int> positions, int first_slot) override {
    const std::ptrdiff_t count = std::ssize(positions) / shape.num_kv_heads;
    check(first_slot + count <= target.capacity, "the gathered positions fit in their slots");
    pool_.parallel_for(shape.num_kv_heads, [&](std::int64_t kv_head, int) {
      std::vector<float> key(shape.head_dim), value(shape.head_dim);
      for (int i = 0; i < count; ++i) {
        const int h = static_cast<int>(kv_head);
        read_full_kv(shape, source, h, positions[h * count + i], 1, key.data(), value.data());
        write_full_kv(shape, target, h, first_slot + i, 1, key.data(), value.data());
      }
    });
  }

  // --- borders ---

  void read_full_kv(const KvShape& shape, FullKv source, int kv_head, int first, int count,
                    float* keys, float* values) const override {
    const int dim = shape.head_dim;
    for (int p = first; p < first + count; ++p, keys += dim) {
      std::copy_n(at_position(shape, source, full_keys(shape, source, kv_head), p), dim, keys);
    }
    if (values == nullptr) return;
    for (int p = first; p < first + count; ++p, values += dim) {
      std::copy_n(at_position(shape, source, full_values(shape, source, kv_head), p), dim, values);
    }
  }
  void write_full_kv(const KvShape& shape, FullKv target, int kv_head, int first, int count,
                     const float* keys, const float* values) override {
    const int dim = shape.head_dim;
    for (int p = first; p < first + count; ++p, keys += dim, values += dim) {
      std::copy_n(keys, dim, at_position(shape, target, full_keys(shape, target, kv_head), p));
      std::copy_n(values, dim, at_position(shape, target, full_values(shape, target, kv_head), p));
    }
  }
  void export_unit(const KvShape& shape, int layer, int kv_head, PagePlanes page, std::byte* upper,
                   std::byte* lower) const override {
    std::memcpy(upper, page.upper + shape.upper_offset(layer, kv_head), shape.upper_unit_bytes());
    std::memcpy(lower, page.lower + shape.lower_offset(layer, kv_head), shape.lower_unit_bytes());
  }
  void import_unit(const KvShape& shape, int layer, int kv_head, const std::byte* upper,
                   const std::byte* lower, PagePlanes page) override {
    std::memcpy(page.upper + shape.upper_offset(layer, kv_head), upper, shape.upper_unit_bytes());
    std::memcpy(page.lower + shape.lower_offset(layer, kv_head), lower, shape.lower_unit_bytes());
  }

 private:
  Buffer make_buffer(std::size_t bytes) override { return Buffer(bytes); }
  // Keys and values of a sequence's rows of k, v [num_rows, num_kv_heads * head_dim].
  void append(const KvShape& shape, const SequenceRows& sequence, const float* k, const float* v) {
    for (int i = 0; i < sequence.num_rows; ++i) {
      for (int h = 0; h < shape.num_kv_heads; ++h) {
        const std::ptrdiff_t head =
            (static_cast<std::ptrdiff_t>(sequence.first_row + i) * shape.num_kv_heads + h) *
            shape.head_dim;
        write_full_kv(shape, sequence.kv.full, h, sequence.first_position + i, 1, k + head,
                      v + head);
      }
    }
  }

  // Calls f(page, kv_head) for every unit of one layer of the pages.
  template <typename F>
  void for_each_unit(const KvShape& shape, std::span<const PagePlanes> pages, const F& f) {
    pool_.parallel_for(std::ssize(pages) * shape.num_kv_heads, [&](std::int64_t unit, int) {
      f(static_cast<int>(unit / shape.num_kv_heads), static_cast<int>(unit % shape.num_kv_heads));
    });
  }

  ThreadPool pool_;
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend(int num_threads, Communicator* ranks,
                                                RankGroups groups) {
  return std::make_unique<ReferenceBackend>(num_threads, ranks, groups);
}

}  // namespace quantspec::reference
