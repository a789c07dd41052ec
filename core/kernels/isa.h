#pragma once
// Which instruction set the CPU kernels use: the best that this CPU has, unless set.

#include <cstdint>
#include <string_view>

namespace thimble::kernels {

enum class Isa : std::uint8_t { generic, avx2, avx512 };

/// "generic", "avx2", "avx512".
std::string_view to_string(Isa isa) noexcept;

/// The best this CPU offers. avx2 implies FMA and F16C; avx512 implies F, BW, DQ, VL.
Isa best_isa() noexcept;

/// The one in force.
Isa isa() noexcept;

/// Chooses one (for tests and for plans made on another machine). Throws ValueError when this CPU lacks it.
void set_isa(Isa isa);

}  // namespace thimble::kernels
