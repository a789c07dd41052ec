// The table of the built-in elementwise functors on CUDA devices, and a quarter of them
// (cuda/elementwise/elementwise.h).

#include <thimble/cuda/elementwise/elementwise.h>

namespace thimble {
namespace elementwise_cuda_detail {

const Row* row_in_part_0(int index) { return row_in_part<0>(ops::BuiltinElementwise{}, index); }

// `operand` -1 means forward.
void run_builtin(int index, int operand, const void* functor, const ElementwiseArgs& args) {
  constexpr const Row* (*parts[elementwise_parts])(int) = {row_in_part_0, row_in_part_1, row_in_part_2, row_in_part_3};
  (*parts[index % elementwise_parts](index))[static_cast<std::size_t>(operand + 1)](functor, args);
}

}  // namespace elementwise_cuda_detail

const kernels::ElementwiseCuda kernels::elementwise_cuda = elementwise_cuda_detail::run_builtin;

}  // namespace thimble
