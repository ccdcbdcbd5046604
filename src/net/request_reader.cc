#include "net/request_reader.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <cctype>
#include <cstdint>
#include <string_view>
#include <utility>

#include "net/target.h"

namespace quantspec::net {

namespace asio = boost::asio;
namespace http = boost::beast::http;

namespace {

constexpr std::size_t kHeadPiece = 2 << 10;  // that is read at a time
constexpr std::size_t kBodyPiece = 16 << 10;
constexpr std::string_view kEnd = "\r\n\r\n";

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

// Whether the first line ends as one of a version that is not served does: "HTTP/2.0".
bool names_another_version(std::string_view head) {
  const std::string_view line = head.substr(0, head.find('\r'));
  if (line.size() < 9 || line.ends_with("1.1") || line.ends_with("1.0")) return false;
  const std::string_view last = line.substr(line.size() - 9);
  const auto is_digit = [&](std::size_t i) { return last[i] >= '0' && last[i] <= '9'; };
  return last.starts_with(" HTTP/") && is_digit(6) && last[7] == '.' && is_digit(8);
}

}  // namespace

RequestReader::RequestReader(const Limits& limits, const std::vector<std::string>& allowed_hosts,
                             std::string peer)
    : limits_(limits), allowed_hosts_(allowed_hosts), peer_(std::move(peer)) {}

std::span<char> RequestReader::space() {
  const std::size_t piece = is_in_body() ? kBodyPiece : kHeadPiece;
  if (begin_ == end_) begin_ = end_ = 0;
  if (buffer_.size() - end_ < piece && begin_ > 0) {
    std::copy(buffer_.begin() + begin_, buffer_.begin() + end_, buffer_.begin());
    end_ -= std::exchange(begin_, 0);
  }
  if (buffer_.size() - end_ < piece) buffer_.resize(end_ + piece);
  return {buffer_.data() + end_, buffer_.size() - end_};
}

void RequestReader::commit(std::size_t n) { end_ += n; }

void RequestReader::release() {
  std::string kept(rest());
  kept.shrink_to_fit();
  begin_ = 0;
  end_ = kept.size();
  buffer_ = std::move(kept);
}

bool RequestReader::has_begun() const { return is_in_body() || begin_ != end_; }

RequestReader::State RequestReader::advance() { return is_in_body() ? read_body() : read_head(); }

Request RequestReader::take() {
  request_.body = body_->take();
  body_.reset();
  return std::exchange(request_, {});
}

RequestReader::State RequestReader::refuse(Refusal refusal) {
  refusal_ = std::move(refusal);
  keeps_alive_ = false;
  return State::kRefused;
}

RequestReader::State RequestReader::read_head() {
  // Some clients end a body with a line too many, which belongs to no request (RFC 9112,
  // section 2.2).
  while (checked_ == 0 && rest().starts_with("\r\n")) begin_ += 2;
  if (rest().empty() || rest() == "\r") return State::kWantsMore;
  const std::size_t from = checked_ < kEnd.size() ? 0 : checked_ - kEnd.size();
  const std::size_t end = rest().find(kEnd, from);
  const bool is_whole = end != rest().npos;
  const std::size_t bytes = is_whole ? end + kEnd.size() : rest().size();
  // What is no text, as TLS, would otherwise wait for its end until time is up.
  if (!std::isalpha(static_cast<unsigned char>(rest().front()))) {
    return refuse({400, "a request begins with a method"});
  }
  // First, so that what is refused does not depend on how much of it came at once.
  if (auto refusal = check_head_bytes(rest().substr(0, std::min(bytes, limits_.header_bytes)),
                                      std::min(checked_, bytes))) {
    return refuse(std::move(*refusal));
  }
  if (bytes > limits_.header_bytes) {
    return refuse({431, "the head of a request is too long"});
  }
  checked_ = bytes;
  if (!is_whole) return State::kWantsMore;
  checked_ = 0;
  return parse_head(rest().substr(0, bytes));
}

RequestReader::State RequestReader::parse_head(std::string_view text) {
  http::request_parser<http::empty_body> parser;
  parser.header_limit(static_cast<std::uint32_t>(limits_.header_bytes + kEnd.size()));
  parser.body_limit(boost::none);
  boost::beast::error_code error;
  const std::size_t used = parser.put(asio::const_buffer(text.data(), text.size()), error);
  begin_ += text.size();
  if (error == http::error::bad_version && names_another_version(text)) {
    return refuse({505, "the versions are HTTP/1.1 and HTTP/1.0"});
  }
  if (error || used != text.size() || !parser.is_header_done()) {
    return refuse({400, "this is no request of HTTP/1.1"});
  }
  const auto& message = parser.get();
  if (std::size_t(std::distance(message.begin(), message.end())) > limits_.header_fields) {
    return refuse({431, "the head of a request has too many fields"});
  }
  request_ = {};
  request_.peer = peer_;
  request_.method = view(message.method_string());
  for (const auto& field : message) {
    request_.headers.push_back(
        {std::string(view(field.name_string())), std::string(view(field.value()))});
  }
  version_ = static_cast<int>(message.version());
  const std::string_view target = view(message.target());
  if (auto refusal =
          check_head({version_, request_.method, target, request_.headers}, allowed_hosts_)) {
    return refuse(std::move(*refusal));
  }
  auto parsed = parse_target(target);
  if (!parsed) {
    return refuse({400, "the target of a request is a path, with %XX for what is no ASCII"});
  }
  request_.path = std::move(parsed->path);
  request_.query = std::move(parsed->query);
  keeps_alive_ = version_ >= 11 && message.keep_alive();
  std::optional<std::uint64_t> length = 0;
  if (request_.header("Transfer-Encoding") != nullptr) {
    length.reset();
  } else if (parser.content_length()) {
    length = *parser.content_length();
  }
  body_.emplace(length, limits_.body_bytes, limits_.header_bytes);
  if (body_->refusal()) return refuse(*body_->refusal());
  has_body_ = !body_->is_done();
  expects_continue_ =
      has_body_ && version_ >= 11 && request_.header("Expect") != nullptr && rest().empty();
  return State::kHead;
}

RequestReader::State RequestReader::read_body() {
  begin_ += body_->read(rest());
  if (body_->refusal()) return refuse(*body_->refusal());
  return body_->is_done() ? State::kDone : State::kWantsMore;
}

}  // namespace quantspec::net
