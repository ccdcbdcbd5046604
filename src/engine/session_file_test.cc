// Sessions in files: what comes back is what was written, also in another process's engine, where
// the text goes on as if nothing had been; what is damaged, cut off or another's is refused; and
// whenever the program is killed, the old file or the new one is there.
#include "engine/session_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <numeric>

#include "base/error.h"
#include "base/expect_error.h"
#include "base/hash.h"
#include "base/test_folder.h"
#include "engine/test_support.h"

namespace quantspec {
namespace {

namespace fs = std::filesystem;

using Bytes = std::vector<std::byte>;

Bytes pattern(std::size_t count, int seed) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 31 + seed);
  return bytes;
}

std::vector<TokenId> numbers(std::size_t count, TokenId first) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

SessionInfo small(int seed, std::size_t tokens = 40) {
  return {.fingerprint = "b1234",
          .note = "note " + std::to_string(seed),
          .tokens = tokens,
          .chunks = 2,
          .chunk_bytes = 1000,
          .tail_tokens = 32,
          .tail_bytes = 300};
}

void write(const fs::path& path, const SessionInfo& info, int seed) {
  SessionFileWriter writer(path, info);
  writer.add(std::as_bytes(std::span<const TokenId>(numbers(info.tokens, seed))));
  for (std::uint64_t i = 0; i < info.chunks; ++i) writer.add(pattern(info.chunk_bytes, seed + i));
  if (info.tail_bytes > 0) writer.add(pattern(info.tail_bytes, seed + 100));
  writer.finish();
}

bool equal(std::span<const std::byte> a, const Bytes& b) { return std::ranges::equal(a, b); }

void expect_content(const SessionFile& file, const SessionInfo& info, int seed) {
  EXPECT_EQ(file.info().fingerprint, info.fingerprint);
  EXPECT_EQ(file.info().note, info.note);
  EXPECT_EQ(file.tokens(), numbers(info.tokens, seed));
  ASSERT_EQ(file.info().chunks, info.chunks);
  for (std::uint64_t i = 0; i < info.chunks; ++i) {
    EXPECT_TRUE(equal(file.chunk(i), pattern(info.chunk_bytes, seed + static_cast<int>(i))));
  }
  ASSERT_EQ(file.info().tail_bytes, info.tail_bytes);
  if (info.tail_bytes == 0) return;
  EXPECT_EQ(file.info().tail_tokens, info.tail_tokens);
  EXPECT_TRUE(equal(file.tail(), pattern(info.tail_bytes, seed + 100)));
}

// All of it. Throws as SessionFile does.
void read_all(const fs::path& path) {
  const SessionFile file(path);
  file.tokens();
  for (std::uint64_t i = 0; i < file.info().chunks; ++i) file.chunk(i);
  if (file.info().tail_bytes > 0) file.tail();
}

TEST(SessionFile, WhatIsWrittenComesBack) {
  const TestFolder folder;
  const fs::path path = folder / "a";
  write(path, small(1), 1);
  expect_content(SessionFile(path), small(1), 1);
  SessionInfo bare{.fingerprint = "b1"};
  write(path, bare, 2);
  expect_content(SessionFile(path), bare, 2);
}

TEST(SessionFile, EveryChangedByteIsFound) {
  const TestFolder folder;
  write(folder / "a", small(1), 1);
  const std::string good = read_file(folder / "a");
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string changed = good;
    changed[at] = static_cast<char>(changed[at] ^ (1 << at % 8));
    const fs::path path = folder.write("changed", changed);
    expect_error(ErrorKind::kCorruptFile, {"changed"}, [&] { read_all(path); });
  }
}

TEST(SessionFile, EveryLengthButTheWholeIsRefused) {
  const TestFolder folder;
  write(folder / "a", small(1), 1);
  const std::string good = read_file(folder / "a");
  for (std::size_t length = 0; length < good.size(); length += length < 300 ? 1 : 37) {
    const fs::path path = folder.write("cut", good.substr(0, length));
    expect_error(ErrorKind::kCorruptFile, {"cut"}, [&] { SessionFile{path}; });
  }
  const fs::path longer = folder.write("longer", good + "x");
  expect_error(ErrorKind::kCorruptFile, {"longer"}, [&] { SessionFile{longer}; });
}

// With a checksum that is right.
TEST(SessionFile, NumbersThatCannotBeAreRefused) {
  const TestFolder folder;
  write(folder / "a", small(1), 1);
  const std::string good = read_file(folder / "a");
  constexpr std::size_t kNumbers = 80, kEnd = 128;
  for (std::size_t at = kNumbers; at < kEnd; at += 8) {
    for (const std::uint64_t value :
         {UINT64_MAX, std::uint64_t{1} << 63, std::uint64_t{1} << 44, std::uint64_t{1} << 28}) {
      std::string changed = good;
      changed.replace(at, 8, reinterpret_cast<const char*>(&value), 8);
      const std::size_t note = small(1).note.size();
      const std::uint64_t checksum =
          hash_bytes(std::as_bytes(std::span(changed)).first(kEnd + note));
      changed.replace(kEnd + note, 8, reinterpret_cast<const char*>(&checksum), 8);
      const fs::path path = folder.write("changed", changed);
      expect_error(ErrorKind::kCorruptFile, {"changed"}, [&] { SessionFile{path}; });
    }
  }
}

// The system kills who writes beyond the limit: so at every write, and in its middle.
TEST(SessionFile, WhoeverIsKilledLeavesTheOldFile) {
  const TestFolder folder;
  const fs::path path = folder / "a";
  write(path, small(1), 1);
  const std::size_t size = fs::file_size(path);
  int killed = 0;
  for (std::size_t most = 0; most <= size; most += most + 97 > size ? 1 : 97) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const rlimit none{0, 0}, limit{most, most};
      setrlimit(RLIMIT_CORE, &none);
      setrlimit(RLIMIT_FSIZE, &limit);
      write(path, small(2), 2);
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
      expect_content(SessionFile(path), small(2), 2);
      write(path, small(1), 1);
    } else {
      ++killed;
      expect_content(SessionFile(path), small(1), 1);
    }
  }
  EXPECT_GT(killed, 20);
  EXPECT_GT(std::ranges::distance(fs::directory_iterator(folder.path())), 1);
  NewFile::remove_abandoned(path);
  EXPECT_EQ(std::ranges::distance(fs::directory_iterator(folder.path())), 1);
}

// --- in engines ---

std::vector<TokenId> words(const Engine& engine, int count) {
  std::string text = "It was";
  for (int i = 0; i < count; ++i) text += fmt::format(" the {} of {} nights,", i % 17, i * i % 23);
  return engine.encode(text, true, 1 << 20);
}

TEST(SavedSession, GoesOnInAnotherEngineAsIfNothingHadBeen) {
  const TestFolder folder;
  const auto all = words(*Engine::load(bundled()), 400);
  ASSERT_GT(all.size(), 1900u);
  // Within the first chunk, a little behind its end, and far behind it.
  for (const std::size_t first : {300, 1030, 1500}) {
    SCOPED_TRACE(first);
    const std::span prompt = std::span(all).first(first), more = std::span(all).subspan(first, 50);
    std::vector<TokenId> undisturbed;
    {
      const auto engine = Engine::load(bundled());
      const auto session = engine->create_session();
      session->generate(prompt, greedy(30));
      session->save(folder / "session", "a note");
      EXPECT_EQ(session->text().size(), first + 30);
      undisturbed = session->generate(more, greedy(40)).tokens;
    }
    const auto engine = Engine::load(bundled());
    const auto session = engine->create_session();
    EXPECT_EQ(session->load(folder / "session"), "a note");
    const GenerateResult result = session->generate(more, greedy(40));
    EXPECT_EQ(result.tokens, undisturbed);
    EXPECT_EQ(result.cached_tokens, static_cast<int>(first) / 16 * 16);
  }
}

TEST(SavedSession, OfAnotherEngineIsRefused) {
  const TestFolder folder;
  const auto engine = Engine::load(bundled());
  engine->save_text(folder / "a", numbers(40, 100));
  EXPECT_EQ(engine->load_text(folder / "a").tokens, numbers(40, 100));
  EngineOptions options = bundled();
  options.target_weights = TargetWeights::k8Bits;
  const auto other = Engine::load(options);
  expect_error(ErrorKind::kInvalidRequest, {"/a:", "another engine"},
               [&] { other->load_text(folder / "a"); });
}

// Whose checksums are right, and whose fingerprint: of an engine like this one, and damaged there.
TEST(SavedSession, WhatCannotBeItsOwnIsRefused) {
  const TestFolder folder;
  const auto engine = Engine::load(bundled());
  SessionInfo info = small(1, 3000);
  info.fingerprint = engine->fingerprint();
  write(folder / "a", info, 1);
  expect_error(ErrorKind::kCorruptFile, {"not of this engine"},
               [&] { engine->load_text(folder / "a"); });
  info = {.fingerprint = engine->fingerprint(), .tokens = 3};
  write(folder / "a", info, -1);
  expect_error(ErrorKind::kCorruptFile, {"the token -1"}, [&] { engine->load_text(folder / "a"); });
  info = {.fingerprint = engine->fingerprint(), .tokens = 40, .tail_tokens = 40, .tail_bytes = 7};
  write(folder / "a", info, 1);
  expect_error(ErrorKind::kCorruptFile, {"not of this engine"},
               [&] { engine->load_text(folder / "a"); });
}

TEST(SavedSession, WhatIsDamagedIsRefusedAndTheEngineGoesOn) {
  const TestFolder folder;
  const auto engine = Engine::load(bundled());
  const auto prompt = words(*engine, 180);
  const auto session = engine->create_session();
  const auto expected = session->generate(prompt, greedy(10)).tokens;
  session->save(folder / "a");
  const std::string good = read_file(folder / "a");
  for (const double share : {0.02, 0.4, 0.6, 0.8, 0.99}) {
    std::string changed = good;
    changed[static_cast<std::size_t>(share * static_cast<double>(good.size()))] ^= 1;
    const fs::path path = folder.write("b", changed);
    const auto other = Engine::load(bundled());
    expect_error(ErrorKind::kCorruptFile, {"/b: is damaged"}, [&] { other->load_text(path); });
    EXPECT_EQ(other->create_session()->generate(prompt, greedy(10)).tokens, expected);
  }
}

TEST(SavedSession, AFolderThatIsNotThereIsRefused) {
  const TestFolder folder;
  const auto engine = Engine::load(bundled());
  expect_error(ErrorKind::kInvalidRequest, {"no/a"},
               [&] { engine->save_text(folder / "no/a", numbers(3, 1)); });
  expect_error(ErrorKind::kInvalidRequest, {"/a"}, [&] { engine->load_text(folder / "a"); });
}

}  // namespace
}  // namespace quantspec
