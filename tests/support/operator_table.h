#pragma once
// The table of all operator tests. A row names an operator call; check_operator() then checks
//   values       against an f64 reference, for f64, f32, f16 and bf16
//   gradients    against central differences in f64
//   bytes        kept by the tape == booked as activations by the ledger == stated by the row
//   dry run      the same events, in the same order, on dry(cpu)
//   mixed        an operand on a dry device among real ones is refused, with both devices and the fix
//   threads      equal bits for 1, 2 and 5 threads, forward and backward
//   moving       equal bits when all blocks are moved, and their old places poisoned, before every allocation
//   segments     equal bits in a segment, with each of the four fates for its nodes
//   devices      values, gradients and events on a CUDA device, if there is one, against the CPU's
//   masks        each operand gets the same gradient without the others, and keeps no more

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <thimble/core/tensor/tensor.h>

namespace thimble::testing {

/// Values on the host, for the reference.
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
  bool takes_gradient = true;       ///< false makes it a constant, without a gradient
  std::vector<double> values = {};  ///< replace the generated values
};
Operand integers(const Shape& shape, double low, double high);
Operand constant(const Shape& shape, double low = -2, double high = 2);

struct OperatorCase {
  std::string name;
  std::vector<Operand> operands;
  std::function<Tensor(std::span<const Tensor>)> run;
  /// Row-major values of the result. If empty, dtypes are only compared with each other, with f64 as the reference.
  std::function<std::vector<double>(const std::vector<HostArray>&)> reference = {};
  /// Bytes kept for backward when every operand that can takes a gradient: `e` is the bytes of a floating element, `s`
  /// of an f32 extra (4; in f64 it takes 8). Includes kept operands.
  std::function<std::int64_t(std::int64_t e, std::int64_t s)> kept_bytes = {};
  double tolerance = 1;      ///< multiplies the tolerance of each dtype (f64 1e-10, f32 2e-6, f16 4e-3, bf16 3e-2)
  bool has_gradient = true;  ///< false for argmax, comparisons
  bool supports_low_precision = true;
  bool is_gradcheck_exact = true;  ///< false near kinks: gradcheck is skipped for a stated reason
  std::string why_no_gradcheck = {};
  std::string why_cpu_alone = {};  ///< not empty: the row does not run on a CUDA device
};

/// True if a CUDA device can be used: a GPU, or in a build without CUDA tests/emulated.
bool has_cuda();
/// Whether that device is tests/emulated, where properties of the hardware cannot be tested.
bool is_emulated();

/// Checks that shapes and dtypes are equal, and that no value of `there` is further from `here` than `tolerance` times
/// the largest magnitude of `here`.
void check_near(const Tensor& there, const Tensor& here, double tolerance);

/// Tolerance of a device's FP8 products relative to the CPU's. FP8 units add some products with about 14 bits before
/// f32 takes over.
constexpr double fp8_tolerance(DType dtype, bool is_emulated) noexcept {
  if (dtype == DType::f32) return is_emulated ? 1e-6 : 1e-3;
  return dtype == DType::f16 ? 2e-3 : 1.2e-2;
}

/// Runs all checks as Catch2 assertions. Call it once per row inside a TEST_CASE.
void check_operator(const OperatorCase& row);

}  // namespace thimble::testing
