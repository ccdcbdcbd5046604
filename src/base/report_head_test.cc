#include "base/report_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/thread_pool.h"

namespace quantspec {
namespace {

TEST(ReportHead, HasTheMomentTheProcessorAndTheThreads) {
  ReportHead head;
  note_start(head, 3);
  EXPECT_THAT(head.date, ::testing::MatchesRegex("20[0-9]{2}(-[0-9]{2}){2}T([0-9]{2}:?){3}Z"));
  EXPECT_EQ(head.threads, 3);
  note_start(head, 0);
  EXPECT_EQ(head.threads, num_physical_cores());
}

TEST(ReportHead, HasNumbersAsTheyWereTyped) {
  EXPECT_EQ(as_typed(0.8f), 0.8);
  EXPECT_EQ(as_typed(1.0f), 1);
}

TEST(ReportHead, IsJsonWithNumbersAndLists) {
  ReportHead head;
  head.measurement = "axes";
  head.contexts = {128, 64};
  head.tokens = 7;
  const nlohmann::ordered_json json = to_json(head);
  EXPECT_EQ(json.front(), "axes");
  EXPECT_EQ(json["contexts"], (std::vector{128, 64}));
  EXPECT_EQ(json["tokens"], 7);
  EXPECT_EQ(json["draft_store"], "");
}

}  // namespace
}  // namespace quantspec
