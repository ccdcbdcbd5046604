// Any bytes as a plan file: an Error, or a plan that is the same when it was written and read
// again.
#include "base/files.h"
#include "fuzz_input.h"
#include "model/plan.h"

using namespace quantspec;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const PlanContext context{.num_layers = 40, .page_size = 64};
  const auto path = memory_folder().write("plan.json", {reinterpret_cast<const char*>(data), size});
  Plan plan;
  try {
    plan = read_plan_file(path, context);
  } catch (const Error& error) {
    refused(error);
    return 0;
  }
  kv_options({plan});
  NewFile file(path);
  write_plan_file(plan, file);
  require(read_plan_file(path, context).layers == plan.layers);
  return 0;
}
