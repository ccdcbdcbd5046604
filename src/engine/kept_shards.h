// What ranks that share a model keep of a text, in files as one rank would write it: each has some
// of the kv heads, and in the bytes of a file those of all are side by side. So a file may be read
// by any number of ranks, whoever wrote it.
//
// Who leads has the files (Agreement); all call these functions, in the same order. Among nobody
// nothing is copied. What is thrown at one rank is no other's: none goes on after it.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "backend/kv_ops.h"
#include "comm/comm.h"
#include "quant/quant.h"

namespace quantspec {

class KeptShards {
 public:
  enum class Kind {
    kPages,   // one after the other, the upper plane before the lower
    kFullKv,  // layer by layer
  };

  // `own`: of a rank's share of the heads. `ops` outlives it.
  KeptShards(const Agreement& ranks, const KvOps& ops, const KvShape& own)
      : ranks_(ranks), ops_(ops), shape_(own) {}

  // That a file has of what is `own` bytes at a rank.
  std::size_t file_bytes(std::size_t own) const { return own * ranks_.size(); }
  // Has `write` write what this rank has of it, and makes the file's bytes of all of them, where
  // this one leads: else `file` may be empty.
  void gather(Kind kind, std::size_t own, const std::function<void(std::span<std::byte>)>& write,
              std::span<std::byte> file) const;
  // The other way: `read` reads what is this rank's of the bytes that who leads has.
  void scatter(Kind kind, std::size_t own, std::span<const std::byte> file,
               const std::function<void(std::span<const std::byte>)>& read) const;

 private:
  // Calls f(offset, bytes) of the strips of a rank, in which its heads are side by side.
  void for_strips(Kind kind, std::size_t own, const auto& f) const;

  Agreement ranks_;
  const KvOps& ops_;
  KvShape shape_;
};

}  // namespace quantspec
