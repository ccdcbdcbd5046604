#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "backend/reference/reference.h"
#include "base/error.h"

namespace quantspec {

std::unique_ptr<Backend> make_backend(const BackendOptions& options) {
  if (options.num_threads < 0) {
    fail(ErrorKind::kInvalidRequest, "--threads {}: a positive number, or 0 for all cores",
         options.num_threads);
  }
  if (options.name == "auto" || options.name == "cpu")
    return cpu::make_cpu_backend(options.num_threads);
  if (options.name == "reference") return reference::make_reference_backend(options.num_threads);
  fail(ErrorKind::kInvalidRequest, "--backend {}: there are auto, cpu, reference", options.name);
}

std::vector<std::string> cpu_instruction_sets() { return cpu::supported_isas(); }

}  // namespace quantspec
