#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace quantspec {

namespace {

[[noreturn]] void fail_open(const std::filesystem::path& path) {
  fail(ErrorKind::kInvalidRequest, "cannot read {}: {}", path.string(), std::strerror(errno));
}

struct FileDescriptor {
  // NOTE: O_NONBLOCK, because opening a named pipe would else wait for someone to write to it.
  explicit FileDescriptor(const std::filesystem::path& path)
      : fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd < 0) fail_open(path);
  }
  ~FileDescriptor() { close(fd); }
  int fd;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const FileDescriptor file(path);
  struct stat info {};
  if (fstat(file.fd, &info) != 0) fail_open(path);
  if (!S_ISREG(info.st_mode)) {
    fail(ErrorKind::kInvalidRequest, "cannot read {}: not a regular file", path.string());
  }
  if (info.st_size == 0) return;
  void* data = mmap(nullptr, info.st_size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) fail_open(path);
  data_ = static_cast<const std::byte*>(data);
  size_ = static_cast<std::size_t>(info.st_size);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::string read_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace quantspec
