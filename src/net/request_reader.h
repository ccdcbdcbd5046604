// Reads requests from bytes as they come, in whatever pieces: the parser and the checks, without a
// socket. Memory is bounded by the limits.
//
//     while reading: put bytes into space(), then commit(n), then advance() until it wants more
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "net/body_reader.h"
#include "net/head_check.h"
#include "net/message.h"
#include "net/net.h"

namespace quantspec::net {

class RequestReader {
 public:
  enum class State {
    kWantsMore,  // bytes
    kHead,       // the head is there; the next advance() reads the body
    kDone,       // take() the request
    kRefused,    // refusal(); nothing more can be read
  };

  // `peer`: of every request. REQUIRES: the others outlive it.
  RequestReader(const Limits& limits, const std::vector<std::string>& allowed_hosts,
                std::string peer);

  std::span<char> space();     // where the next bytes go; not empty
  void commit(std::size_t n);  // so many came
  State advance();             // REQUIRES: the last one gave kWantsMore or kHead, or none was
  Request take();              // REQUIRES: kDone. A next request may begin.
  void release();              // gives back memory that is not in use

  // What is known from kHead on.
  const Request& request() const { return request_; }
  bool keeps_alive() const { return keeps_alive_; }
  bool expects_continue() const { return expects_continue_; }  // and has not sent its body
  bool has_body() const { return has_body_; }
  int version() const { return version_; }

  const Refusal& refusal() const { return refusal_; }
  bool has_begun() const;  // bytes of a request are there
  bool is_in_body() const { return body_.has_value(); }

 private:
  State read_head();
  State parse_head(std::string_view text);
  State read_body();
  State refuse(Refusal refusal);
  std::string_view rest() const { return {buffer_.data() + begin_, end_ - begin_}; }

  const Limits& limits_;
  const std::vector<std::string>& allowed_hosts_;
  const std::string peer_;
  std::string buffer_;
  std::size_t begin_ = 0, end_ = 0;  // what is not parsed yet
  std::size_t checked_ = 0;          // bytes of the rest that were looked at
  std::optional<BodyReader> body_;   // between head and end of a request
  Request request_;
  Refusal refusal_{};
  int version_ = 11;
  bool keeps_alive_ = false;
  bool expects_continue_ = false;
  bool has_body_ = false;
};

}  // namespace quantspec::net
