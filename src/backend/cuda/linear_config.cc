#include "backend/cuda/linear_config.h"

#include <algorithm>
#include <numeric>

namespace quantspec::cuda {

namespace {

// Stages of a ring, the best first.
constexpr int kDepths[] = {8, 6, 5, 4, 3, 2};

// What is decided for an op of some number of rows: the blocks of a cluster come first, the rest
// follows.
class Sharing {
 public:
  Sharing(const LinearMachine& machine, const LinearSizes& format, const LinearShape& shape)
      : machine_(machine), format_(format), shape_(shape) {}

  // Two blocks of threads fit on a multiprocessor if that is possible; one, where activations are
  // streamed (what counts then is how much is under way) and where takes_all_memory().
  std::optional<LinearConfig> config() const {
    const int widest = machine_.capability >= 90 ? shape_.segments : 1;
    const int first = std::min(widest, narrowest());
    if (streamed()) return streamed_config(first);
    for (int cluster = first; cluster <= widest; cluster *= 2) {
      if (const auto found = prepared_config(cluster)) return found;
    }
    return std::nullopt;
  }

  // Whether one block of threads on each multiprocessor has no more than two tiles, so that a
  // second would only prepare the activations again; the next kernel's blocks have the room, unless
  // takes_all_memory().
  bool one_block_suffices() const { return total_tiles() <= 2 * machine_.num_sms; }

 private:
  bool streamed() const { return format_.streamed > 0; }
  int total_tiles() const { return std::accumulate(shape_.tiles.begin(), shape_.tiles.end(), 0); }
  bool wants_whole_heads() const { return shape_.op == LinearOp::kQkv && shape_.heads_normed; }

  // Whether a block takes a whole multiprocessor's memory for its rings: where it is alone there
  // anyway, and has a row of more than 8192 inputs, beside which half of it has room for two stages
  // and all of it for five. More rows of codes, too, which have stages as large.
  // NOTE: measured on an H200 with 11008 and 14336 inputs: docs/decisions/0008, "Rings of long
  // rows", for one row of drafts; codes as they are in 0013, not against half of the memory.
  // Between 4224 and 8192 inputs, where half has room for two stages, too, nothing was measured.
  // The next kernel's blocks then come later.
  bool takes_all_memory() const {
    return format_.large_stages() && shape_.bands > 8 * shape_.segments && one_block_suffices();
  }

  // The cluster to begin with. Narrow blocks finish with few barriers and clusters leave
  // multiprocessors idle, wide ones prepare fewer activations.
  // NOTE: measured on an H200 with the matrices of 7B and 8B models (docs/decisions/0013, 0017).
  // Planes, by bands of activations for a warp: of matrices that one block suffices for 1 is the
  // fastest up to 14, 2 up to 16 and up to pair_rows; of others 1 up to lone_bands, 2 of the
  // largest up to 32; then 8. Where activations are streamed nothing is prepared. fp32 was measured
  // with 16 bits: as narrow as leaves room for a ring of 4 stages, but from 5 rows on 8 for the
  // largest.
  int narrowest() const {
    if (wants_whole_heads()) return kSegments;
    if (streamed()) return 1;
    if (format_.planes) {
      const int bands = divide_up(shape_.num_rows * shape_.bands, shape_.segments);  // of a warp
      if (bands <= (one_block_suffices() ? 14 : format_.lone_bands)) return 1;
      if (one_block_suffices() && shape_.num_rows <= format_.pair_rows) return 2;
      return bands <= (total_tiles() > 12 * machine_.num_sms ? 32 : 16) ? 2 : kSegments;
    }
    if (shape_.num_rows > 4 && total_tiles() > 8 * machine_.num_sms) return kSegments;
    constexpr int kRoom[] = {68 << 10, 116 << 10};  // for activations, in clusters of 1 and 2
    for (int i = 0; 1 << i <= std::min(2, shape_.segments); ++i) {
      const LinearPlaces places = config_of(1 << i, 1, 2).places;
      if (places.groups - places.values <= kRoom[i]) return 1 << i;
    }
    return kSegments;
  }

  // NOTE: on an H200 6 stages were slower than 5 once, a 7B layer's products at one row 105 us and
  // not 100; later they took as long (docs/decisions/0024). Fewer warps, of ranks, have as many
  // between them.
  std::optional<LinearConfig> streamed_config(int cluster) const {
    const int least_buffers = cluster == 1 ? 1 : 2;
    for (const int least_depth : {3, 2}) {
      for (int buffers = 2; buffers >= least_buffers; --buffers) {
        const auto found = deepest(cluster, buffers, machine_.max_shared_bytes, least_depth,
                                   machine_.tuning.streamed_stages * kSegments / shape_.segments);
        if (found) return found;
      }
    }
    return std::nullopt;
  }
  std::optional<LinearConfig> prepared_config(int cluster) const {
    const int room = machine_.max_shared_bytes;
    const int half_room = (room + 1024) / 2 - 1024;  // the system takes 1 KB of each block
    if (!takes_all_memory()) {
      const int least_depth = format_.large_stages() ? 2 : 3;
      if (const auto found = deepest(cluster, 2, half_room, least_depth)) return found;
    }
    return deepest(cluster, 2, room, 2);
  }
  // With the rings of most stages that fit in so many bytes.
  std::optional<LinearConfig> deepest(int cluster, int buffers, int bytes, int least_depth,
                                      int most_depth = kDepths[0]) const {
    for (const int depth : kDepths) {
      if (depth > most_depth || depth < least_depth) continue;
      const LinearConfig config = config_of(cluster, depth, buffers);
      if (config.places.total <= bytes) return config;
    }
    return std::nullopt;
  }

  LinearConfig config_of(int cluster, int depth, int buffers) const {
    LinearConfig config{};
    config.num_rows = shape_.num_rows;
    config.row_warps = cluster == 1 ? lone_row_warps() : cluster * (kSegments / shape_.segments);
    config.cluster = cluster;
    config.depth = depth;
    config.buffers = buffers;
    set_row_blocks(config);
    set_places(config);
    return config;
  }
  // Of a block that is no cluster's. Where ranks share a sum, as many as have a segment each keep
  // all warps busy; but fewer, if that leaves each multiprocessor a block: what is under way in
  // them all counts for more.
  int lone_row_warps() const {
    int row_warps = 1;
    while (row_warps < kSegments / shape_.segments &&
           total_tiles() > 2 * row_warps * machine_.num_sms) {
      row_warps *= 2;
    }
    return row_warps;
  }
  // Row blocks for blocks of `row_warps`: their tiles and number.
  void set_row_blocks(LinearConfig& config) const {
    config.block_tiles = 2 * config.row_warps;
    if (shape_.op == LinearOp::kQkv) set_head_tiles(config);
    config.pair_tiles = shape_.op == LinearOp::kGateUp ? 0 : config.block_tiles / 2;
    config.parts = 1;
    if (config.half_tiles != 0) {
      config.pair_tiles = shape_.head_dim / 32;
      config.parts = config.pair_tiles / config.half_tiles;
    }
    config.head_of = divide_up(1 << 16, config.parts);
    const bool gate_up = shape_.op == LinearOp::kGateUp;
    const int sources = shape_.op == LinearOp::kQkv ? kMaxSources : 1;
    for (int i = 0; i < sources; ++i) {
      config.blocks[i] = divide_up(shape_.tiles[i], config.block_tiles / (gate_up ? 2 : 1));
      config.row_blocks += config.blocks[i];
    }
  }
  // Of a row block of kQkv: parts of both halves of a head, or whole heads.
  void set_head_tiles(LinearConfig& config) const {
    const int row_warps = config.row_warps, head_tiles = shape_.head_dim / kTileRows;
    if (!wants_whole_heads() && shape_.head_dim % 32 == 0 && 2 * row_warps < head_tiles) {
      config.half_tiles = std::gcd(head_tiles / 2, row_warps);
      config.block_tiles = 2 * config.half_tiles;
    } else {  // an even number of tiles
      const int heads = std::max(1, 2 * row_warps / head_tiles);
      config.block_tiles = head_tiles * (head_tiles % 2 == 0 ? heads : round_up(heads, 2));
    }
  }
  void set_places(LinearConfig& config) const {
    const int segments = kSegments / config.row_warps, rows = shape_.num_rows;
    LinearPlaces& places = config.places;
    const int busy = config.row_warps * shape_.segments / config.cluster;  // warps
    int end =
        busy * config.depth * stage_bytes(format_.stage, format_.streamed, rows, shape_.normed);
    const auto take = [&](int bytes) {
      const int begin = end;
      end += round_up(bytes, 16);
      return begin;
    };
    places.barriers = take(format_.planes ? kLinearWarps * config.depth * 8 : 0);
    if (!streamed()) {
      const int bands = bands_of_block(segments);
      places.stride = bands * kBandInputs + format_.padding / format_.input;
      places.group_stride = (bands * format_.band_groups) | 1;
      places.values = take(places.stride * rows * format_.columns * format_.input);
      places.groups = take(format_.group * places.group_stride * rows);
    }
    places.squares = take(segments * rows * 4);
    places.partials = take(config.buffers * segments * rows * config.block_tiles * kTileRows * 4);
    places.total = end;
  }
  // The most that a block of so many segments has.
  int bands_of_block(int segments) const {
    const auto begin = [&](int segment) {  // beyond the last: where that ends
      return segment_begin(shape_.bands, format_.band_step(), shape_.segments,
                           std::min(segment, shape_.segments));
    };
    int most = 0;
    for (int segment = 0; segment < shape_.segments; segment += segments) {
      most = std::max(most, begin(segment + segments) - begin(segment));
    }
    return most;
  }

  const LinearMachine& machine_;
  const LinearSizes& format_;
  const LinearShape& shape_;
};

}  // namespace

std::optional<LinearConfig> share_out(const LinearMachine& machine, const LinearSizes& format,
                                      const LinearShape& shape) {
  LinearShape some = shape;
  for (; some.num_rows > 0; --some.num_rows) {
    if (const auto config = Sharing(machine, format, some).config()) return config;
  }
  return std::nullopt;
}

int bands_of_part(const LinearMachine& machine, const LinearSizes& format,
                  const LinearShape& shape) {
  if (shape.op != LinearOp::kAdd || format.streamed > 0 || machine.capability >= 90) {
    return shape.bands;
  }
  LinearShape part = shape;
  part.num_rows = 1;
  for (int parts = 1; parts <= shape.bands; ++parts) {
    part.bands = round_up(divide_up(shape.bands, parts), format.band_step());
    if (share_out(machine, format, part)) return part.bands;
  }
  return shape.bands;
}

int clusters_of_launch(const LinearMachine& machine, const LinearSizes& format,
                       const LinearShape& shape, int row_blocks, int cluster, int resident) {
  if (format.planes && Sharing(machine, format, shape).one_block_suffices()) {
    resident = std::min(resident, machine.num_sms / cluster);
  }
  return std::min(row_blocks, resident);
}

}  // namespace quantspec::cuda
