#include "datasets/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <span>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/system_memory.h"

namespace quantspec {

namespace {

constexpr int kGzipOnly = 16 + MAX_WBITS;                // zlib's code for: a gzip header, no other
constexpr std::size_t kMaxInput = std::size_t{1} << 30;  // zlib counts in 32 bits
constexpr std::size_t kOutputBytes = std::size_t{1} << 18;

// A text grows to 2 to 10 times its compressed bytes, what was made to fill a memory to 1000 times.
constexpr std::size_t kMostGrowth = 100;
constexpr std::size_t kFreeBytes = std::size_t{1} << 26;  // whatever the growth

// The longest text that there is memory for: the file has it, and then its documents, too.
std::size_t most_text() { return available_memory_bytes() / 2; }

[[noreturn]] void fail_too_long(const std::filesystem::path& path, std::size_t most) {
  fail(ErrorKind::kOutOfMemory,
       "{}: a text of more than the {:.0f} MB that there is memory for; a part of it works",
       path.string(), most / 1e6);
}

bool is_padding(std::span<const std::byte> rest) {
  return std::ranges::all_of(rest, [](std::byte byte) { return byte == std::byte{0}; });
}

// Decompresses the members of a gzip file (RFC 1952), one after another. Zeros after the last, with
// which tapes and archives fill a block, are padding, as to gzip.
class Inflater {
 public:
  explicit Inflater(const std::filesystem::path& path) : path_(path), output_(kOutputBytes) {
    check(inflateInit2(&stream_, kGzipOnly) == Z_OK, "zlib starts");
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  std::string text(std::span<const std::byte> file);

 private:
  // One call of zlib; true at the end of a member.
  bool step(std::span<const std::byte>& rest, std::string& text);

  const std::filesystem::path& path_;
  std::vector<char> output_;
  z_stream stream_{};
};

std::string Inflater::text(std::span<const std::byte> file) {
  std::string text;
  std::span<const std::byte> rest = file;
  const std::size_t most = kFreeBytes + kMostGrowth * file.size(), room = most_text();
  do {
    for (bool ended = false; !ended;) {
      ended = step(rest, text);
      if (text.size() > room) fail_too_long(path_, room);
      if (text.size() > most) {
        fail(ErrorKind::kCorruptFile,
             "{}: {} bytes that decompress to more than {}; if they are good, decompress them and "
             "give the file without .gz",
             path_.string(), file.size(), most);
      }
    }
    inflateReset(&stream_);
  } while (!is_padding(rest));
  return text;
}

bool Inflater::step(std::span<const std::byte>& rest, std::string& text) {
  const std::size_t given = std::min(rest.size(), kMaxInput);
  stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(rest.data()));
  stream_.avail_in = static_cast<uInt>(given);
  stream_.next_out = reinterpret_cast<Bytef*>(output_.data());
  stream_.avail_out = static_cast<uInt>(output_.size());
  const int status = inflate(&stream_, Z_NO_FLUSH);
  text.append(output_.data(), output_.size() - stream_.avail_out);
  rest = rest.subspan(given - stream_.avail_in);
  if (status == Z_STREAM_END) return true;
  if (status == Z_OK && (!rest.empty() || stream_.avail_out == 0)) return false;
  if (status == Z_OK || status == Z_BUF_ERROR) {
    fail(ErrorKind::kCorruptFile, "{}: the gzip data is cut short", path_.string());
  }
  fail(ErrorKind::kCorruptFile, "{}: broken gzip data: {}", path_.string(),
       stream_.msg != nullptr ? stream_.msg : "unknown reason");
}

}  // namespace

std::string read_text(const std::filesystem::path& path) {
  std::error_code unknown;  // read_file() will say why
  const std::uintmax_t size = std::filesystem::file_size(path, unknown);
  if (const std::size_t room = most_text(); !unknown && size > room) fail_too_long(path, room);
  if (path.extension() != ".gz") return read_file(path);
  const std::string file = read_file(path);
  return Inflater(path).text(std::as_bytes(std::span(file)));
}

}  // namespace quantspec
