#pragma once
// The kinds of processors where bf16 products are faster on a dot unit (dot_unit.h) than converted to f32: a table of
// measurements. It depends on the processor's identity, never on a timing, so that plans and bits repeat.

#include <cstdint>
#include <string_view>

#include <thimble/core/kernels/cpu/base/dot_unit.h>

namespace thimble::kernels {

/// Operations that choose the unit of their bf16 products separately.
enum class Product : std::uint8_t {
  gemm,
  conv_forward,
  conv_backward,  ///< both gradients
};
inline constexpr Product products[] = {Product::gemm, Product::conv_forward, Product::conv_backward};

/// "gemm", "conv forward", "conv backward".
std::string_view to_string(Product product) noexcept;

/// From CPUID: vendor ("GenuineIntel", "AuthenticAMD"), display family and model, and whether there is F16C, which a
/// processor (or a virtual machine) with AVX2 may lack. All zero without CPUID.
struct Processor {
  char vendor[13] = {};
  unsigned family = 0;
  unsigned model = 0;
  bool has_f16c = false;
};

/// The processor in use.
const Processor& this_processor() noexcept;

/// A line of the table.
struct UnitRate {
  bool is_on_unit = false;   ///< else converted to f32
  bool is_measured = false;  ///< else a guess
  std::string_view origin;   ///< the measurement, or the reason for the guess
};

/// Whether the bf16 products of an operation run on `unit` on that kind of processor. Without a line in the table:
/// converted, whose step measured 1.01 to 1.08 of f32's. Gradients of convolutions use a unit only where that measured
/// faster.
UnitRate unit_rate(const Processor& processor, DotUnit unit, Product product) noexcept;

}  // namespace thimble::kernels
