#include "base/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/expect_error.h"
#include "base/test_folder.h"

namespace quantspec {
namespace {

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

class MappedFileTest : public testing::Test {
 protected:
  const TestFolder folder_;
};

TEST_F(MappedFileTest, ShowsTheBytesOfTheFile) {
  const std::string text("a\0b\nc", 5);
  const MappedFile file(folder_.write("bin", text));
  EXPECT_EQ(text_of(file), text);
  EXPECT_EQ(file.path().filename(), "bin");
}

// Of this process: mincore() would tell of the page cache.
std::size_t resident_pages(const MappedFile& file) {
  std::ifstream smaps("/proc/self/smaps");
  const auto begin = fmt::format("{:x}-", reinterpret_cast<std::uintptr_t>(file.bytes().data()));
  for (std::string line; std::getline(smaps, line);) {
    if (!line.starts_with(begin)) continue;
    while (std::getline(smaps, line) && !line.starts_with("Rss:")) {
    }
    return std::stoul(line.substr(4)) / 4;
  }
  return 0;
}

TEST_F(MappedFileTest, WhatIsForgottenLeavesMemoryAndComesBack) {
  if (sysconf(_SC_PAGESIZE) != 4096) GTEST_SKIP() << "of pages of 4096 bytes";
  const std::string text(100 * 4096 + 17, 'x');
  const MappedFile file(folder_.write("bin", text));
  EXPECT_EQ(text_of(file), text);
  if (resident_pages(file) == 0) GTEST_SKIP() << "this system does not tell";
  EXPECT_GE(resident_pages(file), 100u);
  file.forget(file.bytes().subspan(1, 60 * 4096));  // 59 whole pages
  EXPECT_LE(resident_pages(file), 42u);
  EXPECT_GE(resident_pages(file), 40u);
  file.forget(file.bytes().subspan(200, 17));  // none
  EXPECT_EQ(text_of(file), text);
  EXPECT_GE(resident_pages(file), 100u);
}

TEST_F(MappedFileTest, EmptyFileIsAnEmptySpan) {
  const std::string path = folder_.write("empty", "");
  EXPECT_TRUE(MappedFile(path).bytes().empty());
  EXPECT_NO_THROW(MappedFile(path).require_unchanged());
}

TEST_F(MappedFileTest, MovesItsMapping) {
  MappedFile a(folder_.write("a", "first"));
  MappedFile b(folder_.write("b", "second"));
  const std::byte* data = a.bytes().data();
  MappedFile c = std::move(a);
  EXPECT_EQ(c.bytes().data(), data);
  EXPECT_TRUE(a.bytes().empty());
  c = std::move(b);
  EXPECT_EQ(text_of(c), "second");
}

TEST_F(MappedFileTest, WhatCannotBeReadIsNamed) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const auto expect_refused = [](const std::string& path, const std::string& why) {
    expect_error(ErrorKind::kInvalidRequest, {path, why}, [&] { MappedFile file(path); });
  };
  expect_refused("/nowhere/at/all", "No such file");
  expect_refused(folder_.path().string(), "it is a folder");
  expect_refused(pipe, "it is a named pipe");
}

TEST_F(MappedFileTest, WhatBecameShorterReadsAsZerosAndIsReported) {
  MappedFile::survive_losses();
  constexpr std::size_t kBytes = 1 << 16;
  const MappedFile kept(folder_.write("kept", std::string(kBytes, 'k')));
  const MappedFile file(folder_.write("shrinks", std::string(kBytes, 'x')));
  file.require_whole();
  std::filesystem::resize_file(file.path(), 5000);
  const std::string text = text_of(file);  // SIGBUS where it is not caught
  EXPECT_EQ(text[4999], 'x');
  EXPECT_EQ(text[kBytes - 1], '\0');
  expect_error(ErrorKind::kCorruptFile, {file.path().string(), "became shorter"},
               [&] { file.require_whole(); });
  EXPECT_NO_THROW(kept.require_unchanged());
  const MappedFile other(folder_.write("other", "fine"));
  EXPECT_NO_THROW(other.require_whole());
}

TEST_F(MappedFileTest, ABusErrorOfAnotherCauseEndsTheProcess) {
  const std::string path = folder_.write("foreign", std::string(1 << 16, 'x'));
  const auto read_lost_page = [&] {
    MappedFile::survive_losses();
    const int fd = open(path.c_str(), O_RDONLY);
    const auto* data =
        static_cast<volatile const char*>(mmap(nullptr, 1 << 16, PROT_READ, MAP_PRIVATE, fd, 0));
    std::filesystem::resize_file(path, 0);
    return data[0];
  };
  EXPECT_DEATH(read_lost_page(), "");  // by the signal, or by a sanitizer that took it before
}

TEST_F(MappedFileTest, ABusErrorThatWasSentEndsTheProcess) {
  const auto send_one = [] {
    MappedFile::survive_losses();
    kill(getpid(), SIGBUS);
    std::exit(0);
  };
  EXPECT_DEATH(send_one(), "");
}

TEST_F(MappedFileTest, WhatIsWrittenToIsReported) {
  const MappedFile file(folder_.write("written", "first"));
  file.require_unchanged();
  const auto before = std::filesystem::last_write_time(file.path());
  std::ofstream(file.path()) << "other";
  std::filesystem::last_write_time(file.path(), before + std::chrono::seconds(1));
  expect_error(ErrorKind::kCorruptFile, {file.path().string(), "was written to"},
               [&] { file.require_unchanged(); });
}

TEST_F(MappedFileTest, AChangeIsToBlameForWhatCannotBeRead) {
  MappedFile::survive_losses();
  const MappedFile file(folder_.write("shrinks", std::string(1 << 16, 'x')));
  const auto read = [&] {
    return file.while_unchanged([&] {
      if (file.bytes()[60'000] != std::byte{'x'}) fail(ErrorKind::kInvalidRequest, "no x");
      return 5;
    });
  };
  EXPECT_EQ(read(), 5);
  const auto refuse = [&] {
    file.while_unchanged([] { fail(ErrorKind::kInvalidRequest, "its own fault"); });
  };
  expect_error(ErrorKind::kInvalidRequest, {"its own fault"}, refuse);
  std::filesystem::resize_file(file.path(), 5000);
  expect_error(ErrorKind::kCorruptFile, {"became shorter"}, read);
  expect_error(ErrorKind::kCorruptFile, {"became shorter"}, refuse);
}

TEST_F(MappedFileTest, WhatAnotherFileTookThePlaceOfIsKept) {
  const MappedFile file(folder_.write("old", "first"));
  std::filesystem::rename(folder_.write("new", "second"), file.path());
  EXPECT_NO_THROW(file.require_unchanged());
  EXPECT_EQ(text_of(file), "first");
  std::filesystem::remove(file.path());
  EXPECT_NO_THROW(file.require_unchanged());
}

}  // namespace
}  // namespace quantspec
