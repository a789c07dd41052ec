#pragma once
// The kinds of the processor's dot-product instructions, and which of them this machine has.

#include <cstdint>
#include <optional>
#include <string_view>

#include <thimble/core/dtype.h>

namespace thimble::kernels {

/// Units for dot products of 8-bit codes (quant_conv.h) and of bf16 (gemm_bf16.h). All give the same int8 results; bf16
/// results are bitwise repeatable per unit.
enum class DotUnit : std::uint8_t {
  generic,  ///< plain C++; for bf16 a bit-exact model of vdpbf16ps, which tests run where the instruction is missing
  avx2,     ///< 16-bit multiply-adds; int8 only
  avx512,   ///< vpdpbusd (AVX-512 VNNI), vdpbf16ps (AVX-512 BF16)
  amx,      ///< tile registers (AMX-BF16); bf16 only
};
inline constexpr DotUnit dot_units[] = {DotUnit::generic, DotUnit::avx2, DotUnit::avx512, DotUnit::amx};

/// "generic", "avx2", "avx512", "amx".
std::string_view to_string(DotUnit unit) noexcept;

/// True when this library has products of `dtype` (i8 or bf16) on `unit`, and this machine (for AMX, the operating
/// system too) supports it.
bool is_supported(DotUnit unit, DType dtype) noexcept;

/// The best unit within isa() for products of `dtype`: a function of the processor's features, so fixed for a machine.
/// AMX comes before AVX-512 BF16 not only because it is wider: processors that have both run vdpbf16ps at half the rate
/// of f32 multiply-adds (measured: 85 of 176 GFLOP/s on one thread). A machine with neither gets nullopt for bf16: the
/// model is never chosen. units.h chooses the unit in use.
std::optional<DotUnit> best_dot_unit(DType dtype) noexcept;

}  // namespace thimble::kernels
