// gpu_ranks: what it takes that several ranks share the products of a layer on GPUs: the sum over
// ranks by itself, and the products of Llama-3.1-8B's o and down with a rank's columns, beside
// those of one GPU with all columns. With fewer GPUs than ranks all are on one, which shows that
// they work, and what the exchange costs at least; their products then take turns.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "apps/bench/gpu_program.h"
#include "backend/backend.h"
#include "backend/params/pass.h"
#include "backend/params/round.h"
#include "base/clock.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/hash.h"
#include "comm/comm.h"

namespace quantspec {
namespace {

constexpr int kExitWrong = 3;  // ranks have different results
constexpr int kAdds = 64;      // of a graph: those of 32 layers
constexpr int kCopies = 16;    // of a matrix, so that all are larger than the L2 cache
constexpr int kRows[] = {1, 2, 4, 8, 12, 17};
constexpr int kMostRows = 17;

struct Args {
  std::vector<int> ranks = {2, 4, 8};
  std::string weights = "bf16";
};

// Of the products whose sums ranks share.
struct Shape {
  const char* name;
  int outputs, inputs;
};
// With the fewest inputs that 8 ranks can share, what is left is the sum.
constexpr Shape kShapes[] = {{"sum of 4096", 4096, 1024},
                             {"sum of 8192", 8192, 1024},
                             {"8b o", 4096, 4096},
                             {"8b down", 4096, 14336}};

int num_gpus() {
  int count = 0;
  try {
    for (;; ++count) make_backend({.name = "cuda", .device = count});
  } catch (const Error& error) {
    if (count == 0) throw;
  }
  return count;
}

std::vector<float> normal_floats(std::size_t count, float deviation, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(rng);
  return values;
}

// Adds of one shape on a backend, in graphs.
class Adds {
 public:
  // Ranks have weights and inputs of their own: sums of others' are not theirs.
  Adds(Backend& backend, const Shape& shape, int inputs, bool four_bits, int rank)
      : backend_(backend), outputs_(shape.outputs), inputs_(inputs), four_bits_(four_bits) {
    std::vector<std::uint16_t> values(std::size_t{1} * outputs_ * inputs_);
    std::mt19937 rng(5 + rank);
    for (auto& value : values) {  // of either sign, around 2^-6
      value = static_cast<std::uint16_t>((rng() & 0x80ff) | 0x3c00);
    }
    const TensorView view{values.data(), DType::kBF16, outputs_, inputs_};
    const std::size_t bytes = backend.matrix_bytes(outputs_, inputs_, DType::kBF16);
    const auto format = sliced_format(128);
    const PlaneBytes planes = backend.plane_bytes(outputs_, inputs_, format);
    for (int i = 0; i < kCopies; ++i) {
      memory_.push_back(backend.allocate(bytes));
      Linear linear;
      linear.target = backend.place_matrix(view, memory_.back().data());
      if (four_bits) {
        memory_.push_back(backend.allocate(planes.upper));
        backend.make_planes(linear.target, format, memory_.back().data(), nullptr);
        linear.draft = {format, outputs_, inputs_, memory_.back().data()};
      }
      linears_.push_back(linear);
    }
    in_ = upload(normal_floats(std::size_t{kMostRows} * inputs_, 1, 10 + rank));
    x_ = upload(normal_floats(std::size_t{kMostRows} * outputs_, 1, 2));
  }

  // Microseconds of one of them. `ready`: is called where ranks begin together.
  template <typename F>
  double time(int rows, const F& ready) {
    static std::atomic<std::uint64_t> issuers{1};
    const RoundKey key{.issuer = issuers++,
                       .draft_plan = -1,
                       .target_plan = 0,
                       .keeps_drafts = false,
                       .keeps_logits = false};
    RoundLane lane;
    lane.at.vocab_size = 1;
    lane.draft_len = 0;
    backend_.begin_batch({&lane, 1});
    const auto round = [&] {
      backend_.run_round(key, [&] {
        for (int i = 0; i < kAdds; ++i) {
          const WeightRead read = four_bits_ ? WeightRead::kUpper : WeightRead::kTarget;
          backend_.add_linear({.phase = Phase::kDecode,
                               .weights = read,
                               .in = in_.as<float>(),
                               .num_rows = rows,
                               .linear = &linears_[i % kCopies],
                               .x = x_.as<float>(),
                               .order = i == 0 ? OpOrder::kAfter : OpOrder::kOverlaps});
        }
      });
    };
    for (int i = 0; i < 10; ++i) round();  // the first are issued
    std::vector<double> seconds(7);
    for (double& each : seconds) {
      backend_.synchronize();
      ready();
      const Stopwatch watch;
      for (int i = 0; i < 8; ++i) round();
      backend_.synchronize();
      each = watch.seconds() / (8 * kAdds);
    }
    std::ranges::nth_element(seconds, seconds.begin() + 3);
    return 1e6 * seconds[3];
  }
  std::uint64_t hash_of_result(int rows) {
    std::vector<float> x(std::size_t{1} * rows * outputs_);
    backend_.download(x.data(), x_.data(), sizeof(float) * x.size());
    return hash_bytes(std::as_bytes(std::span(x)));
  }

 private:
  Buffer upload(const std::vector<float>& values) {
    Buffer buffer = backend_.allocate(sizeof(float) * values.size());
    backend_.upload(buffer.data(), values.data(), sizeof(float) * values.size());
    return buffer;
  }

  Backend& backend_;
  int outputs_, inputs_;
  bool four_bits_;
  std::vector<Buffer> memory_;
  std::vector<Linear> linears_;
  Buffer in_, x_;
};

// As one of the ranks; what rank 0 says is printed. Whether all had the same results.
bool measure(const Args& args, Communicator& all, int device, bool alone_there) {
  const bool four_bits = args.weights == "4-bit", prints = all.rank() == 0;
  const auto shared = make_backend({.name = "cuda", .device = device, .ranks = &all});
  const auto single = make_backend({.name = "cuda", .device = device});
  if (prints) {
    fmt::print(
        "{} ranks, {}, {}\n  us a product, {} weights: of ranks / of one GPU with all "
        "columns\n{:14}",
        all.size(), alone_there ? "a GPU each" : "all on one GPU", shared->description(),
        args.weights, "");
    for (const int rows : kRows) fmt::print("{:>16}", fmt::format("{} rows", rows));
    fmt::print("\n");
  }
  bool right = true;
  for (const Shape& shape : kShapes) {
    Adds of_ranks(*shared, shape, shape.inputs / all.size(), four_bits, all.rank());
    // Of a sum alone, what it comes beside: the product with a rank's columns.
    const bool sum = shape.inputs == 1024;
    Adds of_one(*single, shape, sum ? shape.inputs / all.size() : shape.inputs, four_bits, 0);
    if (prints) fmt::print("{:14}", shape.name);
    for (const int rows : kRows) {
      const double ours = of_ranks.time(rows, [&] { all.barrier(); });
      const std::uint64_t own = of_ranks.hash_of_result(rows);
      std::vector<std::uint64_t> hashes(all.size());
      all.all_gather(std::as_writable_bytes(std::span(hashes)), std::as_bytes(std::span(&own, 1)));
      right = right && std::ranges::count(hashes, own) == all.size();
      // One after the other, where they have one GPU.
      double one = 0;
      for (int rank = 0; rank < all.size(); ++rank) {
        all.barrier();
        if (rank == all.rank()) one = of_one.time(rows, [] {});
      }
      all.barrier();
      if (prints) fmt::print("{:>16}", fmt::format("{:.2f} / {:.2f}", ours, one));
    }
    if (prints) fmt::print("\n");
  }
  return right;
}

int run(const Args& args) {
  const int gpus = num_gpus();
  std::atomic<bool> right{true};
  for (const int size : args.ranks) {
    const bool each = size <= gpus;
    SharedRanks shared(size);
    std::vector<std::exception_ptr> errors(size);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          as_rank(shared, rank, [&](Communicator& all) {
            if (!measure(args, all, each ? rank : 0, each)) right = false;
          });
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }
  if (!right) fmt::print("WRONG: ranks have different results\n");
  return right ? 0 : kExitWrong;
}

}  // namespace
}  // namespace quantspec

int main(int argc, char** argv) {
  CLI::App app("Time what ranks on GPUs share: sums of products, by graphs of 64.", "gpu_ranks");
  quantspec::Args args;
  app.add_option("--ranks", args.ranks, "how many ranks (default: 2,4,8)")
      ->option_text("N,...")
      ->delimiter(',')
      ->check(CLI::IsMember({2, 4, 8}));
  app.add_option("--weights", args.weights, "bf16 or 4-bit (default: bf16)")
      ->option_text("W")
      ->check(CLI::IsMember({"bf16", "4-bit"}));
  return quantspec::run_program(app, argc, argv, [&] { return quantspec::run(args); });
}
