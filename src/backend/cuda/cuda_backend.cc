#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "backend/cuda/context.h"
#include "backend/cuda/cublas_lt.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/device.h"
#include "backend/cuda/layout.h"
#include "backend/cuda/ops.h"
#include "backend/cuda/prefill_gemm.h"
#include "backend/cuda/ranks.h"
#include "backend/cuda/round_graphs.h"
#include "backend/cuda/row_upload.h"
#include "backend/cuda/sampling.h"
#include "backend/params/attention.h"
#include "backend/params/pass.h"
#include "backend/params/round.h"
#include "base/error.h"
#include "quant/encode_row.h"

namespace quantspec::cuda {

namespace {

// Every op is a function of ops.h; this class chooses between decoding and prefill, and carries
// what the host wants.
// A device that the calling thread may use for as long as this lives: until the op was called.
class UsedDevice {
 public:
  explicit UsedDevice(Device& device) : current_(device.gpu()), device_(device) {}
  operator Device&() const { return device_; }
  Device* operator->() const { return &device_; }

 private:
  CurrentGpu current_;
  Device& device_;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(int ordinal, int num_threads, Communicator* ranks, const RankGroups& groups)
      : device_(ordinal), rows_(device_, num_threads), groups_(groups) {
    if (ranks == nullptr || ranks->size() == 1) return;
    const UsedDevice used = use();
    ranks_.emplace(device_, *ranks, groups);
    device_.set_ranks(&*ranks_);
  }
  ~CudaBackend() override { device_.set_ranks(nullptr); }

  std::string name() const override { return "cuda"; }
  std::string description() const override {
    const std::string_view changes = tuning_changes();
    return fmt::format("cuda (GPU {}: {}, kernels for {}.{}{}{})", device_.gpu().ordinal(),
                       device_.name(), device_.capability() / 10, device_.capability() % 10,
                       changes.empty() ? "" : ", tuned: ", changes);
  }

  void require_supported(const KvShape& shape) const override { cuda::require_supported(shape); }

  // --- memory ---
  Buffer allocate_on_host(std::size_t bytes) override { return device_.allocate_on_host(bytes); }
  std::size_t available_bytes() const override {
    const CurrentGpu current(device_.gpu());
    std::size_t available = 0, total = 0;
    QUANTSPEC_CUDA(cudaMemGetInfo(&available, &total));
    return available;
  }
  std::size_t taken_bytes() const override {
    return device_.taken_bytes() + (ranks_ ? Ranks::bytes(ranks_->sharing()) : 0);
  }
  bool is_apart_from_host() const override { return true; }
  void upload(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) use()->upload(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) use()->download(to, from, bytes);
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes > 0) use()->copy(to, from, bytes);
  }
  void synchronize() override { use()->synchronize(); }

  std::size_t full_kv_bytes(const KvShape& shape, int capacity) const override {
    return full_kv_index(shape, capacity, shape.num_kv_heads, 0, 0) * sizeof(std::uint16_t);
  }
  int full_kv_strips() const override { return 1; }
  int context_turn(const KvShape& shape, int page) const override {
    return turn_of_page(shape, target_splits(device_, shape), page);
  }
  std::size_t scratch_bytes(const PrefillSizes& sizes) const override {
    const PrefillScratch scratch = prefill_scratch(sizes);
    return scratch.activations + scratch.of_rank + scratch.workspace;
  }
  void reserve_scratch(const PrefillSizes& sizes) override { reserve_prefill(use(), sizes); }
  std::size_t unpacked_bytes(const KvShape& shape, int tokens) const override {
    return cuda::unpacked_bytes(shape, shape.num_kv_heads / shares_of_context(), tokens);
  }
  int prefill_rows() const override { return kPrefillRows; }
  int prefill_chunk() const override { return kPrefillRows; }

  // --- weights ---
  std::size_t matrix_bytes(int rows, int cols, DType dtype) const override {
    return static_cast<std::size_t>(padded_rows(rows)) * padded_cols(cols) * size_of(dtype);
  }
  Matrix place_matrix(const TensorView& matrix, std::byte* memory) override {
    const std::size_t row = matrix.cols * size_of(matrix.dtype);
    const std::size_t stride = padded_cols(matrix.cols) * size_of(matrix.dtype);
    use()->upload_rows(memory, stride, matrix.data, row, matrix.rows);
    return dense({memory, matrix.dtype, matrix.rows, matrix.cols});
  }
  PlaneBytes plane_bytes(int rows, int cols, const WeightFormat& format) const override {
    return cuda::plane_bytes(rows, cols, format);
  }
  RowEncoder encoder() const override { return {sliced_format(kWeightGroup)}; }
  void make_planes(const Matrix& elements, const WeightFormat& format, std::byte* upper,
                   std::byte* lower) override {
    check(format == sliced_format(kWeightGroup), "elements become planes in the encoder's format");
    cuda::make_planes(use(), elements, upper, lower);
  }
  void import_planes(const CodedMatrix& coded, std::byte* upper, std::byte* lower) override {
    cuda::import_planes(use(), rows_, coded, upper, lower);
  }

  // --- one pass ---
  std::size_t pass_scratch_bytes(const PassSizes& sizes) const override {
    return cuda::pass_scratch_bytes(device_, sizes, {sizes.ranks * groups_.alike, groups_});
  }
  void embed(const EmbedParams& params) override { cuda::embed(use(), params); }
  void qkv(const QkvParams& params) override {
    if (params.num_rows == 0) return;
    params.phase == Phase::kDecode ? decode_qkv(use(), params) : prefill_qkv(use(), params);
  }
  void attention(const AttentionParams& params) override { cuda::attention(use(), params); }
  void page_bounds(const PageBoundsParams& params) override { cuda::page_bounds(use(), params); }
  void select_pages(const SelectPagesParams& params) override { cuda::select_pages(use(), params); }
  void prefill_attention(const PrefillAttentionParams& params) override {
    cuda::prefill_attention(use(), params);
  }
  void add_linear(const AddLinearParams& params) override {
    if (params.num_rows == 0) return;
    params.phase == Phase::kDecode ? decode_add_linear(use(), params)
                                   : prefill_add_linear(use(), params);
  }
  void gate_up(const GateUpParams& params) override {
    if (params.num_rows == 0) return;
    params.phase == Phase::kDecode ? decode_gate_up(use(), params) : prefill_gate_up(use(), params);
  }
  void head(const HeadParams& params) override { cuda::head(use(), params); }

  // --- rounds of lanes ---
  int padded(int count) const override { return cuda::padded(count); }
  bool repeats_rounds() const override { return true; }
  void begin_batch(std::span<const RoundLane> lanes) override {
    use()->begin_batch(lanes);
    vocab_size_ = lanes[0].at.vocab_size;
  }
  void bind_lanes(const KvShape& shape, std::span<const LaneKey> keys,
                  const LaneViews& views) override {
    use()->bind_lanes(shape, keys, views);
  }
  void propose(const ProposeParams& params) override { cuda::propose(use(), params); }
  void judge(const JudgeParams& params) override { cuda::judge(use(), params); }
  bool run_round(const RoundKey& key, const std::function<void()>& issue) override {
    const UsedDevice used = use();
    return rounds_.run(key, issue);
  }
  Counts counts() const override {
    return {device_.allocations(), rounds_.captures(), rounds_.issues()};
  }
  void end_rounds(std::span<const Round* const> rounds, std::span<Round> results) override {
    download_rounds(use(), rounds, results);
    for (const Round& result : results) require_chosen(result.status, vocab_size_);
  }
  void mark(Mark mark) override {
    const UsedDevice used = use();
    rounds_.mark(mark);
  }
  double seconds_between(Mark from, Mark to) override {
    const UsedDevice used = use();
    return rounds_.seconds_between(from, to);
  }

  // --- KV ---
  void quantize_pages(const KvShape& shape, int first_layer, std::span<const FullKv> sources,
                      int first_position, std::span<const PagePlanes> pages) override {
    cuda::quantize_pages(use(), shape, first_layer, sources, first_position, pages);
  }
  void copy_full_kv(const KvShape& shape, FullKv source, FullKv target, int first,
                    int count) override {
    cuda::copy_full_kv(use(), shape, source, target, first, count);
  }
  void gather_full_kv(const KvShape& shape, FullKv source, FullKv target,
                      std::span<const int> positions, int first_slot) override {
    cuda::gather_full_kv(use(), shape, source, target, positions, first_slot);
  }

  // --- borders ---
  void read_full_kv(const KvShape& shape, FullKv source, int kv_head, int first, int count,
                    float* keys, float* values) const override {
    cuda::read_full_kv(use(), shape, source, kv_head, first, count, keys, values);
  }
  void write_full_kv(const KvShape& shape, FullKv target, int kv_head, int first, int count,
                     const float* keys, const float* values) override {
    cuda::write_full_kv(use(), shape, target, kv_head, first, count, keys, values);
  }
  void export_unit(const KvShape& shape, int layer, int kv_head, PagePlanes page, std::byte* upper,
                   std::byte* lower) const override {
    cuda::export_unit(use(), shape, layer, kv_head, page, upper, lower);
  }
  void import_unit(const KvShape& shape, int layer, int kv_head, const std::byte* upper,
                   const std::byte* lower, PagePlanes page) override {
    cuda::import_unit(use(), shape, layer, kv_head, upper, lower, page);
  }

 private:
  Buffer make_buffer(std::size_t bytes) override { return device_.allocate(bytes); }
  // As ops take the device.
  UsedDevice use() const { return UsedDevice(device_); }

  int shares_of_context() const { return groups_.context / groups_.alike; }

  mutable Device device_;  // reading waits for its stream
  RowUpload rows_;
  RankGroups groups_;
  std::optional<Ranks> ranks_;
  RoundGraphs rounds_{device_};
  int vocab_size_ = 0;  // of the batch
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int ordinal, int num_threads, Communicator* ranks,
                                           const RankGroups& groups) {
  if (const std::string why = unavailable(ordinal); !why.empty()) {
    fail(ErrorKind::kDevice, "no GPU that can be used: {}", why);
  }
  cublas_lt();  // or an error now, not after the weights were loaded
  return std::make_unique<CudaBackend>(ordinal, num_threads, ranks, groups);
}

}  // namespace quantspec::cuda
