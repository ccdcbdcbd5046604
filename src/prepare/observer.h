// A backend that does what another one does, and watches what goes into chosen matrices meanwhile:
// so calibration runs the model's own forward, and not a second one.
#pragma once

#include <map>
#include <set>

#include "backend/backend.h"
#include "backend/params/kv.h"
#include "backend/params/linear.h"
#include "prepare/linear_algebra.h"

namespace quantspec {

class Observer final : public Backend {
 public:
  // Both outlive the observer.
  Observer(Backend& backend, ThreadPool& pool) : backend_(backend), pool_(pool) {}

  // From now on, sums up the inputs of these matrices. Of matrices that share their input, only the
  // first of an op is looked at: q, gate.
  void watch(const std::set<const Linear*>& linears);
  // What was summed up; ends the watch.
  std::map<const Linear*, Gram> take();

  std::string name() const override { return backend_.name(); }
  std::string description() const override { return backend_.description(); }
  void require_supported(const KvShape& shape) const override { backend_.require_supported(shape); }

  Buffer allocate(std::size_t bytes) override { return backend_.allocate(bytes); }
  std::size_t available_bytes() const override { return backend_.available_bytes(); }
  void upload(void* to, const void* from, std::size_t bytes) override {
    backend_.upload(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    backend_.download(to, from, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    backend_.copy(to, from, bytes);
  }
  void synchronize() override { backend_.synchronize(); }
  std::size_t matrix_bytes(int rows, int cols, DType dtype) const override {
    return backend_.matrix_bytes(rows, cols, dtype);
  }
  TensorView place_matrix(const TensorView& matrix, std::byte* memory) override {
    return backend_.place_matrix(matrix, memory);
  }
  int prefill_rows() const override { return backend_.prefill_rows(); }
  int prefill_chunk() const override { return backend_.prefill_chunk(); }
  std::size_t full_kv_bytes(const KvShape& shape, int capacity) const override {
    return backend_.full_kv_bytes(shape, capacity);
  }
  std::size_t scratch_bytes(int inputs, std::size_t row_floats) const override {
    return backend_.scratch_bytes(inputs, row_floats);
  }
  void reserve_scratch(int inputs, std::size_t row_floats) override {
    backend_.reserve_scratch(inputs, row_floats);
  }
  std::size_t unpacked_bytes(const KvShape& shape, int tokens) const override {
    return backend_.unpacked_bytes(shape, tokens);
  }
  PlaneBytes plane_bytes(int rows, int cols, int group) const override {
    return backend_.plane_bytes(rows, cols, group);
  }
  void make_planes(const TensorView& full, std::byte* upper, std::byte* lower) override {
    backend_.make_planes(full, upper, lower);
  }
  void import_planes(const CodedMatrix& coded, std::byte* upper, std::byte* lower) override {
    backend_.import_planes(coded, upper, lower);
  }

  void embed(const EmbedParams& params) override { backend_.embed(params); }
  void qkv(const QkvParams& params) override;
  void attention(const AttentionParams& params) override { backend_.attention(params); }
  void page_bounds(const PageBoundsParams& params) override { backend_.page_bounds(params); }
  void select_pages(const SelectPagesParams& params) override { backend_.select_pages(params); }
  void prefill_attention(const PrefillAttentionParams& params) override {
    backend_.prefill_attention(params);
  }
  void add_linear(const AddLinearParams& params) override;
  void gate_up(const GateUpParams& params) override;
  void head(const HeadParams& params) override;
  int padded(int count) const override { return backend_.padded(count); }
  bool repeats_rounds() const override { return backend_.repeats_rounds(); }
  void begin_batch(std::span<const RoundLane> lanes) override { backend_.begin_batch(lanes); }
  void bind_lanes(const KvShape& shape, std::span<const LaneKey> keys,
                  const LaneViews& views) override {
    backend_.bind_lanes(shape, keys, views);
  }
  void propose(const ProposeParams& params) override { backend_.propose(params); }
  void judge(const JudgeParams& params) override { backend_.judge(params); }
  bool run_round(const RoundKey& key, const std::function<void()>& issue) override {
    return backend_.run_round(key, issue);
  }
  Counts counts() const override { return backend_.counts(); }
  void end_rounds(std::span<const Round* const> rounds, std::span<Round> results) override {
    backend_.end_rounds(rounds, results);
  }
  void mark(Mark mark) override { backend_.mark(mark); }
  double seconds_between(Mark from, Mark to) override { return backend_.seconds_between(from, to); }

  void quantize_pages(const KvShape& shape, int first_layer, std::span<const FullKv> sources,
                      int first_position, std::span<const PagePlanes> pages) override {
    backend_.quantize_pages(shape, first_layer, sources, first_position, pages);
  }
  void copy_full_kv(const KvShape& shape, FullKv source, FullKv target, int first,
                    int count) override {
    backend_.copy_full_kv(shape, source, target, first, count);
  }
  void gather_full_kv(const KvShape& shape, FullKv source, FullKv target,
                      std::span<const int> positions, int first_slot) override {
    backend_.gather_full_kv(shape, source, target, positions, first_slot);
  }
  void read_full_kv(const KvShape& shape, FullKv source, int kv_head, int first, int count,
                    float* keys, float* values) const override {
    backend_.read_full_kv(shape, source, kv_head, first, count, keys, values);
  }
  void write_full_kv(const KvShape& shape, FullKv target, int kv_head, int first, int count,
                     const float* keys, const float* values) override {
    backend_.write_full_kv(shape, target, kv_head, first, count, keys, values);
  }
  void export_unit(const KvShape& shape, int layer, int kv_head, PagePlanes page, std::byte* upper,
                   std::byte* lower) const override {
    backend_.export_unit(shape, layer, kv_head, page, upper, lower);
  }
  void import_unit(const KvShape& shape, int layer, int kv_head, const std::byte* upper,
                   const std::byte* lower, PagePlanes page) override {
    backend_.import_unit(shape, layer, kv_head, upper, lower, page);
  }

 private:
  // Adds norm(x), [rows, linear->inputs()], to the sum of a matrix that is watched.
  void note(const Linear* linear, const Norm& norm, const float* x, int rows);

  Backend& backend_;
  ThreadPool& pool_;
  std::map<const Linear*, Gram> sums_;
};

}  // namespace quantspec
