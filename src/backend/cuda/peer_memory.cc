#include "backend/cuda/peer_memory.h"

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <random>
#include <string>
#include <thread>

#include "backend/cuda/device.h"
#include "backend/cuda/held_memory.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

namespace quantspec::cuda {

namespace {

// That who leaves waits for others to close what it showed.
constexpr double kLeaving = 2000;  // milliseconds

struct File {
  int number;
  ~File() {
    if (number >= 0) close(number);
  }
};

// The allocation that an address of a GPU lies in.
CUresult find_allocation(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr at) {
  static const auto function =
      reinterpret_cast<decltype(&cuMemGetAddressRange)>(driver_function("cuMemGetAddressRange"));
  return function(base, bytes, at);
}

std::uint64_t token_of_process() {
  static const std::uint64_t token = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
  }();
  return token;
}

// A file, as whoever has it open sees it.
struct FileId {
  dev_t device;
  ino_t number;
  bool operator==(const FileId&) const = default;

  static FileId of(int file) {
    struct stat found {};
    if (file < 0 || fstat(file, &found) != 0) return {};
    return {found.st_dev, found.st_ino};
  }
};

std::byte* map_file(int file, std::size_t bytes) {
  void* const memory =
      file < 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

}  // namespace

struct PeerMemory::Place {
  std::uint64_t token;  // of its process, whose number may be another's in another container
  pid_t process;
  int ordinal;     // of its GPU, in that process
  cudaUUID_t gpu;  // the same in all
};

struct PeerMemory::Shown {
  const std::byte* base;  // null: nothing
  std::size_t bytes;
  cudaIpcMemHandle_t handle;
};

struct PeerMemory::Signs {
  RankSigns of[kMostRanks];
  int closed[kMostRanks];  // who has nothing of others open any more

  std::atomic_ref<int> has_closed(int rank) { return std::atomic_ref<int>(closed[rank]); }
};

PeerMemory::PeerMemory(Device& device, Communicator& all)
    : device_(device), all_(all), opened_(all.size()) {
  all.wait_for_all();  // a GPU may take its time to begin
  cudaDeviceProp properties;
  const int ordinal = device.gpu().ordinal();
  QUANTSPEC_CUDA(cudaGetDeviceProperties(&properties, ordinal));
  places_ = told(Place{token_of_process(), getpid(), ordinal, properties.uuid});
  for (const Place& one : places_) {
    const auto on_gpu = [&](const Place& other) {
      return std::memcmp(&other.gpu, &one.gpu, sizeof(one.gpu)) == 0;
    };
    most_on_gpu_ = std::max<int>(most_on_gpu_, std::ranges::count_if(places_, on_gpu));
    in_one_process_ = in_one_process_ && one.token == token_of_process();
  }
  if (!in_one_process_) {
    signs_ = map_signs();
    return;
  }
  for (const Place& one : places_) {
    if (one.ordinal != ordinal) reach_gpu(one.ordinal);
  }
}

PeerMemory::~PeerMemory() {
  if (in_one_process_) return;
  const CurrentGpu current(device_.gpu(), CurrentGpu::Failing::kIsLeft);
  for (const auto& of_rank : opened_) {
    for (const auto& [base, opened] : of_rank) cudaIpcCloseMemHandle(opened.at);
  }
  signs_->has_closed(all_.rank()) = 1;
  if (!others_have_closed()) {
    if (std::uncaught_exceptions() > 0) return;
    std::size_t all = 0;
    for (const auto& [base, bytes] : shown_) all += bytes;
    log_warning(Message::format(
        "{} bytes of GPU {} stay taken until this process ends: other ranks have not closed them",
        all, device_.gpu().ordinal()));
    return;
  }
  for (const auto& [base, bytes] : shown_) {
    void* const memory = const_cast<std::byte*>(base);
    if (let_go(memory)) cudaFree(memory);
  }
}

// NOTE: where this rank fails it tells the others why only after this (as_rank()), and they go on
// until then; so none is waited for.
bool PeerMemory::others_have_closed() const {
  const Stopwatch clock;
  for (int rank = 0; rank < all_.size(); ++rank) {
    const auto has_closed = [&] {
      return signs_->has_closed(rank) != 0 || has_ended(places_[rank].process);
    };
    while (!has_closed()) {
      if (std::uncaught_exceptions() > 0 || clock.milliseconds() > kLeaving) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return true;
}

bool PeerMemory::is_here(int rank) const { return in_one_process_ || rank == all_.rank(); }

// Lets this GPU write to the memory of another that this process sees.
void PeerMemory::reach_gpu(int ordinal) const {
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

// A file without a name, which rank 0 makes; the others find it among that process's.
std::shared_ptr<PeerMemory::Signs> PeerMemory::map_signs() {
  const bool first = all_.rank() == 0;
  File file{first ? memfd_create("quantspec ranks", MFD_CLOEXEC) : -1};
  const bool made = file.number >= 0 && ftruncate(file.number, sizeof(Signs)) == 0;
  if (first && !made) fail(ErrorKind::kOutOfMemory, "no shared memory for ranks on GPUs");
  const int of_first = told(file.number)[0];
  const FileId id = told(FileId::of(file.number))[0];
  if (!first) {
    const std::string path = fmt::format("/proc/{}/fd/{}", places_[0].process, of_first);
    file.number = open(path.c_str(), O_RDWR | O_CLOEXEC);
  }
  const bool is_it = FileId::of(file.number) == id;
  std::byte* const memory = is_it ? map_file(file.number, sizeof(Signs)) : nullptr;
  if (memory == nullptr) {
    fail(ErrorKind::kDevice,
         "rank {} cannot open memory of rank 0: on GPUs ranks are processes of one user that see "
         "each other in /proc (in containers: of one PID namespace)",
         all_.rank());
  }
  const auto end = [&gpu = device_.gpu()](Signs* signs) {
    const CurrentGpu current(gpu, CurrentGpu::Failing::kIsLeft);
    if (cudaHostUnregister(signs) != cudaSuccess) cudaGetLastError();  // nor the next call's
    munmap(signs, sizeof(Signs));
  };
  std::shared_ptr<Signs> signs(reinterpret_cast<Signs*>(memory), end);
  QUANTSPEC_CUDA(cudaHostRegister(memory, sizeof(Signs), cudaHostRegisterMapped));
  void* on_gpu = nullptr;
  QUANTSPEC_CUDA(cudaHostGetDevicePointer(&on_gpu, memory, 0));
  if (on_gpu != memory) {
    fail(ErrorKind::kDevice, "GPU {} does not reach memory of the host by the host's addresses",
         device_.gpu().ordinal());
  }
  all_.barrier();  // rank 0's file stays open until all have it
  return signs;
}

// What the ranks of this process have. It lives until the last has left.
template <typename T>
std::vector<std::shared_ptr<T>> PeerMemory::told_here(std::shared_ptr<T> own) {
  std::vector<std::shared_ptr<T>> here;
  for (const auto* const of_rank : told<const std::shared_ptr<T>*>(&own)) here.push_back(*of_rank);
  all_.barrier();  // nobody's `own` goes before all have a share in it
  return here;
}

std::vector<std::shared_ptr<std::byte>> PeerMemory::allocate_at_all(std::size_t bytes) {
  const auto buffer = std::make_shared<Buffer>(device_.allocate(bytes));
  const std::shared_ptr<std::byte> own(buffer, buffer->data());
  if (in_one_process_) return told_here(own);
  const void* const shown[] = {own.get()};
  show(shown);
  std::vector<std::shared_ptr<std::byte>> all;
  for (std::byte* const theirs : told(own.get())) {
    const int rank = static_cast<int>(all.size());
    all.emplace_back(is_here(rank) ? own : std::shared_ptr<void>(), find(rank, theirs));
  }
  return all;
}

std::vector<std::shared_ptr<RankSigns>> PeerMemory::make_signs() {
  if (in_one_process_) {
    const auto buffer = std::make_shared<Buffer>(device_.allocate_on_host(sizeof(RankSigns)));
    return told_here(std::shared_ptr<RankSigns>(buffer, buffer->as<RankSigns>()));
  }
  std::vector<std::shared_ptr<RankSigns>> all;
  for (int rank = 0; rank < all_.size(); ++rank) all.emplace_back(signs_, &signs_->of[rank]);
  return all;
}

void PeerMemory::show(std::span<const void* const> own) {
  if (in_one_process_) return;
  std::vector<Shown> fresh;
  for (const void* one : own) {
    const auto* const at = static_cast<const std::byte*>(one);
    if (at == nullptr) continue;
    const auto next = shown_.upper_bound(at);
    if (next != shown_.begin() && at < std::prev(next)->first + std::prev(next)->second) continue;
    fresh.push_back(shown_of(at));
  }
  const std::vector<std::size_t> counts = told(fresh.size());
  const std::size_t most = *std::ranges::max_element(counts);
  fresh.resize(most);
  for (const Shown& one : fresh) {
    const std::vector<Shown> all = told(one);
    for (int rank = 0; rank < all_.size(); ++rank) {
      if (all[rank].base != nullptr && !is_here(rank)) open_memory(rank, all[rank]);
    }
  }
}

// NOTE: small allocations of CUDA's lie in a larger one, all of which a handle gives to processes
// of this user that are told of it.
PeerMemory::Shown PeerMemory::shown_of(const std::byte* own) {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  const CUresult status = find_allocation(&base, &bytes, reinterpret_cast<CUdeviceptr>(own));
  check(status == CUDA_SUCCESS, "what ranks show lies in memory of the GPU");
  Shown shown{reinterpret_cast<const std::byte*>(base), bytes, {}};
  void* const memory = reinterpret_cast<void*>(base);
  const cudaError_t made = cudaIpcGetMemHandle(&shown.handle, memory);
  if (made != cudaSuccess) {
    cudaGetLastError();  // it is not the next call's
    fail(ErrorKind::kDevice,
         "GPU {} gives no memory to other processes ({}): ranks of one process can share a model",
         device_.gpu().ordinal(), cudaGetErrorString(made));
  }
  hold(memory);
  shown_.emplace(shown.base, bytes);
  return shown;
}

void PeerMemory::open_memory(int rank, const Shown& shown) {
  void* at = nullptr;
  const cudaError_t status =
      cudaIpcOpenMemHandle(&at, shown.handle, cudaIpcMemLazyEnablePeerAccess);
  if (status != cudaSuccess) {
    cudaGetLastError();  // it is not the next call's
    fail(ErrorKind::kDevice,
         "rank {} cannot reach the memory of rank {}, another process ({}): each has to be let at "
         "all GPUs (srun's gpus, not its gpus-per-task), and they at each other (nvidia-smi topo "
         "-p2p "
         "w lists those that are); parts of a GPU by MIG are not",
         all_.rank(), rank, cudaGetErrorString(status));
  }
  opened_[rank].emplace(shown.base, Opened{shown.bytes, static_cast<std::byte*>(at)});
}

const void* PeerMemory::find_any(int rank, const void* theirs) const {
  if (theirs == nullptr || is_here(rank)) return theirs;
  const auto* const at = static_cast<const std::byte*>(theirs);
  const auto next = opened_[rank].upper_bound(at);
  check(next != opened_[rank].begin(), "a rank showed what it tells of");
  const auto& [base, opened] = *std::prev(next);
  check(at < base + opened.bytes, "a rank showed all of what it tells of");
  return opened.at + (at - base);
}

}  // namespace quantspec::cuda
