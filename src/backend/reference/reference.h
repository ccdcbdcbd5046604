// The oracle: every op of backend.h as its equation, in fp32 and plain loops, for people to read
// and for the other backends to be tested against. Sums run in index order, so a row has the same
// bits in any company, in either phase and on any number of threads. Here a FullKv is fp32, and
// pages and weight planes lie in canonical order (quant.h): nothing is packed.
//
// Read ops.h for what each op computes, reference_backend.cc for how they combine.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace quantspec::reference {

// num_threads == 0: one per physical core. ranks, groups: as BackendOptions'.
std::unique_ptr<Backend> make_reference_backend(int num_threads, Communicator* ranks = nullptr,
                                                RankGroups groups = {});

}  // namespace quantspec::reference
