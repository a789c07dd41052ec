#pragma once
// The instruction set of the CPU kernels.

#include <cstdint>
#include <string_view>

/// Function attributes of the variants for an instruction set, and for bodies that are compiled once per variant: an
/// inlined body takes the instruction set of the function around it.
#if defined(__x86_64__)
#define THIMBLE_TARGET_AVX2 __attribute__((target("avx2,fma")))
#define THIMBLE_TARGET_AVX512 __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#endif
#define THIMBLE_ALWAYS_INLINE inline __attribute__((always_inline))

namespace thimble::kernels {

/// Instruction sets that kernels have variants for, each including the previous ones.
enum class Isa : std::uint8_t {
  generic,  ///< the compiler's default target; multiply and add round separately
  avx2,     ///< AVX2 and FMA
  avx512,   ///< AVX-512 F, BW, DQ and VL
};
inline constexpr int isa_count = 3;

/// "generic", "avx2", "avx512".
std::string_view to_string(Isa isa) noexcept;

/// True when this machine can run the variant.
bool is_supported(Isa isa) noexcept;

/// The best supported instruction set.
Isa best_isa() noexcept;

/// The instruction set in use: best_isa() unless set. Results are bitwise repeatable per instruction set; a plan
/// records it, because workspaces depend on it.
Isa isa() noexcept;

/// Sets the instruction set that kernels use from now on. Throws ValueError when this machine does not support it.
void set_isa(Isa isa);

}  // namespace thimble::kernels
