// The embedding's gradient on a CUDA device has the CPU's bits, for rows named by few positions and by thousands. On a
// GPU if there is one, otherwise on tests/emulated.

#include <bit>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions.h>
#include <thimble/autograd/tape.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/layout/gather.h>
#include <thimble/core/ops/random.h>

#include "support/catch.h"
#include "support/operator_table.h"

using namespace thimble;
using thimble::testing::has_cuda;

namespace {

// For rows [first, first + rows) of a table of `all` rows, or for a whole table if `all` is 0.
Tensor table_gradient(const std::vector<std::int64_t>& ids, std::int64_t rows, std::int64_t columns, DType dtype,
                      memory::Device device, std::int64_t first = 0, std::int64_t all = 0) {
  RandomGenerator generator(11);
  const auto n = static_cast<std::int64_t>(ids.size());
  Tensor table = to_device(normal({rows, columns}, 0, 1, dtype, cpu, generator.next_site(0)), device);
  const Tensor dy = to_device(normal({n, columns}, 0, 1, dtype, cpu, generator.next_site(0)), device);
  table.require_grad();
  Tape tape;
  Tensor y;
  {
    const Recording on(tape);
    y = apply(ops::Embedding{first, all}, table, from_host(ids, {n}, device));
  }
  tape.backward(y, dy);
  return to_device(table.grad(), cpu);
}

}  // namespace

TEST_CASE("cuda_embedding: gradients of rows with few and with many positions have the CPU's bits", "[cuda]") {
  if (!has_cuda()) return;
  struct Case {
    std::int64_t positions, often;  // every `often`-th names row 3, the rest all rows in turn
  };
  for (const auto& [positions, often] : {Case{5000, 2}, Case{4097, 1}, Case{1500, 10}, Case{129, 1}, Case{128, 1}}) {
    std::vector<std::int64_t> ids;
    for (std::int64_t p = 0; p < positions; ++p) ids.push_back(p % often == 0 ? 3 : p * 7 % 11);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const std::int64_t columns : {1, 40}) {
        INFO(positions << " positions, one of " << often << " " << to_string(dtype) << " columns " << columns);
        const std::vector<double> here = to_host<double>(table_gradient(ids, 12, columns, dtype, cpu));
        const std::vector<double> there = to_host<double>(table_gradient(ids, 12, columns, dtype, cuda()));
        std::size_t different = 0;
        for (std::size_t i = 0; i < here.size(); ++i) {
          different += std::bit_cast<std::uint64_t>(here[i]) != std::bit_cast<std::uint64_t>(there[i]);
        }
        CHECK(here.size() == static_cast<std::size_t>(12 * columns));
        CHECK(different == 0);
      }
    }
  }
}

TEST_CASE("cuda_embedding: a part of a table has the CPU's bits", "[cuda]") {
  if (!has_cuda()) return;
  std::vector<std::int64_t> ids;
  for (std::int64_t p = 0; p < 900; ++p) ids.push_back(p % 2 == 0 ? 5 : p * 7 % 11);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto gradient = [&](memory::Device device) {
      return to_host<double>(to_dtype(table_gradient(ids, 4, 6, dtype, device, 3, 11), DType::f64));
    };
    const std::vector<double> here = gradient(cpu);
    CHECK((here == gradient(cuda())));
    const Tensor table = full({4, 6}, 2, dtype, cpu);
    const auto rows = [&](memory::Device device) {
      const Tensor index = from_host(std::vector<std::int64_t>{3, 0, 6, 7, 10}, {5}, device);
      const Tensor y = apply(ops::Embedding{3, 11}, to_device(table, device), index);
      return to_host<double>(to_dtype(sum(to_dtype(to_device(y, cpu), DType::f64), {1}), DType::f64));
    };
    const std::vector<double> expected{12, 0, 12, 0, 0};
    CHECK(rows(cpu) == expected);
    CHECK(rows(cuda()) == expected);
  }
}
