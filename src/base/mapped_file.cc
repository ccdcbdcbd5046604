#include "base/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "base/files.h"

namespace quantspec {

// A mapping as the signal handler sees it. Ranges are not freed but used again, since the handler
// may walk over them at any time.
struct MappedFile::Range {
  std::atomic<bool> used = true;
  std::atomic<std::uint64_t> uses = 0;  // so far; counted while nothing is mapped
  std::atomic<std::uintptr_t> begin = 0;
  std::atomic<std::uintptr_t> end = 0;  // 0: nothing is mapped
  std::atomic<bool> lost = false;
  Range* next = nullptr;

  static inline std::atomic<Range*> first = nullptr;
  static inline std::atomic<bool> any_lost = false;
  static inline std::uintptr_t page_size = 0;
  static inline struct sigaction handler_before = {};

  static Range* add(const void* data, std::size_t size);
  void remove();

  // Called by a signal: nothing here may lock or allocate.
  static void on_bus_error(int signal, siginfo_t* info, void* context);
  static bool replace_by_zeros(std::uintptr_t address);
};

MappedFile::Range* MappedFile::Range::add(const void* data, std::size_t size) {
  Range* range = first.load();
  for (; range != nullptr; range = range->next) {
    bool used = false;
    if (range->used.compare_exchange_strong(used, true)) break;
  }
  if (range == nullptr) {
    range = new Range;
    range->next = first.load();
    while (!first.compare_exchange_weak(range->next, range)) {
    }
  }
  ++range->uses;
  range->lost = false;
  range->begin = reinterpret_cast<std::uintptr_t>(data);
  range->end = range->begin + size;
  return range;
}

void MappedFile::Range::remove() {
  end = 0;
  used = false;
}

// The whole rest of the file: what follows a byte that is gone mostly is gone, too.
bool MappedFile::Range::replace_by_zeros(std::uintptr_t address) {
  for (Range* range = first.load(); range != nullptr; range = range->next) {
    // A use writes its end last. Where there is one, and no other use began until both are read,
    // they are of one mapping, and a mapping that has this address is not given back by now.
    const std::uint64_t use = range->uses;
    const std::uintptr_t end = range->end, begin = range->begin;
    if (address < begin || address >= end || range->uses != use) continue;
    range->lost = true;
    any_lost = true;
    const std::uintptr_t page = address / page_size * page_size;
    return mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
  }
  return false;
}

void MappedFile::Range::on_bus_error(int signal, siginfo_t* info, void* context) {
  const bool sent = info->si_code <= 0;  // by kill(): there is no address
  const int error = errno;
  const bool mended = !sent && replace_by_zeros(reinterpret_cast<std::uintptr_t>(info->si_addr));
  errno = error;
  if (mended) return;
  const struct sigaction& before = handler_before;
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    return before.sa_handler(signal);
  }
  if (sent && before.sa_handler == SIG_IGN) return;
  sigaction(SIGBUS, &before, nullptr);
  if (sent) raise(signal);  // else the read comes again, and ends the process
}

void MappedFile::survive_losses() {
  static std::once_flag once;
  std::call_once(once, [] {
    Range::page_size = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action {};
    action.sa_sigaction = Range::on_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, &Range::handler_before);
  });
}

namespace {

bool is_same_time(const std::timespec& a, const std::timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const auto [fd, info] = open_regular(path);
  device_ = info.st_dev;
  inode_ = info.st_ino;
  written_ = info.st_mtim;
  if (info.st_size == 0) return;
  void* data = mmap(nullptr, info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    fail(ErrorKind::kInvalidRequest, "cannot map {}: {}", path.string(), std::strerror(error));
  }
  data_ = static_cast<const std::byte*>(data);
  size_ = static_cast<std::size_t>(info.st_size);
  range_ = Range::add(data_, size_);
}

MappedFile::~MappedFile() {
  if (range_ != nullptr) range_->remove();
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      device_(other.device_),
      inode_(other.inode_),
      written_(other.written_),
      range_(std::exchange(other.range_, nullptr)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  std::swap(written_, other.written_);
  std::swap(range_, other.range_);
  return *this;
}

void MappedFile::forget(std::span<const std::byte> part) const {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(part.data() + part.size()) / page * page;
  check(part.data() >= data_ && part.data() + part.size() <= data_ + size_,
        "what is forgotten is of the file");
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void MappedFile::require_whole() const {
  if (!Range::any_lost.load(std::memory_order_relaxed)) return;
  if (range_ == nullptr || !range_->lost) return;
  fail(ErrorKind::kCorruptFile,
       "{}: became shorter, or could not be read, while it was in use; load it again when it is "
       "whole",
       path_.string());
}

void MappedFile::require_unchanged() const {
  require_whole();
  struct stat now {};
  if (stat(path_.c_str(), &now) != 0) return;  // removed: the mapping keeps what it was
  if (now.st_dev != device_ || now.st_ino != inode_) return;
  if (static_cast<std::size_t>(now.st_size) == size_ && is_same_time(now.st_mtim, written_)) return;
  fail(ErrorKind::kCorruptFile,
       "{}: was written to while it was in use, so what was read may be of two files; load it "
       "again when nothing writes to it",
       path_.string());
}

}  // namespace quantspec
