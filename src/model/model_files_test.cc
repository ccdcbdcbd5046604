#include "model/model_files.h"

#include <gtest/gtest.h>

#include "base/expect_error.h"
#include "base/test_folder.h"

namespace quantspec {
namespace {

TEST(ModelFiles, AFoldersConfigIsReadOnce) {
  const TestFolder folder;
  const auto model = std::filesystem::path(QUANTSPEC_TESTDATA) / "models/llama-gqa3";
  const auto files = open_model(folder.path());
  expect_error(ErrorKind::kInvalidRequest, {"no config.json"}, [&] { files->config(); });
  std::filesystem::copy_file(model / "config.json", folder / "config.json");
  EXPECT_EQ(files->config().num_layers, load_config(model).num_layers);
  folder.write("config.json", "{}");
  EXPECT_EQ(files->config().num_layers, load_config(model).num_layers);
}

TEST(ModelFiles, APathToNothingSaysWhatAModelIs) {
  const TestFolder folder;
  const std::filesystem::path path = folder / "missing.gguf";
  expect_error(ErrorKind::kInvalidRequest,
               {path.string() + ": there is no such file or folder", "a GGUF file", "config.json"},
               [&] { open_model(path); });
}

}  // namespace
}  // namespace quantspec
