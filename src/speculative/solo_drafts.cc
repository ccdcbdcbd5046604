#include "speculative/solo_drafts.h"

namespace quantspec {
namespace {

DraftLengths::Options solo(DraftLengths::Options options) {
  options.max_rows = kMaxDraftLen + 1;
  return options;
}

}  // namespace

SoloDrafts::SoloDrafts(const Model& model, const KvCache& cache, const Plan& target,
                       std::span<const Plan> plans, std::optional<int> fixed_len)
    : bytes_(model, cache.shape(), cache.store(), target, plans),
      lengths_(solo(bytes_.options(fixed_len))),
      drafts_(lengths_.sequence()),
      draft_bytes_(plans.size()) {
  lengths_.reserve(1);
}

DraftChoice SoloDrafts::choose(int cap, int context, const FoundTokens& found) {
  verify_bytes_ = bytes_.verify(context);
  bytes_.draft(context, draft_bytes_);
  const SequenceLoad load = this->load(cap, found);
  const RoundChoice choice = lengths_.choose({&load, 1});
  records_masses_ = choice.records_masses;
  return {choice.looked_up[0] ? bytes_.lookup() : choice.plan, choice.lengths[0]};
}

void SoloDrafts::observe(DraftChoice run, int accepted, double draft_seconds,
                         double verify_seconds) {
  const SequenceLoad load = this->load(run.draft_len);
  const char looked_up = run.draft_len > 0 && run.plan == bytes_.lookup();
  RoundChoice choice{looked_up ? -1 : run.plan, {&run.draft_len, 1}};
  choice.looked_up = {&looked_up, 1};
  lengths_.observe({&load, 1}, choice, {&accepted, 1}, draft_seconds, verify_seconds);
}

}  // namespace quantspec
