#include "apps/cli/about.h"

#include <quantspec/version.h>

#include "apps/cli/command.h"

namespace quantspec::cli {

ReportHead report_head(const EngineOptions& engine) {
  ReportHead head;
  head.version = QUANTSPEC_VERSION;
  head.commit = kCommit;
  head.model = name_of_model(engine.model);
  head.draft_store = engine.draft_store.string();
  return head;
}

}  // namespace quantspec::cli
