// Reads the body of a request: so many bytes, or chunks (RFC 9112, section 7.1), strictly.
//
// NOTE: Beast 1.81 asserts, with assertions on, where "0\r\n" comes alone and then "\r", and lets
// an extension of a chunk be as long as its caller's buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "net/head_check.h"

namespace quantspec::net {

class BodyReader {
 public:
  // No length: chunks. `most_bytes`: of the body; `most_extra`: of extensions, and of trailers.
  BodyReader(std::optional<std::uint64_t> length, std::size_t most_bytes, std::size_t most_extra);

  // Reads from the front of `bytes` and returns how many: all, unless the body has ended or is
  // refused.
  std::size_t read(std::string_view bytes);

  bool is_done() const { return state_ == State::kDone; }
  const std::optional<Refusal>& refusal() const { return refusal_; }
  std::string take() { return std::move(body_); }

 private:
  enum class State {
    kWhole,
    kSize,
    kExtension,
    kSizeEnd,
    kData,
    kDataCr,
    kDataEnd,
    kLine,
    kTrailer,
    kTrailerEnd,
    kLastEnd,
    kDone
  };
  void read_byte(char c);
  void read_size(char c);
  void end_size();
  void count_extra(char c);
  void expect(char c, char expected, State next);
  void refuse(int status, std::string text);

  const std::size_t most_bytes_, most_extra_;
  State state_;
  std::uint64_t left_ = 0;  // bytes of the body, or of its chunk
  int num_digits_ = 0;      // of a chunk's size
  std::size_t extra_ = 0;
  std::string body_;
  std::optional<Refusal> refusal_;
};

}  // namespace quantspec::net
