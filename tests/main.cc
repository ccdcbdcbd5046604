// The main() of every test binary: GoogleTest's, but temporary files go to a folder of the
// process's own, which goes with it. Tests may then give their files fixed names: ctest runs
// several processes at once, and so may two people, two checkouts or two jobs on a machine.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

namespace {

class OwnTemporaryFolder : public testing::Environment {
 public:
  // TMPDIR: what std::filesystem and testing::TempDir() go by, and children too.
  void SetUp() override {
    folder_ = parent_ + "quantspec-test-XXXXXX";
    if (mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("no folder like " + folder_);
    setenv("TMPDIR", folder_.c_str(), /*overwrite=*/1);
    unsetenv("TEST_TMPDIR");  // which goes before it
  }
  void TearDown() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

 private:
  const std::string parent_ = testing::TempDir();  // set up again in every --gtest_repeat
  std::string folder_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::AddGlobalTestEnvironment(new OwnTemporaryFolder);  // which GoogleTest deletes
  return RUN_ALL_TESTS();
}
