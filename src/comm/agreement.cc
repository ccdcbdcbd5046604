#include <algorithm>
#include <array>

#include "comm/comm.h"

namespace quantspec {

std::vector<std::byte> Agreement::on(std::vector<std::byte> bytes) const {
  if (!shared()) return bytes;
  const auto size = on(static_cast<std::uint64_t>(bytes.size()));
  bytes.resize(size);
  if (size > 0) ranks_->broadcast(bytes, 0);
  return bytes;
}

std::vector<std::byte> Agreement::gather(std::span<const std::byte> own) const {
  if (!shared()) return {own.begin(), own.end()};
  std::vector<std::byte> all(own.size() * size());
  ranks_->all_gather(all, own);
  return all;
}

void Agreement::scatter(std::span<std::byte> out, std::span<const std::byte> pieces) const {
  if (shared()) return ranks_->scatter(out, pieces, 0);
  std::ranges::copy(pieces, out.begin());
}

std::uint64_t Agreement::least(std::uint64_t own) const {
  if (!shared()) return own;
  std::vector<std::uint64_t> all(size());
  ranks_->all_gather(std::as_writable_bytes(std::span(all)), std::as_bytes(std::span(&own, 1)));
  return *std::ranges::min_element(all);
}

std::string Agreement::first_line(std::string_view own) const {
  if (!shared()) return std::string(own);
  using Line = std::array<char, 256>;  // the rest are zeros
  Line line{};
  own.copy(line.data(), line.size() - 1);
  std::vector<Line> all(size());
  ranks_->all_gather(std::as_writable_bytes(std::span(all)), std::as_bytes(std::span(line)));
  const auto first = std::ranges::find_if(all, [](const Line& one) { return one[0] != 0; });
  return first == all.end() ? "" : first->data();
}

void Agreement::give_up(std::string_view why) const noexcept {
  if (shared()) ranks_->give_up(why);
}

}  // namespace quantspec
