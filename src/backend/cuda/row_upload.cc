#include "backend/cuda/row_upload.h"

#include <algorithm>
#include <bit>

#include "backend/cuda/linear_layout.h"
#include "base/thread_pool.h"

namespace quantspec::cuda {

namespace {

// Reading a portion takes a millisecond or so, far longer than it takes to wake the threads.
constexpr std::size_t kPortionBytes = std::size_t{16} << 20;

// Where the parts of so many rows lie, each 256-byte aligned.
struct PortionLayout {
  int cols, blocks, groups;
  std::size_t scales, sub_scales, sub_offsets, bytes;

  PortionLayout(const CodedMatrix& coded, int rows)
      : cols(coded.cols),
        blocks(coded.format.blocks(coded.cols)),
        groups(coded.format.two_levels() ? coded.format.groups(coded.cols) : 0) {
    scales = bytes_of(rows, cols, 1);
    sub_scales = scales + bytes_of(rows, blocks, sizeof(GroupScale));
    sub_offsets = sub_scales + bytes_of(rows, groups, 1);
    bytes = sub_offsets + bytes_of(rows, groups, 1);
  }
  CodedRows at(std::byte* memory) const {
    return {reinterpret_cast<std::uint8_t*>(memory),
            reinterpret_cast<GroupScale*>(memory + scales),
            reinterpret_cast<std::int8_t*>(memory + sub_scales),
            reinterpret_cast<std::uint8_t*>(memory + sub_offsets),
            cols,
            blocks,
            groups};
  }

 private:
  static std::size_t bytes_of(int rows, int of_row, std::size_t size) {
    return (size * rows * of_row + 255) / 256 * 256;
  }
};

}  // namespace

int portion_rows(const CodedMatrix& coded) {
  const std::size_t tiles = kPortionBytes / PortionLayout(coded, kTileRows).bytes;
  return kTileRows * static_cast<int>(std::max(tiles, std::size_t{1}));
}

RowUpload::RowUpload(Device& device, int num_threads)
    : device_(device), num_threads_(num_threads) {}

RowUpload::~RowUpload() = default;

CodedRows RowUpload::upload(const CodedMatrix& coded, int first, int count) {
  if (!pool_) {
    pool_ = std::make_unique<ThreadPool>(num_threads_ > 0 ? num_threads_ : num_physical_cores());
  }
  const PortionLayout layout(coded, count);
  Buffer& staging = staging_[next_];
  if (staging.size() < layout.bytes) {
    staging = {};
    staging = device_.allocate_on_host(std::bit_ceil(layout.bytes));  // grows a few times at most
  }
  const CodedRows rows = layout.at(staging.data());
  pool_->parallel_for(count, [&](std::int64_t i, int) {
    coded.read(first + static_cast<int>(i), rows.row(static_cast<std::size_t>(i)));
  });
  // The portion before has left its memory on both sides: the next one is read into it, and this
  // one goes where that one was packed from.
  device_.synchronize();
  std::byte* const there = device_.scratch(Scratch::kWorkspace, staging.size());
  device_.copy(there, staging.data(), layout.bytes);
  next_ = 1 - next_;
  return layout.at(there);
}

}  // namespace quantspec::cuda
