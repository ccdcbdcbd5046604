// The backend: coarse ops on plain data (params/), one virtual call each. `reference` is the oracle
// (fp32, scalar, one equation one function); `cpu` and `cuda` are the fast ones. Every op of every
// backend is tested against the reference. A backend is all of the interfaces below; who needs one
// takes that one.
//
// Ops read and write the backend's memory: what allocate() gives, and what is said to be the
// host's.
//
// Thread-safety: one op at a time per backend object. Errors: kInvalidRequest for options that name
// what does not exist; internal checks otherwise.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/kv_borders.h"
#include "backend/kv_ops.h"
#include "backend/memory.h"
#include "backend/pass_ops.h"
#include "backend/prefill_ops.h"
#include "backend/round_ops.h"
#include "backend/weight_memory.h"

namespace quantspec {

class Communicator;  // comm/comm.h

class Backend : public WeightMemory,
                public PassOps,
                public PrefillOps,
                public RoundOps,
                public KvOps,
                public KvBorders {
 public:
  virtual std::string name() const = 0;         // as in BackendOptions
  virtual std::string description() const = 0;  // for people: instruction set, threads
};

// Ranks that follow each other: how many share a context, and how many have the same share of the
// weights (model/share.h). All ranks are a multiple of the former, which is one of the latter.
struct RankGroups {
  int context = 1;
  int alike = 1;
};

struct BackendOptions {
  std::string name =
      "auto";           // auto | cuda | cpu | reference; auto: cuda where it can run, else cpu
  int num_threads = 0;  // 0: physical cores
  // The GPU, by ordinal; nullopt: 0, where there is one. `auto` means cuda where it is given.
  std::optional<int> device = {};
  // Those among whom the model is shared (model/share.h), with whom every add_linear() sums and
  // every head() gathers: all call the same ops, on their shares, on backends of one name. Of cuda
  // they are of one machine, each with a GPU, or on one GPU together. Null: nobody.
  // REQUIRES: it outlives the backend, and who drives it tells the others of what an op throws
  // (as_rank()).
  Communicator* ranks = nullptr;
  // Of them; their caches' shapes say so, too (KvShape). Without ranks, to ask how many bytes they
  // need.
  RankGroups groups = {};
};

// Throws kInvalidRequest naming the backends, instruction sets or devices that exist here.
std::unique_ptr<Backend> make_backend(const BackendOptions& options);

// GPUs that this process sees.
int num_gpus();

// Why `auto` does not mean cuda here, where no device is given; empty: it does. Of another GPU than
// the first: why it could not be used.
std::string cuda_unavailable(int device = 0);

// The instruction sets that the cpu backend can use on this machine, best last. The environment
// variable QUANTSPEC_ISA names one to force, for tests.
std::vector<std::string> cpu_instruction_sets();

}  // namespace quantspec
