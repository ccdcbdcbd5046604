#include "engine/kept_shards.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace quantspec {

void KeptShards::for_strips(Kind kind, std::size_t own, const auto& f) const {
  const std::size_t layers = shape_.num_layers;
  std::size_t at = 0;
  const auto strips = [&](std::size_t count, std::size_t bytes) {
    for (; count > 0; --count, at += bytes) f(at, bytes);
  };
  if (kind == Kind::kFullKv) {
    const std::size_t count = layers * ops_.full_kv_strips();
    strips(count, own / count);
  } else {
    while (at < own) {
      strips(layers, shape_.num_kv_heads * shape_.upper_unit_bytes());
      strips(layers, shape_.num_kv_heads * shape_.lower_unit_bytes());
    }
  }
  check(at == own, "strips make up what a rank has");
}

void KeptShards::gather(Kind kind, std::size_t own,
                        const std::function<void(std::span<std::byte>)>& write,
                        std::span<std::byte> file) const {
  check(!ranks_.leads() || file.size() == file_bytes(own), "a file has room for all ranks");
  if (!ranks_.shared()) return write(file);
  std::vector<std::byte> part(own);
  write(part);
  const std::vector<std::byte> all = ranks_.gather(part);
  if (!ranks_.leads()) return;
  const std::size_t count = ranks_.size();
  for_strips(kind, own, [&](std::size_t at, std::size_t bytes) {
    for (std::size_t rank = 0; rank < count; ++rank) {
      std::copy_n(all.data() + rank * own + at, bytes, file.data() + count * at + rank * bytes);
    }
  });
}

void KeptShards::scatter(Kind kind, std::size_t own, std::span<const std::byte> file,
                         const std::function<void(std::span<const std::byte>)>& read) const {
  check(!ranks_.leads() || file.size() == file_bytes(own), "a file has what all ranks read");
  if (!ranks_.shared()) return read(file);
  std::vector<std::byte> all(ranks_.leads() ? file.size() : 0), part(own);
  const std::size_t count = ranks_.size();
  if (ranks_.leads()) {
    for_strips(kind, own, [&](std::size_t at, std::size_t bytes) {
      for (std::size_t rank = 0; rank < count; ++rank) {
        std::copy_n(file.data() + count * at + rank * bytes, bytes, all.data() + rank * own + at);
      }
    });
  }
  ranks_.scatter(part, all);
  read(part);
}

}  // namespace quantspec
