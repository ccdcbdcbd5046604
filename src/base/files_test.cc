#include "base/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "base/expect_error.h"
#include "base/test_folder.h"

namespace quantspec {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

class Files : public testing::Test {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename());
    return names;
  }

  const TestFolder own_;
  const fs::path& folder_ = own_.path();
};

TEST_F(Files, ExistenceThatCannotBeToldIsAnError) {
  EXPECT_FALSE(file_exists(folder_ / "nothing"));
  std::ofstream(folder_ / "file") << "x";
  EXPECT_TRUE(file_exists(folder_ / "file"));
  EXPECT_FALSE(file_exists(folder_ / "file" / "below"));
  EXPECT_FALSE(is_folder(folder_ / "file"));
  EXPECT_TRUE(is_folder(folder_));
  EXPECT_FALSE(file_exists(folder_ / "nothing" / "below"));
  fs::create_symlink("../blobs/gone", folder_ / "dangling");
  for (const auto& ask : {file_exists, is_folder}) {
    expect_error(ErrorKind::kInvalidRequest, {"dangling", "a link to ../blobs/gone"},
                 [&] { ask(folder_ / "dangling"); });
  }
  fs::create_symlink("loop", folder_ / "loop");
  expect_error(ErrorKind::kInvalidRequest, {(folder_ / "loop").string(), "symbolic links"},
               [&] { file_exists(folder_ / "loop"); });
  if (geteuid() == 0) return;  // may enter any folder
  fs::create_directory(folder_ / "closed");
  fs::permissions(folder_ / "closed", fs::perms::none);
  expect_error(ErrorKind::kInvalidRequest, {"closed/x", "Permission denied"},
               [&] { file_exists(folder_ / "closed" / "x"); });
}

TEST_F(Files, AFolderIsListedByName) {
  EXPECT_TRUE(list_folder(folder_).empty());
  for (const char* name : {"b", "a", "c"}) std::ofstream(folder_ / name) << "x";
  EXPECT_EQ(list_folder(folder_), (std::vector{folder_ / "a", folder_ / "b", folder_ / "c"}));
  for (const char* name : {"a", "nothing"}) {
    expect_error(ErrorKind::kInvalidRequest, {(folder_ / name).string()},
                 [&] { list_folder(folder_ / name); });
  }
}

TEST_F(Files, AFileIsReadWhole) {
  for (const std::size_t size : {0, 1, 65535, 65536, 65537, 300000}) {
    std::string text(size, 'x');
    if (size > 0) text.back() = '\0';
    std::ofstream(folder_ / "file", std::ios::binary) << text;
    EXPECT_EQ(read_file(folder_ / "file"), text);
    EXPECT_EQ(read_file(folder_ / "file", size), text);
    if (size == 0) continue;
    expect_error(ErrorKind::kCorruptFile, {"file", std::to_string(size - 1)},
                 [&] { read_file(folder_ / "file", size - 1); });
  }
  EXPECT_FALSE(read_file("/proc/self/status").empty());  // says that it has no bytes
}

TEST_F(Files, WhatIsNoFileIsNotRead) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const fs::path& path : {folder_ / "nothing", folder_, pipe}) {
    expect_error(ErrorKind::kInvalidRequest, {path.string()}, [&] { read_file(path); });
  }
}

TEST_F(Files, WhatGitLfsDidNotFetchIsNotRead) {
  const fs::path path = own_.write("weights",
                                   "version https://git-lfs.github.com/spec/v1\n"
                                   "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2"
                                   "ca24d17e2393\nsize 12345\n");
  expect_error(ErrorKind::kInvalidRequest, {"weights", "a Git LFS pointer", "git lfs pull"},
               [&] { read_file(path); });
  own_.write("weights", "version 2 of a text");
  EXPECT_EQ(read_file(path), "version 2 of a text");
  const std::string about = "version https://git-lfs.github.com/spec/" + std::string(1000, 'x');
  own_.write("weights", about);
  EXPECT_EQ(read_file(path), about);
}

TEST_F(Files, ANewFileIsThereWhenItIsFinished) {
  const fs::path path = folder_ / "store";
  std::ofstream(path) << "old";
  {
    NewFile file(path);
    file.append(bytes_of("12345678"));
    file.overwrite(2, bytes_of("ab"));
    file.append(bytes_of("9"));
    EXPECT_EQ(file.size(), 9u);
    EXPECT_EQ(read_file(path), "old");
    file.finish();
    EXPECT_EQ(read_file(path), "12ab56789");
  }
  EXPECT_EQ(names(), std::vector<std::string>{"store"});
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  const mode_t mask = umask(0);
  umask(mask);
  EXPECT_EQ(info.st_mode & 0777, 0666 & ~mask);
}

TEST_F(Files, ANewFileThatIsNotFinishedLeavesNothing) {
  std::ofstream(folder_ / "store") << "old";
  NewFile(folder_ / "store").append(bytes_of("new"));
  EXPECT_EQ(read_file(folder_ / "store"), "old");
  EXPECT_EQ(names(), std::vector<std::string>{"store"});
}

TEST_F(Files, TwoWritersOfOnePathDoNotMeet) {
  const fs::path path = folder_ / "store";
  NewFile first(path), second(path);
  first.append(bytes_of("first"));
  second.append(bytes_of("2nd"));
  first.append(bytes_of(", still"));
  second.finish();
  EXPECT_EQ(read_file(path), "2nd");
  first.finish();
  EXPECT_EQ(read_file(path), "first, still");
}

TEST_F(Files, OnlyAFileGivesWayToANewOne) {
  const fs::path pipe = folder_ / "pipe", link = folder_ / "link", target = folder_ / "target";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::ofstream(target) << "kept";
  fs::create_symlink(target, link);
  const auto expect_refused = [](const fs::path& path, const std::vector<std::string>& mentions) {
    expect_error(ErrorKind::kInvalidRequest, mentions, [&] { NewFile file(path); });
    expect_error(ErrorKind::kInvalidRequest, mentions, [&] { NewFile::require_possible(path); });
  };
  expect_refused(pipe, {pipe.string(), "a named pipe"});
  expect_refused(link, {link.string(), "a link"});
  expect_refused(folder_, {folder_.string(), "a folder"});
  expect_refused("/dev/null", {"/dev/null", "a device"});
  expect_refused(folder_ / "no-such-folder" / "x", {"no-such-folder/x", "No such file"});
  expect_refused(target / "x", {"target/x", "Not a directory"});
  expect_refused(folder_ / std::string(256, 'n'), {"nnn", "too long"});
  expect_refused(folder_ / "x" / "", {"names no file"});
  expect_refused("", {"names no file"});
  EXPECT_EQ(read_file(target), "kept");
  if (geteuid() == 0) return;  // may write to any folder
  fs::create_directory(folder_ / "closed");
  fs::permissions(folder_ / "closed", fs::perms::owner_read | fs::perms::owner_exec);
  expect_refused(folder_ / "closed" / "x", {"closed/x", "Permission denied"});
}

TEST_F(Files, AskingForANewFileMakesNone) {
  NewFile::require_possible(folder_ / "store");
  NewFile::require_possible("store");  // in the working folder
  EXPECT_TRUE(names().empty());
  EXPECT_FALSE(file_exists("store"));
}

TEST_F(Files, FilesLargerThanMayBeAreNotRead) {
  std::ofstream(folder_ / "file") << "12345678";
  EXPECT_EQ(read_file(folder_ / "file", 8), "12345678");
  const auto expect_too_large = [&](const char* name, std::size_t most) {
    expect_error(ErrorKind::kCorruptFile, {name, fmt::format("larger than the {} bytes", most)},
                 [&] { read_file(folder_ / name, most); });
  };
  expect_too_large("file", 7);
  std::ofstream(folder_ / "huge") << "";
  fs::resize_file(folder_ / "huge", std::uintmax_t{1} << 40);  // without taking room on the disk
  expect_too_large("huge", std::size_t{1} << 28);
}

TEST_F(Files, ANameAsLongAsNamesMayBeWorks) {
  const fs::path path = folder_ / std::string(255, 'n');
  NewFile file(path);
  file.append(bytes_of("x"));
  file.finish();
  EXPECT_EQ(read_file(path), "x");
}

}  // namespace
}  // namespace quantspec
