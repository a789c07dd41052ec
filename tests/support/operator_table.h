#pragma once
// The one table that tests operators. A row names an operator call; check_operator() then holds it against
//   values       an f64 reference, for f64, f32, f16 and bf16
//   gradients    central differences in f64
//   bytes        what the tape keeps == what the ledger books as activations == what the row states
//   dry run      the same events, in the same order, on dry(cpu)
//   mixed        an operand on a dry device among others is refused, with both devices and the fix
//   threads      the same bits for 1, 2 and 5 threads, forward and backward
//   moving       the same bits when all blocks are moved, and their old places poisoned, before every allocation
//   segments     the same bits in a segment, whichever of the four fates its nodes have
//   devices      values, gradients and events on a CUDA device, where there is one, against the CPU's
//   masks        each operand alone gets the gradient it gets among the others, and keeps no more

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <thimble/core/tensor/tensor.h>

namespace thimble::testing {

/// Values on the host, as the reference sees them.
struct HostArray {
  Shape shape;
  std::vector<double> values;
  double operator[](std::int64_t i) const { return values[static_cast<std::size_t>(i)]; }
};

/// One operand of a row.
struct Operand {
  Shape shape;
  double low = -2, high = 2;        ///< values are spread over [low, high], reproducibly
  bool is_integer = false;          ///< i64 with values in [low, high]; takes no gradient
  bool is_bool = false;             ///< bool with both values; takes no gradient
  bool takes_gradient = true;       ///< false: a constant (gradients for it are not asked for)
  std::vector<double> values = {};  ///< given values instead of made ones
};
Operand integers(const Shape& shape, double low, double high);
Operand constant(const Shape& shape, double low = -2, double high = 2);

struct OperatorCase {
  std::string name;
  std::vector<Operand> operands;
  std::function<Tensor(std::span<const Tensor>)> run;
  /// Row-major values of the result. Empty: values are only compared between dtypes (f64 is then the reference).
  std::function<std::vector<double>(const std::vector<HostArray>&)> reference = {};
  /// Bytes kept for backward when every operand that can takes a gradient, given the bytes of one floating element;
  /// extras in f32 count as 4 except in f64, where they count as 8: `e` is the element, `s` the statistic. Operands
  /// kept count as well.
  std::function<std::int64_t(std::int64_t e, std::int64_t s)> kept_bytes = {};
  double tolerance = 1;      ///< multiplies the tolerance of each dtype (f64 1e-10, f32 2e-6, f16 4e-3, bf16 3e-2)
  bool has_gradient = true;  ///< false: argmax, comparisons
  bool supports_low_precision = true;
  bool is_gradcheck_exact =
      true;  ///< false: kinks near the sample points; gradcheck is skipped, and a reason is stated
  std::string why_no_gradcheck = {};
  std::string why_cpu_alone = {};  ///< not empty: the row is not run on a CUDA device
};

/// True where a CUDA device can be used: a GPU, or in a build without CUDA the one that tests/emulated makes of the
/// host.
bool has_cuda();
/// Whether that device is the host's own (tests/emulated): what is the hardware's affair is not looked for there.
bool is_emulated();

/// Shapes and dtypes are equal, and no value of `there` is further from that of `here` than `tolerance` times the
/// largest magnitude of `here`.
void check_near(const Tensor& there, const Tensor& here, double tolerance);

/// How near to the CPU's products of FP8 operands those of a device are. FP8 units add some products with about 14 bits
/// before f32 takes their sum over.
constexpr double fp8_tolerance(DType dtype, bool is_emulated) noexcept {
  if (dtype == DType::f32) return is_emulated ? 1e-6 : 1e-3;
  return dtype == DType::f16 ? 2e-3 : 1.2e-2;
}

/// Runs all checks as Catch2 assertions. Called once per row inside of a TEST_CASE.
void check_operator(const OperatorCase& row);

}  // namespace thimble::testing
