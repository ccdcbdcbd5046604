#include "backend/cuda/ranks.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "backend/cuda/device.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

// What a rank tells the others at first. The address is good in one process; a rank of another
// would have to be told of memory by a handle (cudaIpcGetMemHandle), which it opens.
template <typename Mailbox>
struct Address {
  pid_t process;
  const std::shared_ptr<Mailbox>* mailbox;
};

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
      sharing_{all.size(), groups},
      own_(all.rank(), sharing_),
      patience_(patience),
      mailboxes_(all.size()) {
  if (size() != 2 && size() != 4 && size() != kMostRanks) {
    fail(ErrorKind::kInvalidRequest, "{} ranks: on GPUs 2, 4 or 8 share a model", size());
  }
  const std::vector<Members> distinct = own_.distinct();
  for (const Members& members : distinct) circles_.push_back({members, {}});
  const int ordinal = device.gpu().ordinal();
  const auto own = std::make_shared<Mailbox>(ordinal, device.allocate(inboxes_bytes(distinct)),
                                             device.allocate(sizeof(RankCounts)),
                                             device.allocate_on_host(sizeof(RankSigns)));
  const Address<Mailbox> address{getpid(), &own};
  std::vector<Address<Mailbox>> addresses(size());
  all.all_gather(std::as_writable_bytes(std::span(addresses)),
                 std::as_bytes(std::span(&address, 1)));
  for (int rank = 0; rank < size(); ++rank) {
    if (addresses[rank].process == address.process) continue;
    fail(ErrorKind::kDevice,
         "ranks {} and {} are of two processes: on GPUs the ranks are threads of one", rank,
         this->rank());
  }
  for (int rank = 0; rank < size(); ++rank) mailboxes_[rank] = *addresses[rank].mailbox;
  all.barrier();  // nobody's `own` goes before all have a share in it
  for (const auto& mailbox : mailboxes_) {
    const auto on = [&](const auto& other) { return other->ordinal == mailbox->ordinal; };
    most_on_gpu_ = std::max(most_on_gpu_, static_cast<int>(std::ranges::count_if(mailboxes_, on)));
  }
  require_queues();
  require_alike(told(
      GpuKind{device.capability(), device.num_sms(), static_cast<int>(device.max_shared_bytes())}));
  for (const auto& mailbox : mailboxes_) {
    if (mailbox->ordinal != ordinal) reach(mailbox->ordinal);
  }
  find_places(*own);
  all.barrier();  // all can be reached
}

void Ranks::find_places(Mailbox& own) {
  std::size_t inbox = 0;
  for (std::size_t i = 0; i < circles_.size(); ++i) {
    const Members& members = circles_[i].members;
    RankPlaces& places = circles_[i].places;
    places = {.rank = (rank() - members.first) / members.step,
              .size = members.count,
              .blocks = most_on_gpu_ > 1 ? kSharingBlocks : kRankBlocks,
              .alone = most_on_gpu_ == 1,
              .steps = own.counts.as<RankCounts>()->steps[i],
              .counts = own.counts.as<RankCounts>(),
              .signs = own.signs.as<RankSigns>(),
              .patience = static_cast<std::uint64_t>(
                  std::chrono::duration_cast<std::chrono::nanoseconds>(patience_).count())};
    for (int k = 0; k < members.count; ++k) {
      places.ids[k] = members.first + k * members.step;
      places.inboxes[k] =
          reinterpret_cast<float4*>(mailboxes_[places.ids[k]]->inbox.as<std::byte>() + inbox);
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
  const char* const queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (most_on_gpu_ <= kFewRanks || (queues != nullptr && std::atoi(queues) >= 4 * kFewRanks))
    return;
  fail(ErrorKind::kDevice,
       "{} ranks on one GPU: more than {} need queues of their own, with "
       "CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment",
       most_on_gpu_, kFewRanks);
}

// Kernels of others, and of this rank, wait for it no longer.
void Ranks::leave() const {
  for (const auto& mailbox : mailboxes_) {
    sign(mailbox->signs.as<RankSigns>()->left) = 1 + rank();
  }
}

// Lets this GPU write to another's memory.
void Ranks::reach(int ordinal) const {
  const int own = device_.gpu().ordinal();
  int can = 0;
  QUANTSPEC_CUDA(cudaDeviceCanAccessPeer(&can, own, ordinal));
  if (can == 0) {
    fail(ErrorKind::kDevice,
         "GPU {} cannot reach the memory of GPU {}: ranks need GPUs that do (nvidia-smi topo -p2p "
         "w lists them), or one GPU together",
         own, ordinal);
  }
  const cudaError_t status = cudaDeviceEnablePeerAccess(ordinal, 0);
  if (status == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();  // it is not the next call's
  } else {
    require(status, "cudaDeviceEnablePeerAccess");
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
  try {
    launch();
  } catch (...) {
    leave();
    throw;
  }
  meet();
}

// Who is told here that another failed may have launched what waits for it.
void Ranks::meet() {
  try {
    all_.barrier();
  } catch (...) {
    leave();
    throw;
  }
}

void Ranks::add_sums(const float* sums, const float* bias, int rows, int outputs, float* x) {
  const RankPlaces& places = places_of(own_.shares);
  launch_together([&] {
    launch_add_sums(places, device_.stream(), device_.capability() >= 90, sums, bias, rows, outputs,
                    x);
  });
}

void Ranks::gather(const float* own, int rows, int outputs, float* all) {
  const RankPlaces& places = places_of(own_.shares);
  launch_together([&] {
    launch_gather(places, device_.stream(), device_.capability() >= 90, own, rows, outputs, all);
  });
}

void Ranks::gather_queries(const float* own, int rows, int outputs, float* all) {
  const RankPlaces& places = places_of(own_.queries);
  launch_together([&] {
    launch_gather(places, device_.stream(), device_.capability() >= 90, own, rows, outputs, all);
  });
}

void Ranks::give_partials(const RankPartials& partials) {
  const RankPlaces& places = places_of(own_.context);
  launch_together(
      [&] { launch_partials(places, device_.stream(), device_.capability() >= 90, partials); });
}

void Ranks::meet_on_gpus() {
  launch_together([&] { launch_meeting(places_, device_.stream()); });
}

void Ranks::all_gather(std::span<std::byte> out, std::span<const std::byte> own) {
  try {
    all_.all_gather(out, own);
  } catch (...) {
    leave();
    throw;
  }
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
