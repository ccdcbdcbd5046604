#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "base/error.h"

namespace quantspec {
namespace {

std::string write_temporary(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  const std::string text("a\0b\nc", 5);
  const MappedFile file(write_temporary("mapped_file_test.bin", text));
  EXPECT_EQ(text_of(file), text);
  EXPECT_EQ(file.path().filename(), "mapped_file_test.bin");
  EXPECT_EQ(read_file(file.path()), text);
}

TEST(MappedFile, EmptyFileIsAnEmptySpan) {
  const std::string path = write_temporary("mapped_file_test.empty", "");
  EXPECT_TRUE(MappedFile(path).bytes().empty());
  EXPECT_EQ(read_file(path), "");
}

TEST(MappedFile, MovesItsMapping) {
  MappedFile a(write_temporary("mapped_file_test.a", "first"));
  MappedFile b(write_temporary("mapped_file_test.b", "second"));
  const std::byte* data = a.bytes().data();
  MappedFile c = std::move(a);
  EXPECT_EQ(c.bytes().data(), data);
  EXPECT_TRUE(a.bytes().empty());
  c = std::move(b);
  EXPECT_EQ(text_of(c), "second");
}

TEST(MappedFile, WhatCannotBeReadIsNamed) {
  const std::string pipe = testing::TempDir() + "mapped_file_test.pipe";
  std::filesystem::remove(pipe);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {std::string("/nowhere/at/all"), testing::TempDir(), pipe}) {
    try {
      const MappedFile file(path);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidRequest);
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace quantspec
