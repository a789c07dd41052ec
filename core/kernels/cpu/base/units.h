#pragma once
// The dot units (dot_unit.h) that run products. The bits and workspaces of CPU kernels depend on no settings but this
// one, isa() and thread_count().

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <thimble/core/dtype.h>
#include <thimble/core/kernels/cpu/base/dot_unit.h>
#include <thimble/core/kernels/cpu/base/isa.h>

namespace thimble::kernels {

// ---- The kinds of processors where bf16 products are faster on a dot unit (dot_unit.h) than converted to f32: a table
// of measurements. It depends on the processor's identity, never on a timing, so that plans and bits repeat.

/// Operations that choose the unit of their bf16 products separately.
enum class Product : std::uint8_t {
  gemm,
  conv_forward,
  conv_backward,  ///< both gradients
};
inline constexpr Product products[] = {Product::gemm, Product::conv_forward, Product::conv_backward};

/// "gemm", "conv forward", "conv backward".
std::string_view to_string(Product product) noexcept;

/// From CPUID: vendor ("GenuineIntel", "AuthenticAMD"), display family and model, and F16C, which a processor (or a
/// virtual machine) with AVX2 may lack. All zero without CPUID.
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

/// Whether the bf16 products of an operation run on `unit` on that kind of processor. A kind without a line in the
/// table converts: a step then measured 1.01 to 1.08 of f32's. Gradients of convolutions use a unit only where it
/// measured faster.
UnitRate unit_rate(const Processor& processor, DotUnit unit, Product product) noexcept;

inline constexpr Isa isas[isa_count] = {Isa::generic, Isa::avx2, Isa::avx512};

/// The choice of unit for products of a dtype.
struct UnitChoice {
  /// int8: the best unit within isa(); bf16: that unit for operations where it is faster than f32 (unit_rate()).
  bool is_automatic = true;
  /// Otherwise this unit for all operations; nullopt converts bf16 to f32 and runs int8 on AVX2 or plain code,
  /// whichever isa() has.
  std::optional<DotUnit> unit = std::nullopt;

  static constexpr UnitChoice none() noexcept { return {false, std::nullopt}; }
  static constexpr UnitChoice on(DotUnit unit) noexcept { return {false, unit}; }
  bool operator==(const UnitChoice&) const = default;
};

/// The current choice for bf16 or i8.
UnitChoice unit_choice(DType dtype) noexcept;

/// Sets the choice for products of `dtype` (bf16 or i8). Throws ValueError, with the machine's units, when it lacks the
/// unit.
void set_unit_choice(DType dtype, UnitChoice choice);

/// The unit for bf16 products of an operation; nullopt converts operands to f32. Results are bitwise repeatable per
/// unit, and workspaces depend on it.
std::optional<DotUnit> bf16_unit(Product product) noexcept;

/// The unit for int8 products. All units give the same bits.
DotUnit int8_unit() noexcept;

/// Sets the instruction set by name: generic, avx2, avx512; and the units: auto, none, or a list of bf16 and int8,
/// which then run on the machine's best unit within isa(), whatever its rate. `where` ("--isa") names the source in
/// errors. Throws ValueError for other texts and for features that the machine lacks, listing the ones it has.
void set_isa(std::string_view where, std::string_view text);
void set_units(std::string_view where, std::string_view text);

/// Reads the environment variables THIMBLE_ISA and THIMBLE_UNITS if they are set and not empty. The library never reads
/// them on its own: the program and the tests call this first. Throws ValueError.
void set_from_environment();

/// The values that set_units() accepts on this machine, as in "auto, none, int8".
std::string available_units();

/// bf16 products in one phrase, as in "bf16 converted", "bf16 on amx", "bf16 on avx512 (gemm, conv forward), else
/// converted".
std::string describe_bf16();

/// Everything that bits and workspaces of CPU kernels depend on, in one line, as in "avx2, bf16 converted, int8 on
/// avx2, 2 threads".
std::string describe_compute();

}  // namespace thimble::kernels
