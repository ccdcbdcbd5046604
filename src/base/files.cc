#include "base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace quantspec {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_read(const fs::path& path, int error) {
  fail(ErrorKind::kInvalidRequest, "cannot read {}: {}", path.string(), std::strerror(error));
}

[[noreturn]] void fail_write(const fs::path& path, int error) {
  fail(ErrorKind::kInvalidRequest, "cannot write {}: {}", path.string(), std::strerror(error));
}

// What is at `path`; st_mode 0: nothing.
struct stat look_at(const fs::path& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) return info;
  if (errno != ENOENT && errno != ENOTDIR) fail_read(path, errno);
  std::error_code not_a_link;
  const fs::path target = fs::read_symlink(path, not_a_link);
  if (not_a_link) return {};
  fail(ErrorKind::kInvalidRequest,
       "cannot read {}: it is a link to {}, where nothing is; put the file there, or remove the "
       "link",
       path.string(), target.string());
}

// https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md: how a pointer begins, and how small it
// is.
bool is_lfs_pointer(const RegularFile& file) {
  constexpr std::string_view kBegin = "version https://git-lfs.github.com/spec/";
  constexpr off_t kLessThan = 1024;
  if (file.info.st_size >= kLessThan) return false;
  std::array<char, kBegin.size()> begin{};
  return pread(file.descriptor, begin.data(), begin.size(), 0) == std::ssize(begin) &&
         std::string_view(begin.data(), begin.size()) == kBegin;
}

std::string_view describe(mode_t mode) {
  if (S_ISLNK(mode)) return "a link";
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "a socket";
}

constexpr std::string_view kPart = ".part";
constexpr int kPartDigits = 8;

// What names of parts of `path` begin with.
std::string begin_of_part(const fs::path& path) {
  constexpr std::size_t kMostOfName = 200;  // of the 255 bytes that a name may have
  return path.filename().native().substr(0, kMostOfName) + ".";
}

// The name of a part of `path`, which another program that writes `path` does not take.
fs::path name_of_part(const fs::path& path) {
  fs::path part = path;
  part.replace_filename(
      fmt::format("{}{:0{}x}{}", begin_of_part(path), std::random_device{}(), kPartDigits, kPart));
  return part;
}

bool is_part_of(const fs::path& part, const fs::path& path) {
  const std::string begin = begin_of_part(path), name = part.filename().native();
  return name.size() == begin.size() + kPartDigits + kPart.size() && name.starts_with(begin) &&
         name.ends_with(kPart) &&
         name.find_first_not_of("0123456789abcdef", begin.size()) == name.size() - kPart.size();
}

// Makes a rename last. Some file systems cannot, and do it by themselves.
void sync_folder(const fs::path& folder) {
  const Descriptor fd(
      open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd >= 0) fsync(fd);
}

}  // namespace

bool file_exists(const fs::path& path) { return look_at(path).st_mode != 0; }

bool is_folder(const fs::path& path) { return S_ISDIR(look_at(path).st_mode); }

std::vector<fs::path> list_folder(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator();
       at.increment(error)) {
    paths.push_back(at->path());
  }
  if (error) fail_read(folder, error.value());
  std::sort(paths.begin(), paths.end());
  return paths;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

RegularFile open_regular(const fs::path& path) {
  // NOTE: O_NONBLOCK, because opening a named pipe would else wait for someone to write to it.
  RegularFile file{Descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), {}};
  if (file.descriptor < 0 || fstat(file.descriptor, &file.info) != 0) fail_read(path, errno);
  if (!S_ISREG(file.info.st_mode)) {
    fail(ErrorKind::kInvalidRequest, "cannot read {}: it is {} and no regular file", path.string(),
         describe(file.info.st_mode));
  }
  if (is_lfs_pointer(file)) {
    fail(ErrorKind::kInvalidRequest,
         "cannot read {}: it is a Git LFS pointer, and the file itself was not fetched; `git lfs "
         "pull` in its repository fetches it",
         path.string());
  }
  return file;
}

std::string read_file(const fs::path& path, std::size_t most) {
  const auto [fd, info] = open_regular(path);
  std::string text;
  const std::size_t known = std::max<std::size_t>(info.st_size, 0);
  for (std::size_t size = 0;; size = text.size()) {
    constexpr std::size_t kStep = std::size_t{1} << 16;
    if (std::max(size, known) > most) {
      fail(ErrorKind::kCorruptFile, "{}: larger than the {} bytes that such a file may have",
           path.string(), most);
    }
    text.resize(size + std::max(kStep, known > size ? known - size : 0));
    const ssize_t count = read(fd, text.data() + size, text.size() - size);
    const int error = errno;
    text.resize(size + std::max<ssize_t>(count, 0));
    if (count < 0 && error != EINTR) fail_read(path, error);
    if (count == 0) return text;
  }
}

void NewFile::require_replaceable(const fs::path& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) fail_write(path, errno);
  } else if (!S_ISREG(info.st_mode)) {
    fail(ErrorKind::kInvalidRequest,
         "cannot write {}: it is {}; a new name or a file to replace works", path.string(),
         describe(info.st_mode));
  }
  if (path.filename().empty()) {
    fail(ErrorKind::kInvalidRequest, "cannot write '{}': it names no file", path.string());
  }
}

void NewFile::require_possible(const fs::path& path) {
  require_replaceable(path);
  const fs::path folder = path.parent_path();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0) fail_write(path, errno);
}

NewFile::NewFile(fs::path path) : path_(std::move(path)) {
  require_replaceable(path_);
  do {
    part_ = name_of_part(path_);
    fd_ = open(part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd_ < 0 && (errno == EEXIST || errno == EINTR));
  if (fd_ < 0) fail_write(path_, errno);
  flock(fd_, LOCK_EX | LOCK_NB);  // somebody writes it: remove_abandoned()
}

void NewFile::remove_abandoned(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  for (const fs::path& part : list_folder(folder)) {
    if (!is_part_of(part, path)) continue;
    const Descriptor fd(open(part.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) unlink(part.c_str());
  }
}

NewFile::~NewFile() {
  if (fd_ >= 0) close(fd_);
  if (!part_.empty()) unlink(part_.c_str());
}

void NewFile::append(std::span<const std::byte> bytes) {
  write(size_, bytes);
  size_ += bytes.size();
}

void NewFile::overwrite(std::uint64_t offset, std::span<const std::byte> bytes) {
  check(offset <= size_ && bytes.size() <= size_ - offset, "what is written over is there");
  write(offset, bytes);
}

void NewFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  check(fd_ >= 0, "a finished file is not written to");
  while (!bytes.empty()) {
    const ssize_t count = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail_write(path_, count < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(count);
    offset += count;
  }
}

void NewFile::finish() {
  check(fd_ >= 0, "a file is finished once");
  if (fsync(fd_) != 0) fail_write(path_, errno);
  if (close(std::exchange(fd_, -1)) != 0) fail_write(path_, errno);
  if (rename(part_.c_str(), path_.c_str()) != 0) fail_write(path_, errno);
  part_.clear();
  sync_folder(path_.parent_path());
}

}  // namespace quantspec
