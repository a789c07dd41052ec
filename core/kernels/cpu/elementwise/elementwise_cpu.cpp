// The CPU table of the built-in elementwise operators: the list, expanded.

#include <thimble/core/kernels/cpu/elementwise/elementwise_chunk.h>
#include <thimble/core/kernels/elementwise.h>
#include <thimble/core/ops/elementwise/elementwise_functors.h>

namespace thimble::kernels {
namespace elementwise_table_detail {

template <class... Ops>
const ElementwiseEntry* expand(ops::TypeList<Ops...>) {
  static constexpr ElementwiseEntry table[] = {elementwise_entry<Ops>...};
  return table;
}

}  // namespace elementwise_table_detail

const ElementwiseEntry* const elementwise_cpu_table = elementwise_table_detail::expand(ops::BuiltinElementwise{});

}  // namespace thimble::kernels
