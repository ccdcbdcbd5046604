// Chunks and tails in a folder: what is found is what was kept for that salt and these tokens;
// what is damaged or another's is not found; and the folder keeps to its budget.
#include "engine/chunk_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/expect_error.h"
#include "base/test_folder.h"
#include "engine/engine.h"
#include "engine/request_loop.h"
#include "engine/test_support.h"

namespace quantspec {
namespace {

namespace fs = std::filesystem;

using Bytes = std::vector<std::byte>;
using Tokens = std::vector<TokenId>;

constexpr int kChunk = 8;

Bytes pattern(std::size_t count, int seed) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 31 + seed);
  return bytes;
}

Tokens numbers(std::size_t count, TokenId first = 1) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

ChunkFolder::Options in(const fs::path& folder, std::uint64_t most = 1 << 20) {
  return {.folder = folder, .most_bytes = most, .fingerprint = "b1", .chunk_tokens = kChunk};
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& one : fs::recursive_directory_iterator(folder)) {
    if (one.is_regular_file()) files.push_back(one.path());
  }
  return files;
}

std::optional<Bytes> chunk_of(ChunkFolder& folder, std::string_view salt, const Tokens& tokens,
                              std::size_t bytes = 100) {
  const auto found = folder.chunk(salt, tokens, bytes);
  if (!found) return std::nullopt;
  return Bytes(found->bytes.begin(), found->bytes.end());
}

void keep(ChunkFolder& folder, std::string_view salt, const Tokens& tokens, const Bytes& bytes) {
  folder.keep_chunk(salt, tokens, bytes.size(),
                    [&](std::span<std::byte> to) { std::ranges::copy(bytes, to.begin()); });
}

// Whether it is asked for its bytes.
bool lacks(ChunkFolder& folder, const Tokens& tokens) {
  bool asked = false;
  try {
    folder.keep_chunk("me", tokens, 100, [&](std::span<std::byte>) {
      asked = true;
      throw std::runtime_error("not now");
    });
  } catch (const std::runtime_error&) {
  }
  return asked;
}

TEST(ChunkFolder, WhatIsKeptIsFoundByTheNextOne) {
  const TestFolder place;
  {
    ChunkFolder folder(in(place / "new" / "cache"));
    EXPECT_TRUE(lacks(folder, numbers(16)));
    keep(folder, "me", numbers(8), pattern(100, 1));
    keep(folder, "me", numbers(16), pattern(100, 2));
    keep(folder, "me", numbers(16), pattern(100, 3));  // the same: the first stays
    keep(folder, "you", numbers(16), pattern(100, 4));
    EXPECT_FALSE(lacks(folder, numbers(16)));
    folder.wait();
    EXPECT_EQ(folder.counts().written, 3u);
  }
  struct stat info {};
  ASSERT_EQ(stat((place / "new" / "cache").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ChunkFolder folder(in(place / "new" / "cache"));
  EXPECT_EQ(chunk_of(folder, "me", numbers(8)), pattern(100, 1));
  EXPECT_EQ(chunk_of(folder, "me", numbers(16)), pattern(100, 2));
  EXPECT_EQ(chunk_of(folder, "you", numbers(16)), pattern(100, 4));
  EXPECT_EQ(chunk_of(folder, "you", numbers(8)), std::nullopt);
  EXPECT_EQ(chunk_of(folder, "", numbers(16)), std::nullopt);
  EXPECT_EQ(chunk_of(folder, "me", numbers(16, 2)), std::nullopt);
  EXPECT_EQ(chunk_of(folder, "me", numbers(24)), std::nullopt);
  EXPECT_EQ(chunk_of(folder, "me", numbers(16), 99), std::nullopt);  // of another cache
  EXPECT_EQ(folder.counts().found, 3u);
  ChunkFolder::Options other = in(place / "new" / "cache");
  other.fingerprint = "b2";
  ChunkFolder others(other);
  EXPECT_EQ(chunk_of(others, "me", numbers(8)), std::nullopt);
}

TEST(ChunkFolder, TheLongestTailThatATextBeginsWithIsFound) {
  const TestFolder place;
  ChunkFolder folder(in(place.path()));
  const auto found = [&](const Tokens& text, std::size_t most = 0) -> std::size_t {
    const auto tail = folder.tail("me", text, most);
    if (!tail) return 0;
    const std::size_t end = tail->file.info().tail_tokens;
    EXPECT_TRUE(std::ranges::equal(tail->bytes, pattern(50, static_cast<int>(end))));
    return end;
  };
  const auto keep_tail = [&](std::string_view salt, int end) {
    folder.keep_tail(salt, numbers(end), end / kChunk * kChunk, 50, [&](std::span<std::byte> to) {
      std::ranges::copy(pattern(50, end), to.begin());
    });
  };
  for (const int end : {3, 6, 12, 14, 21}) keep_tail("me", end);
  keep_tail("you", 15);
  folder.wait();
  EXPECT_EQ(found(numbers(2)), 0u);
  EXPECT_EQ(found(numbers(5)), 3u);
  EXPECT_EQ(found(numbers(9)), 6u);
  EXPECT_EQ(found(numbers(13)), 12u);
  EXPECT_EQ(found(numbers(20)), 14u);
  EXPECT_EQ(found(numbers(30)), 21u);
  EXPECT_EQ(found(numbers(20), 12), 14u);
  EXPECT_EQ(found(numbers(20), 14), 0u);
  EXPECT_EQ(found(numbers(20), 17), 0u);
  Tokens other = numbers(30);
  other[20] = 99;
  EXPECT_EQ(found(other), 14u);
  other[1] = 99;
  EXPECT_EQ(found(other), 0u);
}

TEST(ChunkFolder, WhatIsDamagedIsRemoved) {
  const TestFolder place;
  ChunkFolder folder(in(place.path()));
  keep(folder, "me", numbers(8), pattern(100, 1));
  folder.wait();
  const fs::path path = files_in(place.path()).front();
  const std::string good = read_file(path);
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string changed = good;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << changed;
    ChunkFolder next(in(place.path()));
    EXPECT_EQ(chunk_of(next, "me", numbers(8)), std::nullopt) << at;
    EXPECT_FALSE(fs::exists(path)) << at;
    EXPECT_TRUE(lacks(next, numbers(8)));
  }
  EXPECT_EQ(chunk_of(folder, "me", numbers(8)), std::nullopt);  // it is gone meanwhile
  keep(folder, "me", numbers(8), pattern(100, 1));
  folder.wait();
  EXPECT_EQ(chunk_of(folder, "me", numbers(8)), pattern(100, 1));
}

// A hash says nothing: here is a whole file of other tokens under the name.
TEST(ChunkFolder, TheTokensCountAndNotTheName) {
  const TestFolder place;
  ChunkFolder folder(in(place.path()));
  keep(folder, "me", numbers(8), pattern(100, 1));
  folder.wait();
  const fs::path first = files_in(place.path()).front();
  keep(folder, "me", numbers(8, 100), pattern(100, 2));
  folder.wait();
  for (const fs::path& path : files_in(place.path())) {
    if (path != first) fs::copy_file(path, first, fs::copy_options::overwrite_existing);
  }
  EXPECT_EQ(chunk_of(folder, "me", numbers(8)), std::nullopt);
  EXPECT_EQ(chunk_of(folder, "me", numbers(8, 100)), pattern(100, 2));
}

TEST(ChunkFolder, WhatWasUsedLongAgoGoesFirst) {
  const TestFolder place;
  const SessionInfo info{.fingerprint = "b1",
                         .note = std::string(64, 'x'),
                         .tokens = 8,
                         .chunks = 1,
                         .chunk_bytes = 1000};
  const std::uint64_t each = SessionFileWriter::bytes_of(info);
  place.write("foreign", std::string(5000, 'x'));
  const auto pass = [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  {
    ChunkFolder folder(in(place.path(), 3 * each));
    for (int i = 0; i < 3; ++i) {
      keep(folder, "me", numbers(8, i), pattern(1000, i));
      folder.wait();
      pass();
    }
    EXPECT_EQ(folder.counts().bytes, 3 * each);
    EXPECT_TRUE(chunk_of(folder, "me", numbers(8, 0), 1000));  // now the second is the oldest
    pass();
    keep(folder, "me", numbers(8, 3), pattern(1000, 3));
    folder.wait();
    EXPECT_EQ(folder.counts().removed, 1u);
    EXPECT_TRUE(chunk_of(folder, "me", numbers(8, 0), 1000));
    EXPECT_FALSE(chunk_of(folder, "me", numbers(8, 1), 1000));
    EXPECT_TRUE(chunk_of(folder, "me", numbers(8, 2), 1000));
    EXPECT_TRUE(chunk_of(folder, "me", numbers(8, 3), 1000));
    keep(folder, "me", numbers(8, 4), pattern(4000, 4));  // it never fits
    folder.wait();
    EXPECT_EQ(folder.counts().dropped, 1u);
    EXPECT_EQ(folder.counts().removed, 1u);
  }
  ChunkFolder::Options other =
      in(place.path(), 2 * each);  // of a lesser budget, and another engine
  other.fingerprint = "b2";
  ChunkFolder folder(other);
  EXPECT_EQ(folder.counts().bytes, 2 * each);
  EXPECT_EQ(folder.counts().removed, 1u);
  EXPECT_TRUE(fs::exists(place / "foreign"));
}

TEST(ChunkFolder, WhatTheWriterDoesNotKeepUpWithIsDropped) {
  const TestFolder place;
  ChunkFolder::Options options = in(place.path());
  options.most_waiting = 2500;
  ChunkFolder folder(options);
  keep(folder, "me", numbers(8), pattern(2501, 0));
  EXPECT_EQ(folder.counts().dropped, 1u);
  EXPECT_TRUE(lacks(folder, numbers(8)));
  for (int i = 0; i < 50; ++i) keep(folder, "me", numbers(8, 10 * i), pattern(1000, i));
  folder.wait();
  const FolderCounts counts = folder.counts();
  EXPECT_EQ(counts.written + counts.dropped, 51u);
  EXPECT_EQ(files_in(place.path()).size(), counts.written);
}

TEST(ChunkFolder, AFolderThatCannotBeIsRefused) {
  const TestFolder place;
  const fs::path file = place.write("file", "");
  expect_error(ErrorKind::kInvalidRequest, {"/file:"}, [&] { ChunkFolder{in(file)}; });
  expect_error(ErrorKind::kInvalidRequest, {"/file/below:"},
               [&] { ChunkFolder{in(file / "below")}; });
}

// Whoever is killed leaves whole files and parts, which the next one removes.
TEST(ChunkFolder, WhoIsKilledLeavesWholeFiles) {
  const TestFolder place;
  std::size_t found = 0;
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ChunkFolder folder(in(place.path(), 1 << 30));
      for (int i = 0;; ++i) {
        keep(folder, "me", numbers(8, 100 * round + i), pattern(50'000, i));
        folder.wait();
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(3 * round));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ChunkFolder folder(in(place.path(), 1 << 30));
    for (int i = 0; i < 100; ++i) {
      const auto bytes = chunk_of(folder, "me", numbers(8, 100 * round + i), 50'000);
      if (!bytes) break;
      EXPECT_EQ(*bytes, pattern(50'000, i));
      ++found;
    }
    for (const fs::path& path : files_in(place.path())) EXPECT_NE(path.extension(), ".part");
  }
  EXPECT_GT(found, 10u);
}

// --- in engines ---

TEST(ChunkFolder, AnotherEngineReadsNothingTwice) {
  const TestFolder place;
  EngineOptions options = bundled();
  options.ctx_size = 4096;
  const auto undisturbed = Engine::load(options);
  std::string text = "It was";
  for (int i = 0; i < 600; ++i) text += fmt::format(" the {} of {} nights,", i % 17, i * i % 23);
  const Tokens all = undisturbed->encode(text, true, 1 << 20);
  ASSERT_GT(all.size(), 3000u);
  const Tokens prompt(all.begin(), all.begin() + 2500), more(all.begin(), all.begin() + 2600);
  const auto generate = [](Engine& engine, const Tokens& of, bool to_folder = true) {
    GenerateOptions wanted = greedy(30);
    wanted.to_folder = to_folder;
    return engine.create_session()->generate(of, wanted);
  };
  const Tokens first = generate(*undisturbed, prompt).tokens;
  const Tokens second = generate(*undisturbed, more).tokens;

  options.cache_folder = place.path();
  EngineOptions full = options;
  full.kv_store = KvStore::kFull;
  full.draft_weights = DraftWeights::kUpper;
  expect_error(ErrorKind::kInvalidRequest, {place.path().string()}, [&] { Engine::load(full); });
  {
    const auto engine = Engine::load(options);
    EXPECT_EQ(generate(*engine, prompt, false).tokens, first);
  }
  EXPECT_TRUE(files_in(place.path()).empty());
  {
    const auto engine = Engine::load(options);
    EXPECT_EQ(generate(*engine, prompt).tokens, first);
  }
  EXPECT_EQ(files_in(place.path()).size(), 3u);  // two chunks and a tail
  {
    const auto engine = Engine::load(options);
    const GenerateResult again = generate(*engine, prompt);
    EXPECT_EQ(again.tokens, first);
    EXPECT_EQ(again.cached_tokens, 2496);  // multiples of 16
    const GenerateResult longer = generate(*engine, more);
    EXPECT_EQ(longer.tokens, second);
    EXPECT_EQ(longer.cached_tokens, 2496);
    EXPECT_EQ(engine->folder_counts().found, 3u);
  }
  // Without the first chunk nothing is of use, and it is written again.
  for (const fs::path& path : files_in(place.path())) {
    const SessionInfo info = SessionFile(path, FileKind::kCachePart).info();
    if (info.chunks == 1 && info.tokens == 1024) {
      std::ofstream(path, std::ios::binary) << "damaged";
    }
  }
  const auto engine = Engine::load(options);
  EXPECT_EQ(generate(*engine, prompt).tokens, first);
  EXPECT_EQ(generate(*engine, more).tokens, second);
}

}  // namespace
}  // namespace quantspec
