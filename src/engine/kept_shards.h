// What ranks that share a model keep of a text, in files as one rank would write it: each has some
// of the kv heads, and of contexts that they share some units of each page; in the bytes of a file
// those of all are where one rank has them. So a file may be read by any number of ranks, however
// they share, whoever wrote it.
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
  // Bytes of a rank's share: of pages, one after the other, the upper plane before the lower, which
  // are those of a text from the first-th on; or of a FullKv of all layers, one after the other.
  struct Pages {
    std::size_t bytes, first;
  };
  struct AllFullKv {
    std::size_t bytes;
  };

  // `own`: of a rank's share of the heads. `ops` outlives it.
  KeptShards(const Agreement& ranks, const KvOps& ops, const KvShape& own)
      : ranks_(ranks), ops_(ops), shape_(own) {}

  // That a file has of it.
  std::size_t file_bytes(Pages own) const;
  std::size_t file_bytes(AllFullKv own) const { return own.bytes * groups(); }
  // Has `write` write what this rank has of it, and makes the file's bytes of all of them, where
  // this one leads: else `file` may be empty.
  template <typename Own>
  void gather(Own own, const std::function<void(std::span<std::byte>)>& write,
              std::span<std::byte> file) const;
  // The other way: `read` reads what is this rank's of the bytes that who leads has.
  template <typename Own>
  void scatter(Own own, std::span<const std::byte> file,
               const std::function<void(std::span<const std::byte>)>& read) const;

 private:
  // Of ranks that share contexts, of which each has kv heads of its own.
  std::size_t groups() const { return ranks_.size() / shape_.context_ranks; }
  std::size_t units_in_file() const { return groups() * shape_.num_layers * shape_.num_kv_heads; }
  // Whether each rank has all that the file has.
  bool whole(Pages) const { return false; }
  bool whole(AllFullKv) const { return groups() == 1; }
  // Calls f(rank, offset at the rank, offset in the file, bytes) of all that ranks have.
  void for_strips(Pages own, const auto& f) const;
  void for_strips(AllFullKv own, const auto& f) const;

  Agreement ranks_;
  const KvOps& ops_;
  KvShape shape_;
};

}  // namespace quantspec
