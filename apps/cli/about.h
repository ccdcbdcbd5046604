// What reports say of this program and of what it was given.
#pragma once

#include "base/report_head.h"
#include "engine/engine.h"

namespace quantspec::cli {

// The commit of the sources that this program was built from, with "-dirty" behind it where they
// had changes; "unknown" where git knows of none. cmake/commit.cmake writes it.
extern const char* const kCommit;

// Version, commit, model and draft store. REQUIRES: a model that was found (resolve_model).
ReportHead report_head(const EngineOptions& engine);

}  // namespace quantspec::cli
