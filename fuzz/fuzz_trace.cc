// Any bytes as a trace of requests: an Error, or requests in their order and within the limits.
#include "bench/trace.h"
#include "fuzz_input.h"

using namespace quantspec;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto path =
      memory_folder().write("trace.jsonl", {reinterpret_cast<const char*>(data), size});
  Trace trace;
  try {
    trace = read_trace(path);
  } catch (const Error& error) {
    refused(error);
    return 0;
  }
  require(!trace.requests.empty());
  require(std::ranges::is_sorted(trace.requests, {}, &TraceRequest::arrival));
  const int context = trace.context();
  for (const TraceRequest& request : trace.requests) {
    require(request.arrival >= 0 && request.prompt_tokens >= 1 && request.output_tokens >= 1);
    require(request.shared_tokens <= request.prompt_tokens);
    require((request.shared_tokens > 0) == !request.prefix.empty());
    require(request.prompt_tokens + request.output_tokens <= context);
  }
  return 0;
}
