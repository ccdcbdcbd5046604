#include "engine/request_bytes.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/error.h"

namespace quantspec {

namespace {

// Both ways go through the same list of fields, so that neither can forget one alone.
class Writer {
 public:
  template <typename T>
  void value(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    add(&value, sizeof(T));
  }
  template <typename Values>
  void values(const Values& values) {
    value(static_cast<std::uint64_t>(values.size()));
    add(values.data(), values.size() * sizeof(*values.data()));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void add(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), bytes, bytes + size);
  }
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  template <typename T>
  void value(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    copy(&value, sizeof(T));
  }
  template <typename Values>
  void values(Values& values) {
    std::uint64_t count = 0;
    value(count);
    check(count <= rest_.size(), "bytes of a request are whole");
    values.resize(count);
    copy(values.data(), count * sizeof(*values.data()));
  }
  bool at_end() const { return rest_.empty(); }

 private:
  void copy(void* to, std::size_t size) {
    check(size <= rest_.size(), "bytes of a request are whole");
    if (size > 0) std::memcpy(to, rest_.data(), size);
    rest_ = rest_.subspan(size);
  }
  std::span<const std::byte> rest_;
};

template <typename Bytes, typename AnyRequest>
void walk(Bytes& bytes, AnyRequest& request) {
  bytes.values(request.prompt);
  bytes.value(request.predict);
  bytes.value(request.sampling);
  bytes.values(request.biases.always);
  bytes.values(request.biases.ends);
  bytes.value(request.biases.min_tokens);
  bytes.value(request.spec_sampling);
  bytes.value(request.draft_len);
  bytes.value(request.forced);
  bytes.values(request.proposed);
  bytes.values(request.reference);
  bytes.value(request.owner);
  bytes.value(request.priority);
  bytes.values(request.salt);
  bytes.value(request.to_folder);
  bytes.value(request.log_probs);
  bytes.value(request.top_log_probs);
  bytes.value(request.prompt_log_probs);
}

}  // namespace

std::vector<std::byte> bytes_of(const Request& request) {
  Writer writer;
  walk(writer, request);
  return writer.take();
}

Request request_of(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Request request;
  walk(reader, request);
  check(reader.at_end(), "bytes of a request have nothing behind");
  return request;
}

}  // namespace quantspec
