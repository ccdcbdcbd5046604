#include "backend/cuda/coded_linear.h"

#include <cmath>
#include <utility>

#include "backend/cuda/linear_args.h"
#include "base/error.h"

namespace quantspec::cuda {

namespace {

// What codes stand for: LinearArgs says how.
void set_values(LinearArgs& args, const WeightFormat& format, WeightRead read) {
  const float exponent = std::ldexp(1.0f, format.exponent);
  if (format.table != CodeTable::kNone) {
    const auto& values = format.table == CodeTable::kIq4 ? kIq4Values : kFp4Values;
    for (int i = 0; i < 16; ++i) {
      args.code_table[i / 4] |= std::uint32_t{static_cast<std::uint8_t>(values[i])} << (i % 4 * 8);
    }
    args.code_step = exponent;
    args.code_value = 0;
    return;
  }
  // Read by its upper bits alone, a code is the centre of those that share them.
  const int cell = read == WeightRead::kUpper ? 1 << format.lower_bits() : 1;
  args.code_step = static_cast<float>(cell) * exponent;
  const float value = static_cast<float>(cell - 1) / 2 - static_cast<float>(format.zero);
  args.code_value = value / static_cast<float>(cell);
}

}  // namespace

void run_coded(OpLaunches& op, const LinearArgs& op_args, const WeightFormat& format,
               WeightRead read, int end) {
  const CodedKind kind = coded_kind(format, read);
  const PlaneLayout layout(format, op_args.cols);
  LinearArgs args = op_args;
  args.stride = std::size_t(layout.units) * layout.upper_bytes();
  args.lower_stride = std::size_t(layout.units) * layout.lower_bytes();
  set_values(args, format, read);
  bool done = false;
  const auto launch_if_of = [&]<std::size_t kIndex>() {
    if (done || kind != kCodedKinds[kIndex]) return;
    launch_coded<kCodedKinds[kIndex]>(op, args, end);
    done = true;
  };
  [&]<std::size_t... kIndices>(std::index_sequence<kIndices...>) {
    (launch_if_of.template operator()<kIndices>(), ...);
  }
  (std::make_index_sequence<std::size(kCodedKinds)>());
  check(done, "planes are of formats that have kernels");
}

}  // namespace quantspec::cuda
