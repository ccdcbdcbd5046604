// The door of the CPU backend: every instruction set of docs/cpu.md and docs/arm.md, chosen when
// the backend is made (or named by the environment variable QUANTSPEC_ISA), and plain C++ anywhere.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace quantspec::cpu {

// num_threads == 0: one per physical core. ranks, groups: as BackendOptions'. Throws
// kInvalidRequest for a bad QUANTSPEC_ISA.
std::unique_ptr<Backend> make_cpu_backend(int num_threads, Communicator* ranks = nullptr,
                                          RankGroups groups = {});

// Instruction sets that this machine can run, worst first.
std::vector<std::string> supported_isas();

}  // namespace quantspec::cpu
