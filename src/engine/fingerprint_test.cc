// Engine::fingerprint(): equal where tokens are, another where they may differ.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "backend/backend.h"
#include "base/test_folder.h"
#include "engine/test_support.h"

namespace quantspec {
namespace {

std::string fingerprint(EngineOptions options) { return Engine::load(options)->fingerprint(); }

TEST(Fingerprint, FollowsFromWhatTokensFollowFrom) {
  const std::string usual = fingerprint(bundled());
  EXPECT_EQ(usual.size(), 33u);
  EXPECT_EQ(usual[0], 'b');

  EngineOptions same = bundled(DraftWeights::kFull);
  same.num_threads = 1;
  same.ctx_size = 512;
  same.sequences = 1;
  EXPECT_EQ(fingerprint(same), usual);

  std::set<std::string> others = {usual};
  EngineOptions pages = bundled(), target = bundled(), cache = bundled(), reference = bundled();
  pages.page_size = 32;
  target.target_weights = TargetWeights::k8Bits;
  cache.kv_store = KvStore::kFull;
  reference.backend = "reference";
  for (const EngineOptions& options : {pages, target, cache, reference}) {
    EXPECT_TRUE(others.insert(fingerprint(options)).second);
  }
}

// So ranks that are processes may see their GPUs by any numbers, and files go with any of them.
TEST(Fingerprint, IsThatOfAnyGpuOfAKind) {
  if (num_gpus() < 2) GTEST_SKIP() << "one GPU, or none";
  EngineOptions first = bundled(), second = bundled();
  first.device = 0;
  second.device = 1;
  EXPECT_EQ(fingerprint(first), fingerprint(second));
}

// Some files of a model are not read as weights are.
TEST(Fingerprint, KnowsTheEndsOfTextAndTheTemplates) {
  const TestFolder folder;
  std::filesystem::copy(bundled().model, folder.path());
  EngineOptions options = bundled();
  options.model = folder.path();
  const std::string usual = fingerprint(options);
  EXPECT_EQ(usual, fingerprint(bundled()));
  std::ofstream(folder.path() / "chat_template.jinja") << "{{ messages[0].content }}";
  const std::string with_template = fingerprint(options);
  EXPECT_NE(with_template, usual);
  std::ofstream(folder.path() / "generation_config.json") << R"({"eos_token_id": [2, 5]})";
  EXPECT_NE(fingerprint(options), with_template);
}

}  // namespace
}  // namespace quantspec
