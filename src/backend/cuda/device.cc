#include "backend/cuda/device.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cuda/cuda.h"
#include "backend/cuda/ranks.h"
#include "backend/params/pass.h"
#include "backend/params/round.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

constexpr int kLeastCapability = 80;

// Copies of more are left to the driver.
constexpr std::size_t kMostStaged = std::size_t{256} << 10;
constexpr std::size_t kStagingBytes = std::size_t{1} << 20;

// The most dynamic shared memory of a block of a GPU of that capability.
std::size_t shared_limit(int capability) {
  if (capability >= 90) return 227 << 10;
  return (capability == 80 || capability == 87 ? 163 : 99) << 10;
}

// Tables have room for so many at first, so that few grow.
constexpr std::size_t kRoomOfLanes = 64, kRoomOfRows = 2048;

std::size_t room_for(std::size_t count, std::size_t least) {
  return std::bit_ceil(std::max(count, least));
}

}  // namespace

std::string unavailable(int ordinal) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) cudaGetLastError();  // it is not the next call's
  if (status == cudaErrorInsufficientDriver) {
    return fmt::format("no NVIDIA driver, or one too old for CUDA {}", CUDART_VERSION / 1000);
  }
  if (status != cudaSuccess) return cudaGetErrorString(status);
  if (count == 0) return "no GPU is visible";
  if (ordinal < 0 || ordinal >= count) return fmt::format("there is no GPU {}", ordinal);
  int major = 0, minor = 0;
  QUANTSPEC_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal));
  QUANTSPEC_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal));
  if (10 * major + minor < kLeastCapability) {
    return fmt::format("GPU {} has compute capability {}.{}, and 8.0 is needed", ordinal, major,
                       minor);
  }
  const CurrentGpu current(Gpu::at(ordinal));
  if (kernels_capability() > 0) return {};
  return fmt::format(
      "this build has no kernels for GPU {}, of compute capability {}.{} "
      "(QUANTSPEC_CUDA_ARCHITECTURES)",
      ordinal, major, minor);
}

// What a lane is bound to.
struct Device::Bound {
  LaneKey key;
  PageRoom room;
};

Device::Device(int ordinal) : gpu_(Gpu::at(ordinal)) {
  const CurrentGpu current(gpu_);
  cudaDeviceProp properties;
  QUANTSPEC_CUDA(cudaGetDeviceProperties(&properties, ordinal));
  name_ = properties.name;
  capability_ = kernels_capability();
  num_sms_ = properties.multiProcessorCount;
  max_shared_bytes_ = std::min(properties.sharedMemPerBlockOptin, shared_limit(capability_));
  l2_bytes_ = properties.l2CacheSize;
  tuning_ = changed(timed_tuning(capability_), tuning_changes());
  kernels_ = Kernels(num_sms_, max_shared_bytes_);
  QUANTSPEC_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  staging_ = gpu_.allocate_on_host(kStagingBytes);
  states_.memory = allocate(kRoomOfLanes * sizeof(SequenceState));
  rows_.memory = allocate(kRoomOfRows * sizeof(RowPlace));
  kv_.memory = allocate(kRoomOfLanes * sizeof(SequenceKv));
}

Device::~Device() {
  const CurrentGpu current(gpu_, CurrentGpu::Failing::kIsLeft);
  cudaStreamSynchronize(stream_);
  prefill_gemm_.reset();
  staging_ = {};
  cudaStreamDestroy(stream_);
}

std::size_t Device::taken_bytes() const {
  std::size_t bytes = 0;
  for (const Buffer& scratch : scratch_) bytes += scratch.size();
  for (const Buffer* table : {&lane_table_.memory, &lane_kv_.memory, &lane_states_, &lane_rows_,
                              &states_.memory, &rows_.memory, &kv_.memory}) {
    bytes += table->size();
  }
  return bytes;
}

std::size_t Device::table_bytes(int lanes, int rows, int num_layers) {
  const std::size_t room = room_for(lanes, kRoomOfLanes);
  const std::size_t of_lane =
      sizeof(RoundLane) + sizeof(SequenceState) + 2 * num_layers * sizeof(SequenceKv);
  return room * of_lane + lane_rows_bytes(rows) +  // and of others
         kRoomOfLanes * (sizeof(SequenceState) + sizeof(SequenceKv)) +
         kRoomOfRows * sizeof(RowPlace);
}

std::byte* Device::scratch(Scratch which, std::size_t bytes) {
  Buffer& buffer = scratch_[static_cast<std::size_t>(which)];
  if (buffer.size() < bytes) {
    synchronize();
    buffer = {};
    buffer = allocate(bytes);
  }
  return buffer.data();
}

void Device::upload(void* to, const void* from, std::size_t bytes) {
  cudaStreamCaptureStatus capture;
  QUANTSPEC_CUDA(cudaStreamIsCapturing(stream_, &capture));
  check(capture == cudaStreamCaptureStatusNone, "a graph would repeat what is uploaded");
  const bool small = bytes <= kMostStaged;
  if (small) from = std::memcpy(stage(bytes), from, bytes);
  QUANTSPEC_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
  if (!small) synchronize();
}

void Device::download(void* to, const void* from, std::size_t bytes) {
  const bool small = bytes <= kMostStaged;
  std::byte* const staged = small ? stage(bytes) : nullptr;
  QUANTSPEC_CUDA(
      cudaMemcpyAsync(small ? staged : to, from, bytes, cudaMemcpyDeviceToHost, stream_));
  synchronize();
  if (small) std::memcpy(to, staged, bytes);
}

std::byte* Device::stage(std::size_t bytes) {
  if (staged_ + bytes > staging_.size()) synchronize();
  std::byte* const at = staging_.data() + staged_;
  staged_ += (bytes + 15) / 16 * 16;
  return at;
}

void Device::copy(void* to, const void* from, std::size_t bytes) {
  QUANTSPEC_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));  // by addresses
}

void Device::upload_rows(void* to, std::size_t stride, const void* from, std::size_t bytes,
                         int rows) {
  QUANTSPEC_CUDA(
      cudaMemcpy2DAsync(to, stride, from, bytes, bytes, rows, cudaMemcpyHostToDevice, stream_));
  synchronize();
}

void Device::synchronize() {
  QUANTSPEC_CUDA(cudaStreamSynchronize(stream_));
  staged_ = 0;
  if (ranks_ != nullptr) ranks_->require_well();
}

int Device::num_shares() const { return ranks_ == nullptr ? 1 : ranks_->num_shares(); }

int Device::num_contexts() const { return ranks_ == nullptr ? 1 : ranks_->num_contexts(); }

int padded(int count) {
  if (count <= 2) return count;
  const int below = static_cast<int>(std::bit_floor(static_cast<unsigned>(count)));
  const int step = below < 64 ? below / 2 : below / 4;
  return divide_up(count, step) * step;
}

// --- tables of sequences -------------------------------------------------------------------------

SequenceKv sequence_kv(const KvView& view, int num_kv_heads) {
  const bool lists = !view.page_lists.empty();
  const PageScores& sized = view.page_mass.data != nullptr ? view.page_mass : view.page_scores;
  return {.num_gathered = view.num_gathered,
          .pages_listed = static_cast<int>(view.page_lists.size()) / num_kv_heads,
          .max_pages = sized.max_pages,
          .all_full = view.all_full,
          .pages = view.all_full ? nullptr : view.pages.data(),
          .page_lists = lists ? view.page_lists.data() : nullptr,
          .full = view.full,
          .gathered = view.gathered,
          .page_mass = view.page_mass.data,
          .page_scores = lists ? view.page_scores.data : nullptr};
}

void Device::grow(Buffer& buffer, std::size_t bytes) {
  if (buffer.size() >= bytes) return;
  synchronize();
  buffer = {};
  buffer = allocate(bytes);
}

template <typename T>
const T* Device::put(Table<T>& table, const std::vector<T>& values, std::size_t least,
                     bool* uploaded) {
  if (table.memory.size() < values.size() * sizeof(T)) {
    table.there.clear();
    grow(table.memory, room_for(values.size(), least) * sizeof(T));
  }
  if (table.there != values) {
    upload(table.memory.data(), values.data(), values.size() * sizeof(T));
    table.there = values;
    if (uploaded != nullptr) *uploaded = true;
  }
  return table.data();
}

std::span<const RoundLane> Device::lanes() const { return lanes_; }

std::size_t Device::lane_rows_bytes(int rows) {
  return room_for(rows, kRoomOfRows) * sizeof(RowPlace);
}

void Device::begin_batch(std::span<const RoundLane> lanes) {
  lanes_.assign(lanes.begin(), lanes.end());
  put(lane_table_, lanes_, kRoomOfLanes);
  grow(lane_states_, room_for(lanes.size(), kRoomOfLanes) * sizeof(SequenceState));
}

LaneTable Device::lane_table(int first, int count) const {
  check(first >= 0 && count >= 1 && first + count <= std::ssize(lanes_),
        "ops of rounds are of the batch's lanes");
  return {lane_table_.data() + first, count, lanes_[first].first_row, lanes_[first].at.vocab_size};
}

void Device::bind_lanes(const KvShape& shape, std::span<const LaneKey> keys,
                        const RoundOps::LaneViews& views) {
  if (bound_.size() < keys.size() || num_layers_ != shape.num_layers) {
    const std::size_t room = room_for(keys.size(), kRoomOfLanes);
    bound_.clear();  // also where there is no memory for more
    grow(lane_kv_.memory, 2 * room * shape.num_layers * sizeof(SequenceKv));
    num_layers_ = shape.num_layers;
    lane_kv_.there.assign(2 * room * num_layers_, {});
    bound_.assign(room, {});
  }
  for (std::size_t lane = 0; lane < keys.size(); ++lane) {
    if (keys[lane].sequence == 0 || bound_[lane].key == keys[lane]) continue;
    bound_[lane].key = {};  // until all is there
    bound_[lane].room = {};
    for (const bool verifies : {false, true}) {
      bind_lane(shape, static_cast<int>(lane), verifies, views(static_cast<int>(lane), verifies));
    }
    const std::size_t first = lane_kv(static_cast<int>(lane), false, 0);
    upload(lane_kv_.memory.as<SequenceKv>() + first, &lane_kv_.there[first],
           2 * num_layers_ * sizeof(SequenceKv));
    bound_[lane].key = keys[lane];
  }
}

void Device::bind_lane(const KvShape& shape, int lane, bool verifies,
                       std::span<const KvView> views) {
  check(views.empty() || std::ssize(views) == num_layers_, "a lane reads something in every layer");
  for (int layer = 0; layer < num_layers_; ++layer) {
    SequenceKv& kv = lane_kv_.there[lane_kv(lane, verifies, layer)];
    kv = views.empty() ? SequenceKv{} : sequence_kv(views[layer], shape.num_kv_heads);
    PageRoom& room = bound_[lane].room;
    if (kv.page_lists != nullptr) {
      room.listed = std::max(room.listed, kv.max_pages);
      ++room.listing_layers;
    }
    if (kv.page_mass != nullptr) room.with_mass = std::max(room.with_mass, kv.max_pages);
  }
}

Device::PageRoom Device::page_room() const {
  PageRoom room;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].rows() == 0 || lane >= bound_.size()) continue;
    room.with_mass = std::max(room.with_mass, bound_[lane].room.with_mass);
    if (lanes_[lane].drafts() == 0) continue;
    room.listed = std::max(room.listed, bound_[lane].room.listed);
    room.listing_layers = std::max(room.listing_layers, bound_[lane].room.listing_layers);
  }
  return room;
}

SequenceTables Device::tables(std::span<const SequenceRows> sequences, int num_rows,
                              int num_kv_heads, bool* uploaded) {
  if (sequences.front().lane >= 0) return tables_of_lanes(sequences, num_kv_heads);
  to_put_.clear();
  rows_to_put_.assign(num_rows, {-1, 0});
  kv_to_put_.clear();
  for (const SequenceRows& rows : sequences) {
    const int index = static_cast<int>(to_put_.size());
    check(rows.lane < 0, "the sequences of an op are all of rounds, or none is");
    to_put_.push_back(
        {.first_row = rows.first_row,
         .num_rows = rows.num_rows,
         .first_position = rows.first_position,
         .first_full = rows.kv.first_full,
         .num_pages = static_cast<int>(rows.kv.pages.size()),
         .tokens = rows.tokens == nullptr ? nullptr : rows.tokens - rows.first_token});
    for (int i = 0; i < rows.num_rows && num_rows > 0; ++i) {
      rows_to_put_.at(rows.first_row + i) = {index, rows.first_position + i};
    }
    if (num_kv_heads > 0) kv_to_put_.push_back(sequence_kv(rows.kv, num_kv_heads));
  }
  return {put(states_, to_put_, kRoomOfLanes, uploaded),
          num_rows > 0 ? put(rows_, rows_to_put_, kRoomOfRows, uploaded) : nullptr,
          num_kv_heads > 0 ? put(kv_, kv_to_put_, kRoomOfLanes, uploaded) : nullptr, 1,
          static_cast<int>(sequences.size())};
}

SequenceTables Device::tables_of_lanes(std::span<const SequenceRows> sequences, int num_kv_heads) {
  const SequenceRows& first = sequences.front();
  SequenceTables tables{lane_states_.as<SequenceState>(), lane_rows_.as<RowPlace>(), nullptr,
                        2 * num_layers_, static_cast<int>(sequences.size())};
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const SequenceRows& rows = sequences[i];
    check(rows.lane == first.lane + static_cast<int>(i) && rows.verifies == first.verifies,
          "an op is of lanes that follow each other");
    check(num_kv_heads == 0 || rows.num_rows == 0 ||
              (rows.lane < std::ssize(bound_) &&
               lane_kv_.there[lane_kv(rows.lane, rows.verifies, rows.kv.layer)] ==
                   sequence_kv(rows.kv, num_kv_heads)),
          "lanes are bound to what they read");
  }
  if (num_kv_heads > 0)
    tables.kv = lane_kv_.data() + lane_kv(first.lane, first.verifies, first.kv.layer);
  return tables;
}

}  // namespace quantspec::cuda
