#include "comm/comm.h"

namespace quantspec {

std::vector<std::byte> Agreement::on(std::vector<std::byte> bytes) const {
  if (!shared()) return bytes;
  const auto size = on(static_cast<std::uint64_t>(bytes.size()));
  bytes.resize(size);
  if (size > 0) ranks_->broadcast(bytes, 0);
  return bytes;
}

void Agreement::give_up(std::string_view why) const noexcept {
  if (shared()) ranks_->give_up(why);
}

}  // namespace quantspec
