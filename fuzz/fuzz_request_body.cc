// A request's body to what it asks for: every body is read or refused with one line that names no
// bug, and what was read keeps to the table's bounds.
#include "api/body_json.h"
#include "api/messages.h"
#include "api/request_fields.h"
#include "base/error.h"
#include "fuzz_input.h"

using namespace quantspec;
using namespace quantspec::api;

namespace {

void require_bounds(const Wanted& wanted) {
  require(wanted.n >= 1 && wanted.n <= kMostN);
  require(wanted.prompts.size() <= kMostPrompts);
  require(wanted.stop.size() <= kMostStops);
  for (const std::string& stop : wanted.stop) {
    require(!stop.empty() && stop.size() <= kMostStopBytes);
  }
  require(!wanted.max_tokens || *wanted.max_tokens >= -1);
  require(!wanted.draft_len || (*wanted.draft_len >= 0 && *wanted.draft_len <= 16));
  wanted.sampling.validate();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions, Endpoint::kTokenize,
                                  Endpoint::kDetokenize, Endpoint::kApplyTemplate}) {
    try {
      std::vector<std::string> unknown;
      const Wanted wanted = read_wanted(endpoint, parse_body(text), {}, unknown);
      require_bounds(wanted);
      if (!wanted.messages.is_null()) conversation_of(wanted);
    } catch (const Error& error) {
      require(error.kind() == ErrorKind::kInvalidRequest);
    }
  }
  return 0;
}
