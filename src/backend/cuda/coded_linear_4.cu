#include "backend/cuda/coded_launch.cuh"

namespace quantspec::cuda {

template void launch_coded<CodedKind{0, 32, false, false, false}>(OpLaunches&, LinearArgs, int);
template void launch_coded<CodedKind{0, 32, false, true, false}>(OpLaunches&, LinearArgs, int);
template void launch_coded<CodedKind{0, 32, true, true, false}>(OpLaunches&, LinearArgs, int);
template void launch_coded<CodedKind{0, 16, true, true, false}>(OpLaunches&, LinearArgs, int);
template void launch_coded<CodedKind{0, 16, true, false, false}>(OpLaunches&, LinearArgs, int);

}  // namespace quantspec::cuda
