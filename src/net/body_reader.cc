#include "net/body_reader.h"

#include <algorithm>
#include <utility>

namespace quantspec::net {

namespace {

constexpr int kMostDigits = 15;  // so that no size overflows

}  // namespace

BodyReader::BodyReader(std::optional<std::uint64_t> length, std::size_t most_bytes,
                       std::size_t most_extra)
    : most_bytes_(most_bytes), most_extra_(most_extra), state_(State::kSize) {
  if (!length) return;
  state_ = *length == 0 ? State::kDone : State::kWhole;
  left_ = *length;
  if (left_ > most_bytes) refuse(413, "the body of a request is too long");
}

std::size_t BodyReader::read(std::string_view bytes) {
  std::size_t used = 0;
  while (used < bytes.size() && !refusal_ && !is_done()) {
    if (state_ != State::kWhole && state_ != State::kData) {
      read_byte(bytes[used++]);
      continue;
    }
    const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(left_, bytes.size() - used));
    body_.append(bytes, used, n);
    used += n;
    left_ -= n;
    if (left_ == 0) state_ = state_ == State::kData ? State::kDataCr : State::kDone;
  }
  return used;
}

void BodyReader::read_byte(char c) {
  switch (state_) {
    case State::kSize:
      return read_size(c);
    case State::kExtension:
      return c == '\r' ? void(state_ = State::kSizeEnd) : count_extra(c);
    case State::kSizeEnd:
      return c == '\n' ? end_size() : expect(c, '\n', state_);
    case State::kDataCr:
      return expect(c, '\r', State::kDataEnd);
    case State::kDataEnd:
      return expect(c, '\n', State::kSize);
    case State::kLine:  // after the last chunk
      if (c == '\r') return void(state_ = State::kLastEnd);
      state_ = State::kTrailer;
      return count_extra(c);
    case State::kTrailer:
      return c == '\r' ? void(state_ = State::kTrailerEnd) : count_extra(c);
    case State::kTrailerEnd:
      return expect(c, '\n', State::kLine);
    case State::kLastEnd:
      return expect(c, '\n', State::kDone);
    case State::kWhole:
    case State::kData:
    case State::kDone:
      return;
  }
}

void BodyReader::read_size(char c) {
  const std::string_view digits = "0123456789abcdef";
  const std::size_t digit = digits.find(c >= 'A' && c <= 'F' ? static_cast<char>(c | 0x20) : c);
  if (digit != digits.npos && num_digits_ < kMostDigits) {
    left_ = left_ << 4 | digit;
    ++num_digits_;
  } else if (num_digits_ > 0 && c == ';') {
    state_ = State::kExtension;
  } else if (num_digits_ > 0 && c == '\r') {
    state_ = State::kSizeEnd;
  } else {
    refuse(400, "the size of a chunk is hexadecimal");
  }
}

void BodyReader::end_size() {
  num_digits_ = 0;
  state_ = left_ == 0 ? State::kLine : State::kData;
  if (left_ > most_bytes_ - body_.size()) refuse(413, "the body of a request is too long");
}

void BodyReader::count_extra(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if ((byte < 0x20 && c != '\t') || byte == 0x7F) {
    refuse(400, "extensions and trailers of chunks are text, and their lines end with CR LF");
  } else if (++extra_ > most_extra_) {
    refuse(431, "the extensions or trailers of chunks are too long");
  }
}

void BodyReader::expect(char c, char expected, State next) {
  if (c != expected) return refuse(400, "a chunk does not end where it says");
  state_ = next;
}

void BodyReader::refuse(int status, std::string text) { refusal_ = {status, std::move(text)}; }

}  // namespace quantspec::net
