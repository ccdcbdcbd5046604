// Reads the header of a GGUF file from front to back. Every length is compared with what is left
// before anything is read or reserved. Numbers are little-endian, as this machine is.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "base/error.h"
#include "base/shown.h"

namespace quantspec {

class GgufReader {
 public:
  // `where` (a path) is for messages. REQUIRES: it outlives the reader.
  GgufReader(std::span<const std::byte> bytes, std::string_view where)
      : bytes_(bytes), where_(where) {
    static_assert(std::endian::native == std::endian::little);
  }

  std::size_t position() const { return position_; }
  std::size_t left() const { return bytes_.size() - position_; }

  // `what` is being read, of something called `name` (of the file, so not yet known to be
  // harmless).
  template <typename Number>
  Number number(std::string_view what, std::string_view name = {}) {
    Number number;
    std::memcpy(&number, take(sizeof(Number), what, name).data(), sizeof(Number));
    return number;
  }

  // A length and so many bytes.
  std::string_view text(std::size_t most, std::string_view what, std::string_view name = {}) {
    const auto length = number<std::uint64_t>(what, name);
    if (length > most) {
      fail(ErrorKind::kCorruptFile, "{}: {}{}{} has a text of {} bytes; the most are {}", where_,
           what, name.empty() ? "" : " ", name.empty() ? "" : shown(name), length, most);
    }
    const auto bytes = take(length, what, name);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::span<const std::byte> take(std::uint64_t count, std::string_view what,
                                  std::string_view name = {}) {
    if (count > left()) {
      fail(ErrorKind::kCorruptFile, "{}: truncated: {}{}{} needs {} bytes and {} are left", where_,
           what, name.empty() ? "" : " ", name.empty() ? "" : shown(name), count, left());
    }
    const auto taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }

 private:
  std::span<const std::byte> bytes_;
  std::string_view where_;
  std::size_t position_ = 0;
};

}  // namespace quantspec
