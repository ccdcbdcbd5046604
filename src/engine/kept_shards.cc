#include "engine/kept_shards.h"

#include <algorithm>
#include <vector>

#include "backend/params/context.h"
#include "base/error.h"

namespace quantspec {

std::size_t KeptShards::file_bytes(Pages own) const {
  return own.bytes / shape_.page_bytes() * units_in_file() * shape_.unit_bytes();
}

void KeptShards::for_strips(Pages own, const auto& f) const {
  const std::size_t upper = shape_.upper_unit_bytes(), lower = shape_.lower_unit_bytes();
  const std::size_t at_rank = shape_.page_bytes(), in_file = units_in_file() * shape_.unit_bytes();
  const std::size_t count = own.bytes / at_rank;
  check(count * at_rank == own.bytes, "of pages all is kept");
  const auto units_of_page = [&](std::size_t page, int layer, int kv_head) {
    const int turn = ops_.context_turn(shape_, static_cast<int>(own.first + page));
    for (std::size_t group = 0; group < groups(); ++group) {
      const std::size_t rank =
          group * shape_.context_ranks + rank_of_turn(shape_, turn, layer, kv_head);
      const std::size_t unit = (layer * groups() + group) * shape_.num_kv_heads + kv_head;
      f(rank, page * at_rank + own_upper_offset(shape_, layer, kv_head),
        page * in_file + unit * upper, upper);
      f(rank, page * at_rank + shape_.units() * upper + own_lower_offset(shape_, layer, kv_head),
        page * in_file + units_in_file() * upper + unit * lower, lower);
    }
  };
  for (std::size_t page = 0; page < count; ++page) {
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      for (int head = 0; head < shape_.num_kv_heads; ++head) units_of_page(page, layer, head);
    }
  }
}

// Of a layer strips have the heads side by side, which are the same at all ranks of a group.
void KeptShards::for_strips(AllFullKv own, const auto& f) const {
  const std::size_t count = static_cast<std::size_t>(shape_.num_layers) * ops_.full_kv_strips();
  const std::size_t bytes = own.bytes / count, ranks = ranks_.size();
  check(count * bytes == own.bytes, "strips make up what a rank has");
  for (std::size_t strip = 0; strip < count; ++strip) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const std::size_t group = rank / shape_.context_ranks;
      f(rank, strip * bytes, (strip * groups() + group) * bytes, bytes);
    }
  }
}

template <typename Own>
void KeptShards::gather(Own own, const std::function<void(std::span<std::byte>)>& write,
                        std::span<std::byte> file) const {
  check(!ranks_.leads() || file.size() == file_bytes(own), "a file has room for all ranks");
  if (!ranks_.shared()) return write(file);
  if (whole(own)) {
    if (ranks_.leads()) write(file);
    return;
  }
  std::vector<std::byte> part(own.bytes);
  write(part);
  const std::vector<std::byte> all = ranks_.gather(part);
  if (!ranks_.leads()) return;
  for_strips(own, [&](std::size_t rank, std::size_t at, std::size_t in_file, std::size_t bytes) {
    std::copy_n(all.data() + rank * own.bytes + at, bytes, file.data() + in_file);
  });
}

template <typename Own>
void KeptShards::scatter(Own own, std::span<const std::byte> file,
                         const std::function<void(std::span<const std::byte>)>& read) const {
  check(!ranks_.leads() || file.size() == file_bytes(own), "a file has what all ranks read");
  if (!ranks_.shared()) return read(file);
  if (whole(own)) return read(ranks_.on(std::vector<std::byte>(file.begin(), file.end())));
  std::vector<std::byte> all(ranks_.leads() ? ranks_.size() * own.bytes : 0), part(own.bytes);
  if (ranks_.leads()) {
    for_strips(own, [&](std::size_t rank, std::size_t at, std::size_t in_file, std::size_t bytes) {
      std::copy_n(file.data() + in_file, bytes, all.data() + rank * own.bytes + at);
    });
  }
  ranks_.scatter(part, all);
  read(part);
}

using Write = std::function<void(std::span<std::byte>)>;
using Read = std::function<void(std::span<const std::byte>)>;
template void KeptShards::gather(Pages, const Write&, std::span<std::byte>) const;
template void KeptShards::gather(AllFullKv, const Write&, std::span<std::byte>) const;
template void KeptShards::scatter(Pages, std::span<const std::byte>, const Read&) const;
template void KeptShards::scatter(AllFullKv, std::span<const std::byte>, const Read&) const;

}  // namespace quantspec
