// Files: whether they are there, their content, and new ones that are whole or not there at all.
// Errors are kInvalidRequest, unless said otherwise, and name the path.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace quantspec {

// Whether there is something at `path`. Throws where that cannot be told (a folder that may not be
// entered, links that go round in circles), and for a link to nothing: something was meant to be
// there.
bool file_exists(const std::filesystem::path& path);

// Whether `path` is a folder. Throws as file_exists() does.
bool is_folder(const std::filesystem::path& path);

// What is in a folder, by name.
std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder);

// A file descriptor, or -1; closed with the object.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&&) = delete;
  operator int() const { return fd_; }

 private:
  int fd_;
};

// A regular file, open to be read, and what the system says of it. Also throws where it is what Git
// LFS puts in the place of a file that it has not fetched.
struct RegularFile {
  Descriptor descriptor;
  struct stat info;
};
RegularFile open_regular(const std::filesystem::path& path);

// The content of a regular file; kCorruptFile for one of more than `most` bytes.
std::string read_file(const std::filesystem::path& path, std::size_t most = SIZE_MAX);

// A file that is written under another name in the same folder and gets its own by finish(). Until
// then, and if that never comes, what was there stays as it was; programs that write one path at
// the same time do not meet, and the last to finish wins. Throws where `path` is something else
// than a regular file (a link, a pipe, a device, a folder).
class NewFile {
 public:
  explicit NewFile(std::filesystem::path path);
  // Removes what programs that were killed while they wrote `path` left of it.
  static void remove_abandoned(const std::filesystem::path& path);
  // Throws now what the constructor would, and makes nothing: for before long work.
  static void require_possible(const std::filesystem::path& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  void append(std::span<const std::byte> bytes);
  // Writes over bytes that are there. REQUIRES: offset + bytes.size() <= size().
  void overwrite(std::uint64_t offset, std::span<const std::byte> bytes);
  // On disk, and in place of what was there, when it returns. Nothing may be written after it.
  void finish();

 private:
  static void require_replaceable(const std::filesystem::path& path);
  void write(std::uint64_t offset, std::span<const std::byte> bytes);

  std::filesystem::path path_;
  std::filesystem::path part_;  // empty: finished
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace quantspec
