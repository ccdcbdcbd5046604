// A file mapped into memory, and what to do when it changes meanwhile. Errors name the path.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <ctime>
#include <filesystem>
#include <span>

#include "base/error.h"

namespace quantspec {

// A file mapped read-only for the life of the object. Thread-safe after construction. An empty file
// maps to an empty span. Throws kInvalidRequest when it cannot be opened.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  // Makes reads of a mapped file that became shorter, or whose disk failed, give zeros, where they
  // would end the process by SIGBUS: require_whole() then throws. For the whole process, from the
  // first call on; other causes of SIGBUS go to the handler that was there before. Programs call
  // it; the library, which may be a guest in a process, does not.
  static void survive_losses();

  // Throws kCorruptFile where bytes were lost after survive_losses(): what was computed of
  // them is worthless. Costs one load while nothing was lost in the whole process.
  void require_whole() const;
  // Throws kCorruptFile also where the file was written to since it was mapped, by its size and its
  // time. One that another took the place of is not changed: the mapping keeps it.
  void require_unchanged() const;
  // Says that `part` of bytes() was read and is not needed soon: its whole pages leave this
  // process's memory. They come back when they are read. For a moment whoever reads them waits.
  void forget(std::span<const std::byte> part) const;
  // What `read` makes of the bytes. Where it throws an Error, a change of the file is to blame
  // first.
  template <typename Read>
  auto while_unchanged(const Read& read) const {
    try {
      return read();
    } catch (const Error&) {
      require_unchanged();
      throw;
    }
  }

 private:
  struct Range;

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::timespec written_{};
  Range* range_ = nullptr;  // null: nothing is mapped
};

}  // namespace quantspec
