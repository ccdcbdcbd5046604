#include "backend/cuda/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace quantspec::cuda {
namespace {

using testing::HasSubstr;

TEST(CudaTuningOnHost, OfGpusThatNobodyTimedIsThatOf90) {
  EXPECT_EQ(timed_tuning(90).short_split, 1024);
  EXPECT_EQ(timed_tuning(1), timed_tuning(90));
}

TEST(CudaTuningOnHost, TakesChanges) {
  const Tuning timed = timed_tuning(90);
  EXPECT_EQ(changed(timed, ""), timed);
  Tuning other = timed;
  other.half_rows = 9;
  other.draft_rounds = 1 << 19;
  EXPECT_EQ(changed(timed, "half_rows=9,draft_rounds=524288"), other);
  EXPECT_EQ(changed(timed, "half_rows=3,half_rows=9,draft_rounds=524288,"), other);
}

TEST(CudaTuningOnHost, RefusesWhatItCannotTake) {
  const auto refusal = [](const char* changes) -> std::string {
    try {
      changed(timed_tuning(90), changes);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidRequest);
      return error.what();
    }
    return "none";
  };
  for (const char* wrong : {"half_rows", "half=9", "=9", ",half_rows=9", " half_rows=9"}) {
    EXPECT_THAT(refusal(wrong), HasSubstr("is not NAME=NUMBER; the names are half_rows, half_"));
  }
  for (const char* wrong : {"half_rows=", "half_rows=0", "half_rows=-4", "half_rows=524289",
                            "half_rows=9x", "half_rows=99999999999", "half_rows=9 "}) {
    EXPECT_THAT(refusal(wrong), HasSubstr("half_rows must be a number from 1 to 524288, not '"));
  }
  EXPECT_THAT(refusal("streamed_stages=1"), HasSubstr("from 2 to"));
  EXPECT_THAT(refusal("overlaps=2"), HasSubstr("overlaps must be a number from 0 to 1, not '2'"));
  EXPECT_THAT(refusal("short_split=1000"), HasSubstr("short_split must be a power of two"));
}

}  // namespace
}  // namespace quantspec::cuda
