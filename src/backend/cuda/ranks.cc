#include "backend/cuda/ranks.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>

#include "backend/cuda/device.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/log.h"

namespace quantspec::cuda {

namespace {

constexpr std::size_t kLeastTables = 64 << 10;  // bytes of other processes' page tables

// Of what GPUs and other ranks' hosts read and write, too.
std::atomic_ref<int> sign(int& word) { return std::atomic_ref<int>(word); }

}  // namespace

void require_alike(std::span<const GpuKind> kinds) {
  for (std::size_t rank = 1; rank < kinds.size(); ++rank) {
    const GpuKind &one = kinds[0], &other = kinds[rank];
    if (one == other) continue;
    fail(ErrorKind::kDevice,
         "the GPUs of ranks 0 and {} differ: compute capability {}.{} and {}.{}, {} and {} "
         "multiprocessors, {} and {} bytes of shared memory; GPUs of one kind can share a model",
         rank, one.capability / 10, one.capability % 10, other.capability / 10,
         other.capability % 10, one.num_sms, other.num_sms, one.shared_bytes, other.shared_bytes);
  }
}

Ranks::Circles::Circles(int rank, const RankSharing& sharing)
    : all{0, 1, sharing.size},
      shares{rank % sharing.groups.alike, sharing.groups.alike, sharing.shares()},
      context{rank - rank % sharing.groups.context, 1, sharing.groups.context},
      queries{context.first + rank % sharing.groups.alike, sharing.groups.alike,
              sharing.shares_of_context()} {}

std::vector<Ranks::Members> Ranks::Circles::distinct() const {
  std::vector<Members> some;
  for (const Members& members : {all, shares, context, queries}) {
    if (members.count > 1 && std::ranges::count(some, members) == 0) some.push_back(members);
  }
  return some;
}

namespace {

std::size_t inboxes_bytes(const auto& circles) {
  std::size_t bytes = 0;
  for (const auto& members : circles) bytes += inbox_bytes(members.count);
  return bytes;
}

int supported(int ranks) {
  if (ranks == 2 || ranks == 4 || ranks == kMostRanks) return ranks;
  fail(ErrorKind::kInvalidRequest, "{} ranks: on GPUs 2, 4 or 8 share a model", ranks);
}

}  // namespace

// Of all ranks as many.
std::size_t Ranks::bytes(const RankSharing& sharing) {
  if (sharing.size == 1) return 0;
  return inboxes_bytes(Circles(0, sharing).distinct()) + sizeof(RankCounts);
}

Ranks::Ranks(Device& device, Communicator& all, const RankGroups& groups,
             std::chrono::milliseconds patience)
    : device_(device),
      all_(all),
      sharing_{supported(all.size()), groups},
      own_(all.rank(), sharing_),
      patience_(patience),
      memory_(device, all) {
  require_queues();
  if (!memory_.in_one_process() && memory_.most_on_gpu() > 1 && rank() == 0) {
    log_warning(
        Message::format("{} ranks are processes on one GPU, where their kernels take turns: "
                        "slower than one rank; {} gives each another",
                        memory_.most_on_gpu(), field::kDevice));
  }
  require_alike(told(
      GpuKind{device.capability(), device.num_sms(), static_cast<int>(device.max_shared_bytes())}));
  const std::vector<Members> distinct = own_.distinct();
  for (const Members& members : distinct) circles_.push_back({members, {}});
  counts_ = device.allocate(sizeof(RankCounts));
  signs_ = memory_.make_signs();
  or_leave([&] { inboxes_ = memory_.allocate_at_all(inboxes_bytes(distinct)); });
  find_places();
  meet();  // all can be reached
}

void Ranks::find_places() {
  const int ranks_on_gpu = memory_.most_on_gpu();
  std::size_t inbox = 0;
  for (std::size_t i = 0; i < circles_.size(); ++i) {
    const Members& members = circles_[i].members;
    RankPlaces& places = circles_[i].places;
    places = {.rank = (rank() - members.first) / members.step,
              .size = members.count,
              .blocks = ranks_on_gpu > 1 ? kSharingBlocks : kRankBlocks,
              .alone = ranks_on_gpu == 1,
              .steps = counts_.as<RankCounts>()->steps[i],
              .counts = counts_.as<RankCounts>(),
              .signs = signs_[rank()].get(),
              .patience = static_cast<std::uint64_t>(
                  std::chrono::duration_cast<std::chrono::nanoseconds>(patience_).count())};
    for (int k = 0; k < members.count; ++k) {
      places.ids[k] = members.first + k * members.step;
      places.inboxes[k] = reinterpret_cast<float4*>(inboxes_[places.ids[k]].get() + inbox);
    }
    inbox += inbox_bytes(members.count);
    load_rank_kernels(members.count);
  }
  places_ = circles_.front().places;
}

const RankPlaces& Ranks::places_of(const Members& members) const {
  const auto circle = std::ranges::find(circles_, members, &Circle::members);
  check(circle != circles_.end(), "several ranks tell each other something");
  return circle->places;
}

Ranks::~Ranks() {
  const CurrentGpu current(device_.gpu(), CurrentGpu::Failing::kIsLeft);
  cudaStreamSynchronize(device_.stream());  // ends: other ranks leave, too, where they fail
  leave();
}

// Streams of a GPU share queues where there are more of them than queues, of which there are 8
// unless the environment says how many: a kernel behind one that waits for it would never come.
void Ranks::require_queues() const {
  const int most = memory_.in_one_process() ? memory_.most_on_gpu() : 1;
  const char* const queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (most <= kFewRanks || (queues != nullptr && std::atoi(queues) >= 4 * kFewRanks)) return;
  fail(ErrorKind::kDevice,
       "{} ranks on one GPU: more than {} need queues of their own, with "
       "CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment",
       most, kFewRanks);
}

// Kernels of others, and of this rank, wait for it no longer.
void Ranks::leave() const {
  for (const auto& signs : signs_) sign(signs->left) = 1 + rank();
}

// Who is told in `f` that another failed may have launched what waits for it.
template <typename F>
void Ranks::or_leave(const F& f) {
  try {
    f();
  } catch (...) {
    leave();
    throw;
  }
}

template <typename F>
void Ranks::launch_together(const F& launch) {
  cudaStreamCaptureStatus capture;
  QUANTSPEC_CUDA(cudaStreamIsCapturing(device_.stream(), &capture));
  const bool runs = capture == cudaStreamCaptureStatusNone;
  // NOTE: of ranks on one GPU, kernels of cuBLAS may wait for blocks that find no multiprocessor
  // without a kernel that waits for them. So those end first.
  if (runs && !places_.alone) device_.synchronize();
  if (!runs) return launch();
  meet();
  or_leave(launch);
  meet();
}

void Ranks::meet() {
  or_leave([&] { all_.barrier(); });
}

void Ranks::show(std::span<const void* const> own) {
  or_leave([&] { memory_.show(own); });
}

void Ranks::add_sums(const float* sums, const float* bias, int rows, int outputs, float* x) {
  const RankPlaces& places = places_of(own_.shares);
  launch_together([&] { launch_add_sums(places, device_, sums, bias, rows, outputs, x); });
}

void Ranks::gather(const float* own, int rows, int outputs, float* all) {
  const RankPlaces& places = places_of(own_.shares);
  launch_together([&] { launch_gather(places, device_, own, rows, outputs, all); });
}

void Ranks::gather_queries(const float* own, int rows, int outputs, float* all) {
  const RankPlaces& places = places_of(own_.queries);
  launch_together([&] { launch_gather(places, device_, own, rows, outputs, all); });
}

void Ranks::give_partials(const RankPartials& partials) {
  const RankPlaces& places = places_of(own_.context);
  launch_together([&] { launch_partials(places, device_, partials); });
}

void Ranks::meet_on_gpus() {
  launch_together([&] { launch_meeting(places_, device_); });
}

void Ranks::all_gather(std::span<std::byte> out, std::span<const std::byte> own) {
  or_leave([&] { all_.all_gather(out, own); });
}

// NOTE: a table has addresses of its owner's process. So another has its own copies of all tables.
std::vector<const PagePlanes*> Ranks::pages_of_context(std::span<const PagePlanes> own) {
  const Members& members = own_.context;
  if (memory_.in_one_process()) return some_of(told(own.data()), members);
  const std::size_t count = own.size();
  std::vector<PagePlanes> table(count), all(count * size());
  device_.download(table.data(), own.data(), own.size_bytes());
  std::vector<const void*> shown;
  for (const PagePlanes& page : table) shown.insert(shown.end(), {page.upper, page.lower});
  show(shown);
  all_gather(std::as_writable_bytes(std::span(all)), std::as_bytes(std::span(table)));
  std::vector<PagePlanes> reached;
  for (int i = 0; i < members.count; ++i) {
    const int rank = members.first + i * members.step;
    for (const PagePlanes& page : std::span(all).subspan(rank * count, count)) {
      reached.push_back({memory_.find(rank, page.upper), memory_.find(rank, page.lower)});
    }
  }
  const std::size_t bytes = reached.size() * sizeof(PagePlanes);
  if (tables_.size() < bytes) {
    device_.synchronize();  // before what it reads goes
    tables_ = {};
    tables_ = device_.allocate(std::bit_ceil(std::max(bytes, kLeastTables)));
  }
  device_.upload(tables_.data(), reached.data(), bytes);
  std::vector<const PagePlanes*> by_rank;
  for (int i = 0; i < members.count; ++i) {
    by_rank.push_back(tables_.as<const PagePlanes>() + i * count);
  }
  return by_rank;
}

bool Ranks::at_all(bool so) { return std::ranges::count(told(std::byte{so}), std::byte{0}) == 0; }

void Ranks::require_well() const {
  const int missing = sign(places_.signs->missing);
  if (missing == 0) return;
  const int left = sign(places_.signs->left);
  if (left == missing) {
    fail(ErrorKind::kDevice, "the ranks of this model stopped: rank {} has left", missing - 1);
  }
  fail(ErrorKind::kDevice, "the ranks of this model stopped: rank {} did not come within {} ms",
       missing - 1, patience_.count());
}

}  // namespace quantspec::cuda
