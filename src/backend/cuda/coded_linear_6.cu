#include "backend/cuda/coded_launch.cuh"

namespace quantspec::cuda {

template void launch_coded<CodedKind{2, 16, true, false, false}>(OpLaunches&, LinearArgs, int);

}  // namespace quantspec::cuda
