// Rows of matrices in codes on their way to the GPU. The threads of the host read a portion of rows
// into pinned memory while the GPU copies and packs the portion before, so that a matrix never
// waits for one core and never lies whole on the host. Errors: what a row's read() throws, once no
// thread reads any more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "backend/cuda/device.h"
#include "base/buffer.h"
#include "quant/weight_format.h"

namespace quantspec {
class ThreadPool;
}

namespace quantspec::cuda {

// Rows as codes and parameters, as in RowCodes, those of each kind side by side.
struct CodedRows {
  std::uint8_t* codes;        // [rows, cols]
  GroupScale* scales;         // [rows, blocks]
  std::int8_t* sub_scales;    // [rows, groups]
  std::uint8_t* sub_offsets;  // likewise
  int cols, blocks;
  int groups;  // 0 in formats of one level

  RowCodes row(std::size_t index) const {
    return {codes + index * cols, scales + index * blocks, sub_scales + index * groups,
            sub_offsets + index * groups};
  }
};

// The rows of a portion: whole tiles, and at least one.
int portion_rows(const CodedMatrix& coded);

class RowUpload {
 public:
  // num_threads == 0: one per physical core. They start with the first upload, since a checkpoint
  // of elements has none.
  RowUpload(Device& device, int num_threads);
  ~RowUpload();

  // Rows [first, first + count) in memory of the device, where kernels may read them that are
  // launched before the next upload. REQUIRES: count <= portion_rows(coded).
  CodedRows upload(const CodedMatrix& coded, int first, int count);

 private:
  Device& device_;
  int num_threads_;
  std::unique_ptr<ThreadPool> pool_;
  // Pinned. The GPU may still copy from the one that was filled last, never from the next one.
  std::array<Buffer, 2> staging_;
  std::size_t next_ = 0;
};

}  // namespace quantspec::cuda
