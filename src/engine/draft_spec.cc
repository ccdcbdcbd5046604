#include "base/error.h"
#include "engine/engine_options.h"
#include "engine/fields.h"

namespace quantspec {

DraftSpec read_draft_spec(std::string_view spec) {
  constexpr std::string_view kWith = "+lookup", kWithout = "auto+nolookup";
  if (spec == "lookup") return {.plan = {}, .looks_up = true};
  if (spec == kWithout) return {.plan = "auto"};
  if (spec == "auto") return {.plan = spec, .looks_up = true};
  const bool looks_up = spec.ends_with(kWith);
  const std::string_view plan = looks_up ? spec.substr(0, spec.size() - kWith.size()) : spec;
  if (plan.empty()) {
    fail(ErrorKind::kInvalidRequest, "{} '{}': must be a plan's name, auto or lookup", field::kPlan,
         spec);
  }
  return {.plan = plan, .looks_up = looks_up};
}

}  // namespace quantspec
