#include "backend/cuda/coded_launch.cuh"

namespace quantspec::cuda {

template void launch_coded<CodedKind{0, 32, false, false, true}>(OpLaunches&, LinearArgs, int);
template void launch_coded<CodedKind{0, 32, true, false, true}>(OpLaunches&, LinearArgs, int);

}  // namespace quantspec::cuda
