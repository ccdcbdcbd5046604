#include "engine/chunk_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/sha256.h"

namespace quantspec {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kChunk = ".chunk", kTail = ".tail", kFolder = "f-";

// A salt may be told to nobody, and a name can be read by who lists the folder.
std::string shown_salt(std::string_view salt) { return hex(sha256(salt)); }

std::string hash_of(std::string_view salt, std::span<const TokenId> tokens) {
  std::string text = shown_salt(salt);
  text.append(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  return hash_text_128(text);
}

bool is_ours(const fs::path& path) {
  const std::string name = path.filename().native();
  return name.ends_with(kChunk) || name.ends_with(kTail);
}

fs::path make_folder(const fs::path& folder, std::string_view fingerprint) {
  const fs::path own = folder / (std::string(kFolder) + hash_text_128(fingerprint));
  for (const fs::path& one : {folder, own}) {
    if (one == folder && folder.has_parent_path()) {
      std::error_code error;
      fs::create_directories(folder.parent_path(), error);  // mkdir() says what is wrong
    }
    if (mkdir(one.c_str(), 0700) != 0 && !is_folder(one)) {
      fail(ErrorKind::kInvalidRequest, "{}: cannot be made, or is no folder", one.string());
    }
  }
  return own;
}

// Programs that were killed while they wrote left them.
void remove_parts(const fs::path& folder) {
  constexpr std::string_view kPart = ".part";
  constexpr std::size_t kEnd = std::string_view(".01234567.part").size();
  for (const fs::path& path : list_folder(folder)) {
    const std::string name = path.filename().native();
    if (!name.ends_with(kPart) || name.size() <= kEnd) continue;
    const fs::path of = folder / name.substr(0, name.size() - kEnd);
    if (is_ours(of)) NewFile::remove_abandoned(of);
  }
}

}  // namespace

ChunkFolder::ChunkFolder(Options options)
    : options_(std::move(options)), own_(make_folder(options_.folder, options_.fingerprint)) {
  remove_parts(own_);
  for (const fs::path& path : list_folder(own_)) {
    if (is_ours(path)) names_.insert(path.filename());
  }
  make_room(0);
  writer_ = std::thread([this] { write_all(); });
}

ChunkFolder::~ChunkFolder() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  writer_.join();
}

// --- names ---

std::string ChunkFolder::chunk_name(std::string_view salt, std::span<const TokenId> tokens) const {
  return hash_of(salt, tokens) + std::string(kChunk);
}

std::string ChunkFolder::tail_name(std::string_view salt, std::span<const TokenId> tokens,
                                   int start) const {
  return fmt::format("{}-{}-{}{}", hash_of(salt, tokens.first(start)), tokens.size(),
                     hash_of(salt, tokens), kTail);
}

bool ChunkFolder::knows(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return names_.contains(name);
}

void ChunkFolder::forget(const std::string& name) {
  const std::lock_guard lock(mutex_);
  names_.erase(name);
}

// --- reading ---

SessionInfo ChunkFolder::info_of(std::string_view salt, std::span<const TokenId> tokens) const {
  return {.kind = FileKind::kCachePart,
          .fingerprint = options_.fingerprint,
          .note = shown_salt(salt),
          .tokens = tokens.size()};
}

std::optional<ChunkFolder::Found> ChunkFolder::open(const std::string& name,
                                                    std::span<const TokenId> tokens,
                                                    const SessionInfo& expected) {
  const fs::path path = own_ / name;
  try {
    if (!file_exists(path)) {  // another engine made room
      forget(name);
      return std::nullopt;
    }
    SessionFile file(path, FileKind::kCachePart);
    const SessionInfo& info = file.info();
    const bool is_chunk = expected.chunks > 0;
    const bool is_it =
        info.fingerprint == expected.fingerprint && info.note == expected.note &&
        info.chunks == expected.chunks && info.tail_tokens == expected.tail_tokens &&
        (is_chunk ? info.chunk_bytes == expected.chunk_bytes : info.tail_bytes > 0) &&
        std::ranges::equal(file.tokens(), tokens);
    if (!is_it) return std::nullopt;  // of the same hash
    const auto bytes = is_chunk ? file.chunk(0) : file.tail();
    utimensat(AT_FDCWD, path.c_str(), nullptr, 0);  // it goes later
    const std::lock_guard lock(mutex_);
    ++counts_.found;
    return Found{std::move(file), bytes};
  } catch (const Error& error) {
    const bool is_damaged = error.kind() == ErrorKind::kCorruptFile;
    log_warning(Message::format("{}{}", error.what(), is_damaged ? "; it is removed" : ""));
    std::error_code unknown;
    if (is_damaged) fs::remove(path, unknown);
    forget(name);
    return std::nullopt;
  }
}

std::optional<ChunkFolder::Found> ChunkFolder::chunk(std::string_view salt,
                                                     std::span<const TokenId> tokens,
                                                     std::uint64_t bytes) {
  const std::string name = chunk_name(salt, tokens);
  if (!knows(name)) return std::nullopt;
  SessionInfo expected = info_of(salt, tokens);
  expected.chunks = 1;
  expected.chunk_bytes = bytes;
  return open(name, tokens, expected);
}

std::optional<ChunkFolder::Found> ChunkFolder::tail(std::string_view salt,
                                                    std::span<const TokenId> text,
                                                    std::size_t most) {
  const std::size_t chunk = options_.chunk_tokens;
  for (std::size_t start = text.size() / chunk * chunk;; start -= chunk) {
    if (start + chunk <= most) return std::nullopt;  // none that begins there is longer
    const std::string begin = hash_of(salt, text.first(start)) + "-";
    std::vector<std::pair<std::size_t, std::string>> names;  // the longest first
    {
      const std::lock_guard lock(mutex_);
      for (auto at = names_.lower_bound(begin); at != names_.end() && at->starts_with(begin);
           ++at) {
        const std::size_t end = std::strtoull(at->c_str() + begin.size(), nullptr, 10);
        if (end > std::max(most, start) && end <= text.size()) names.emplace_back(end, *at);
      }
    }
    std::ranges::sort(names, std::greater());
    for (const auto& [end, name] : names) {
      const auto tokens = text.first(end);
      if (name != tail_name(salt, tokens, static_cast<int>(start))) continue;
      SessionInfo expected = info_of(salt, tokens);
      expected.tail_tokens = end;
      if (auto found = open(name, tokens, expected)) return found;
    }
    if (start == 0) return std::nullopt;
  }
}

// --- writing ---

void ChunkFolder::keep_chunk(std::string_view salt, std::span<const TokenId> tokens,
                             std::size_t bytes, const Fill& fill) {
  SessionInfo info = info_of(salt, tokens);
  info.chunks = 1;
  info.chunk_bytes = bytes;
  keep(chunk_name(salt, tokens), info, tokens, bytes, fill);
}

void ChunkFolder::keep_tail(std::string_view salt, std::span<const TokenId> tokens, int start,
                            std::size_t bytes, const Fill& fill) {
  SessionInfo info = info_of(salt, tokens);
  info.tail_tokens = tokens.size();
  info.tail_bytes = bytes;
  keep(tail_name(salt, tokens, start), info, tokens, bytes, fill);
}

void ChunkFolder::keep(std::string name, const SessionInfo& info, std::span<const TokenId> tokens,
                       std::size_t bytes, const Fill& fill) {
  {
    const std::lock_guard lock(mutex_);
    if (names_.contains(name) || std::ranges::find(waiting_, name, &Work::name) != waiting_.end())
      return;
    if (waiting_bytes_ + bytes > options_.most_waiting) {
      ++counts_.dropped;
      return;
    }
  }
  Work work{std::move(name), info, {tokens.begin(), tokens.end()}, std::vector<std::byte>(bytes)};
  fill(work.bytes);
  {
    const std::lock_guard lock(mutex_);
    waiting_bytes_ += bytes;
    waiting_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void ChunkFolder::write_all() {
  bool told = false;  // a disk that is full is full for long
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const Work& work = waiting_.front();
    lock.unlock();
    bool is_written = false;
    try {
      write(work);
      is_written = true;
    } catch (...) {
      if (!std::exchange(told, true)) log_caught("the cache on disk");
    }
    lock.lock();
    is_written ? ++counts_.written : ++counts_.dropped;
    if (is_written) names_.insert(work.name);
    waiting_bytes_ -= work.bytes.size();
    waiting_.pop_front();
    changed_.notify_all();
  }
}

void ChunkFolder::write(const Work& work) {
  const std::uint64_t bytes = SessionFileWriter::bytes_of(work.info);
  if (bytes > options_.most_bytes) {
    fail(ErrorKind::kOutOfMemory, "{}: a file of {} bytes, and {} are the most",
         options_.folder.string(), bytes, options_.most_bytes);
  }
  make_room(bytes);
  SessionFileWriter file(own_ / work.name, work.info);
  file.add(std::as_bytes(std::span(work.tokens)));
  file.add(work.bytes);
  file.finish();
  const std::lock_guard lock(mutex_);
  counts_.bytes += bytes;
}

// Removes what was used least recently, until so many bytes more fit.
void ChunkFolder::make_room(std::uint64_t bytes) {
  struct File {
    timespec used;
    std::uint64_t bytes;
    fs::path path;
  };
  std::vector<File> files;
  std::uint64_t all = 0;
  for (const fs::path& folder : list_folder(options_.folder)) {
    if (!folder.filename().native().starts_with(kFolder) || !is_folder(folder)) continue;
    for (const fs::path& path : list_folder(folder)) {
      struct stat info {};
      if (!is_ours(path) || lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
      files.push_back({info.st_mtim, static_cast<std::uint64_t>(info.st_size), path});
      all += files.back().bytes;
    }
  }
  std::ranges::sort(files, [](const File& a, const File& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  std::uint64_t removed = 0;
  for (const File& file : files) {
    if (all + bytes <= options_.most_bytes) break;
    std::error_code unknown;
    if (!fs::remove(file.path, unknown)) continue;
    all -= file.bytes;
    ++removed;
    if (file.path.parent_path() == own_) forget(file.path.filename());
  }
  const std::lock_guard lock(mutex_);
  counts_.bytes = all;
  counts_.removed += removed;
}

FolderCounts ChunkFolder::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void ChunkFolder::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty(); });
}

}  // namespace quantspec
