// What ranks do that share an engine, beside generating: see tests/ranks_cli_test.py for the rest.
#include "engine/ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "backend/backend.h"
#include "base/error.h"
#include "base/expect_error.h"
#include "engine/engine.h"
#include "engine/test_support.h"

namespace quantspec {
namespace {

// A rank that, while it is `poor`, has no memory for whatever all ask of it: least() hears nothing
// but 0.
class PoorRank final : public Communicator {
 public:
  explicit PoorRank(std::unique_ptr<Communicator> own) : own_(std::move(own)) {}

  int rank() const override { return own_->rank(); }
  int size() const override { return own_->size(); }
  int num_here() const override { return own_->num_here(); }
  void reduce_add(std::span<float> x, std::span<const float> partial, int alike) override {
    own_->reduce_add(x, partial, alike);
  }
  void all_gather(std::span<std::byte> out, std::span<const std::byte> own) override {
    constexpr std::uint64_t kNothing = 0;
    const bool lies = poor && own.size() == sizeof(kNothing);
    own_->all_gather(out, lies ? std::as_bytes(std::span(&kNothing, 1)) : own);
  }
  void all_to_all(std::span<std::byte> out, std::span<const std::byte> own, int group) override {
    own_->all_to_all(out, own, group);
  }
  void broadcast(std::span<std::byte> data, int root) override { own_->broadcast(data, root); }
  void scatter(std::span<std::byte> out, std::span<const std::byte> pieces, int root) override {
    own_->scatter(out, pieces, root);
  }
  void barrier() override { own_->barrier(); }
  void wait_for_all() override { own_->wait_for_all(); }
  void give_up(std::string_view why) noexcept override { own_->give_up(why); }

  std::atomic<bool> poor = false;

 private:
  std::unique_ptr<Communicator> own_;
};

// The memory is short when the first request comes, at one of them: it is refused, they go on.
TEST(Ranks, ARefusalOfMemoryIsOfTheRequestAlone) {
  SharedRanks ranks(2);
  EngineOptions options = bundled();
  options.backend = "cpu";
  options.plan = "quantspec";
  const EngineOptions alone = options;
  options.context_ranks = options.ranks = 2;
  const auto poor = std::make_shared<PoorRank>(ranks.join(1));
  std::string end = "none";
  std::jthread other([&] {
    EngineOptions own = options;
    own.processes = poor;
    try {
      Engine::follow(own, *poor);
    } catch (const Error& error) {
      end = error.what();
    }
  });
  options.processes = ranks.join(0);
  {
    const auto engine = Engine::load(options);
    const auto ask = [&] { return engine->create_session()->generate("Once", greedy(8)).tokens; };
    poor->poor = true;
    for (int i = 0; i < 2; ++i) {
      expect_error(ErrorKind::kOutOfMemory, {"4 requests at a time need", "and 0 MB are available"},
                   ask);
    }
    EXPECT_EQ(engine->requests(), nullptr);
    poor->poor = false;
    EXPECT_EQ(ask(), Engine::load(alone)->create_session()->generate("Once", greedy(8)).tokens);
  }
  other.join();
  EXPECT_EQ(end, "none");
}

// --- by the engine's own options -----------------------------------------------------------------

// Empty: of this backend two ranks find devices.
std::string why_not(const std::string& backend) {
  if (backend != "cuda") return {};
  try {
    make_backend({.name = "cuda", .device = 1});
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

class EngineRanks : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = why_not(GetParam()); !why.empty()) GTEST_SKIP() << why;
    options_.backend = GetParam();
    options_.ctx_size = 8192;
  }
  // Words after so many that a GPU's splits have had several turns, whose number this model's 4 KV
  // heads make odd where there are 132 multiprocessors.
  std::vector<TokenId> tokens() const {
    std::string prompt;
    for (int i = 0; i < 900; ++i) prompt += fmt::format("The {}th clock. ", i);
    return Engine::load(options_)->create_session()->generate(prompt, greedy(40)).tokens;
  }

  EngineOptions options_ = bundled();
};

TEST_P(EngineRanks, ThatShareAContextWriteWhatOneWrites) {
  const std::vector<TokenId> one = tokens();
  options_.ranks = options_.context_ranks = 2;
  EXPECT_EQ(tokens(), one);
}

TEST_P(EngineRanks, AreRefusedByTheOptionsThatCannotBe) {
  // Of several ranks the first that fails may be another than the one that is asked.
  const auto refused = [&](const std::string& mention) {
    try {
      Engine::load(options_);
      ADD_FAILURE() << "no error that mentions " << mention;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(mention), std::string::npos) << error.what();
    }
  };
  options_.context_ranks = 2;
  refused("share a context 2: may be 1, 2, 4 or 8, and no more than number of ranks 1");
  options_.ranks = 2;
  options_.plan = "quantspec+sparse";
  refused("quantspec+sparse: it reads some pages or tokens");
  options_.plan = "auto";
  options_.page_size = 256;
  if (GetParam() == std::string("cuda")) refused("in pages of 32, 64 or 128 tokens, not 256");
}

INSTANTIATE_TEST_SUITE_P(Backends, EngineRanks, ::testing::Values("cpu", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace quantspec
