#pragma once
// gemm() of bf16 operands on the processor's bf16 dot products (gemm_dot.h), where those are faster than converting to
// f32: with the same views, batches, result dtypes and epilogue as any other gemm().

#include <cstddef>
#include <optional>

#include <thimble/core/kernels/gemm.h>
#include <thimble/core/kernels/gemm_dot.h>

namespace thimble::kernels {

/// Whether the unit's bf16 products are faster than f32 multiply-adds, by what the processor says it is, never by
/// timing: AMX everywhere; AVX-512 BF16 on AMD (Zen 4 and later: twice the rate of f32), not on Intel, which runs
/// vdpbf16ps at half of it (measured on Emerald Rapids: 85 of 176 GFLOP/s on one thread).
bool is_worthwhile_for_bf16(DotUnit unit) noexcept;

/// What gemm() multiplies bf16 with; none: it converts to f32. A function of isa() and the processor unless it is set.
/// Results are bitwise repeatable per unit, and workspaces depend on it.
std::optional<DotUnit> gemm_bf16_unit() noexcept;

/// How gemm() multiplies bf16 from now on; `generic` stands for the conversion to f32, none for what it does unless it
/// is set. Throws ValueError when this machine does not support the unit.
void set_gemm_bf16_unit(std::optional<DotUnit> unit);

namespace gemm_detail {

/// gemm_workspace_bytes() and gemm() on a unit. Not empty, both operands bf16.
///
/// Order of accumulation: k is cut into blocks of 1024 from 0; a block's sum is the unit's (dot_gemm), blocks are added
/// in ascending order in f32. It depends on k alone.
std::size_t bf16_workspace_bytes(const GemmArgs& args, int threads) noexcept;
void compute_bf16(const GemmArgs& args, void* workspace, int threads, DotUnit unit) noexcept;

}  // namespace gemm_detail
}  // namespace thimble::kernels
