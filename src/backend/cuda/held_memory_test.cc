#include "backend/cuda/held_memory.h"

#include <gtest/gtest.h>

namespace quantspec::cuda {
namespace {

TEST(CudaHeldMemoryOnHost, StaysAsLongAsItIsHeld) {
  int memory[2];
  EXPECT_FALSE(stays(&memory[0]));
  hold(&memory[0]);
  EXPECT_FALSE(stays(&memory[1]));
  EXPECT_TRUE(stays(&memory[0]));
  EXPECT_TRUE(let_go(&memory[0]));
  EXPECT_FALSE(stays(&memory[0]));  // another's that lies there now
}

TEST(CudaHeldMemoryOnHost, IsTheOwnersAgain) {
  int memory = 0;
  hold(&memory);
  EXPECT_FALSE(let_go(&memory));
  EXPECT_FALSE(stays(&memory));
}

}  // namespace
}  // namespace quantspec::cuda
