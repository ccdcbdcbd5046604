// Files: a read-only memory mapping, and small whole-file reads. Errors name the path.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

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

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The whole file as text. Throws kInvalidRequest when it cannot be read.
std::string read_file(const std::filesystem::path& path);

}  // namespace quantspec
