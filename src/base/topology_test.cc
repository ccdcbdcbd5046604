#include "base/topology.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace quantspec {
namespace {

using testing::ElementsAre;

class TopologyFiles : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void add_node(const std::string& name, const std::string& processors) {
    std::filesystem::create_directories(directory_ / name);
    std::ofstream(directory_ / name / "cpulist") << processors << "\n";
  }
  Topology read() const { return Topology::of_this_process(directory_); }

  // Of its own: tests run side by side.
  const std::filesystem::path directory_ =
      std::filesystem::path(testing::TempDir()) /
      fmt::format("topology_test_{}",
                  testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(TopologyFiles, ANodeHasThoseOfItsProcessorsThatMayBeUsed) {
  const std::vector<int> allowed = allowed_processors();
  ASSERT_FALSE(allowed.empty());
  const std::string first = std::to_string(allowed.front());
  add_node("node0", first + "-" + first + ",100000-100003");
  EXPECT_THAT(read().nodes, ElementsAre(ElementsAre(allowed.front())));
}

TEST_F(TopologyFiles, NodesWithoutProcessorsAreLeftOut) {
  const std::string list = std::to_string(allowed_processors().front());
  add_node("node10", list);  // after node2, by number
  add_node("node2", list);
  add_node("node1", "");
  add_node("node3", "100000-100003");
  add_node("node4x", list);
  add_node("power", list);
  EXPECT_EQ(read().nodes.size(), 2u);
}

TEST_F(TopologyFiles, OneNodeWhereTheSystemSaysNothing) {
  EXPECT_THAT(read().nodes, ElementsAre(allowed_processors()));
  add_node("node0", "broken");
  EXPECT_THAT(read().nodes, ElementsAre(allowed_processors()));
}

TEST(Topology, OfThisMachineHasEveryProcessorOnce) {
  std::vector<int> all;
  for (const auto& node : Topology::of_this_process().nodes) {
    EXPECT_FALSE(node.empty());
    all.insert(all.end(), node.begin(), node.end());
  }
  std::ranges::sort(all);
  EXPECT_EQ(all, allowed_processors());
}

TEST(Topology, ThreadsComeInBlocksByTheirNodesProcessors) {
  const Topology two{{{0, 1, 2, 3}, {4, 5, 6, 7}}};
  EXPECT_THAT(two.nodes_of_threads(1), ElementsAre(0));
  EXPECT_THAT(two.nodes_of_threads(2), ElementsAre(0, 1));
  EXPECT_THAT(two.nodes_of_threads(3), ElementsAre(0, 0, 1));
  EXPECT_THAT(two.nodes_of_threads(8), ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  const Topology uneven{{{0, 1, 2}, {3}, {4, 5}}};
  EXPECT_THAT(uneven.nodes_of_threads(6), ElementsAre(0, 0, 0, 1, 2, 2));
  EXPECT_THAT(uneven.nodes_of_threads(2), ElementsAre(0, 1));
  // More threads than processors.
  EXPECT_THAT(Topology{{{7}}}.nodes_of_threads(3), ElementsAre(0, 0, 0));
  EXPECT_THAT((Topology{{{0}, {1}}}.nodes_of_threads(4)), ElementsAre(0, 0, 1, 1));
}

}  // namespace
}  // namespace quantspec
