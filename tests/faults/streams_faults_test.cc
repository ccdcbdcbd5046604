// What a comparison of many requests does when one of them fails.
#include "base/expect_error.h"
#include "eval/eval.h"
#include "tests/faults/refusals.h"
#include "tests/faults/support.h"

namespace quantspec::testing {
namespace {

// Had it gone on, the request would never have ended.
TEST_F(Faults, AComparisonEndsByTheRequestThatFails) {
  constexpr double kAlone = 0.1;  // the two requests of the first sampling, of 12 generations
  const Tokens tokens = request(70, 1).prompt;
  const std::vector<Prompt> prompts = {{"a", tokens, {}}, {"b", tokens, {}}};
  LosslessOptions options;
  options.predict = 40;
  options.drafters = {{"w4", this->options().plans}};
  options.draft_lens = {2};
  int late = 0;
  const ProgressCallback progress = [&](std::string_view, double done) {
    if (done < kAlone) return;
    refuse_one_in = 1;
    if (++late > 20'000) fail(ErrorKind::kInternal, "it goes on and on");
  };
  std::vector<StreamRow> rows;
  expect_error(ErrorKind::kOutOfMemory, {"memory"}, [&] {
    eval_lossless_streams({model_.model, model_.pool}, prompts, 2, options, progress, rows);
  });
  refuse_one_in = 0;
  EXPECT_TRUE(rows.empty());
}

}  // namespace
}  // namespace quantspec::testing
