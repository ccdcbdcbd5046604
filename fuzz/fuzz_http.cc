// Requests over HTTP: however the bytes are cut, the same is read of them; what is read keeps to
// the limits, and written again in the plainest way it is the same request. The first byte says how
// long the pieces are.
#include <algorithm>
#include <cstring>

#include "base/utf8.h"
#include "fuzz_input.h"
#include "net/request_reader.h"

using namespace quantspec;
using net::Request;
using net::RequestReader;

namespace {

struct Reading {
  std::vector<Request> requests;
  int refusal = 0;  // its status
};

net::Limits limits(bool are_wide) {
  net::Limits limits;
  limits.header_bytes = are_wide ? 1 << 16 : 1 << 10;
  limits.header_fields = are_wide ? 30 : 20;
  limits.body_bytes = 1 << 16;
  return limits;
}

// The pieces have 1, 2, .. `longest` bytes and so on again; 0: there is one.
Reading read(std::string_view bytes, std::size_t longest, bool in_wide_limits = false) {
  const net::Limits given = limits(in_wide_limits);
  const std::vector<std::string> hosts;
  RequestReader reader(given, hosts, "peer");
  Reading reading;
  std::size_t length = 0;
  while (!bytes.empty()) {
    length = longest == 0 ? bytes.size() : length % longest + 1;
    const auto space = reader.space();
    require(!space.empty() && space.size() < (1 << 17));
    const std::size_t n = std::min({space.size(), bytes.size(), length});
    std::memcpy(space.data(), bytes.data(), n);
    reader.commit(n);
    bytes.remove_prefix(n);
    for (RequestReader::State state;
         (state = reader.advance()) != RequestReader::State::kWantsMore;) {
      if (state == RequestReader::State::kRefused) {
        reading.refusal = reader.refusal().status;
        return reading;
      }
      if (state == RequestReader::State::kDone) reading.requests.push_back(reader.take());
    }
    if (bytes.size() % 2 == 0) reader.release();
  }
  return reading;
}

bool same(const Request& a, const Request& b) {
  return a.method == b.method && a.path == b.path && a.query == b.query && a.headers == b.headers &&
         a.body == b.body;
}

std::string escaped(std::string_view text) {
  std::string all;
  for (const unsigned char c : text) {
    if (c == '/') all += '/';
    if (c != '/') all += fmt::format("%{:02X}", c);
  }
  return all;
}

// Without what frames it, which is not the same when it is written again.
Request plain(Request request) {
  std::erase_if(request.headers, [](const net::Header& header) {
    for (const std::string_view name :
         {"Content-Length", "Transfer-Encoding", "Host", "Connection"}) {
      if (net::equal_ignoring_case(header.name, name)) return true;
    }
    return false;
  });
  return request;
}

std::string written(const Request& request) {
  std::string text = request.method + " " + escaped(request.path) + "?";
  for (const auto& [name, value] : request.query) {
    text += escaped(name) + "=" + escaped(value) + "&";
  }
  text += " HTTP/1.1\r\nHost: a\r\n";
  for (const net::Header& header : request.headers)
    text += header.name + ": " + header.value + "\r\n";
  return text + fmt::format("Content-Length: {}\r\n\r\n", request.body.size()) + request.body;
}

void check_request(const Request& request) {
  require(request.path.starts_with('/') && repair_utf8(request.path) == request.path);
  require(request.path.find('\n') == request.path.npos && request.headers.size() <= 20);
  require(request.body.size() <= (1 << 16));
  const Request expected = plain(request);
  const Reading again = read(written(expected), 0, /*in_wide_limits=*/true);
  require(again.refusal == 0 && again.requests.size() == 1);
  require(same(plain(again.requests[0]), expected));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Reading whole = read(bytes, 0);
  const Reading pieces = read(bytes, data[0] % 32 + 1);
  require(whole.refusal == pieces.refusal);
  require(std::equal(whole.requests.begin(), whole.requests.end(), pieces.requests.begin(),
                     pieces.requests.end(), same));
  for (const int status : {0, 400, 413, 417, 431, 501, 505}) {
    if (whole.refusal != status) continue;
    for (const Request& request : whole.requests) check_request(request);
    return 0;
  }
  require(false);
  return 0;
}
