// How the rows of each kind are shown to people: headings, units, legends. docs/eval.md describes
// every column. Private to eval/. Pure.
#pragma once

#include <vector>

#include "eval/report.h"

namespace quantspec {

std::vector<ReportView> perplexity_views();
std::vector<ReportView> perplexity_position_views();
std::vector<ReportView> fidelity_views();
std::vector<ReportView> fidelity_position_views();
std::vector<ReportView> target_views();
std::vector<ReportView> entropy_views();
std::vector<ReportView> prefill_views();
std::vector<ReportView> prefill_draft_views();
std::vector<ReportView> sensitivity_views();
std::vector<ReportView> plan_views();
std::vector<ReportView> chosen_views();
std::vector<ReportView> lossless_views();
std::vector<ReportView> stream_views();

}  // namespace quantspec
