#pragma once
// Convolutions of bf16 on the processor's bf16 dot products (units.h chooses them), with the same results' dtypes and
// epilogue as any other: a product of patches, copied a band at a time.

#include <cstddef>

#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/cpu/base/dot_unit.h>

namespace thimble::kernels::conv_detail {

/// Whether a unit computes it: operands are bf16. The input's gradient of a stride over few channels is converted to
/// f32 instead (folds_phases()): a single phase would not fill a panel's columns.
bool is_for_bf16_unit(const ConvForwardArgs& args) noexcept;
bool is_for_bf16_unit(const ConvInputGradArgs& args) noexcept;
bool is_for_bf16_unit(const ConvWeightGradArgs& args) noexcept;

/// As conv_workspace_bytes(), and the computations; Winograd's form is not used.
///
/// Order of accumulation: the reductions of conv.h, the input's gradient over the taps that reach a pixel's phase
/// (conv_phases.h; taps that miss the map are zeros), the last one first, cut into blocks of 1024; a block's sum is the
/// unit's (gemm_bf16_kernel.h), blocks are added in ascending order in f32.
std::size_t bf16_workspace_bytes(const ConvForwardArgs& args, int threads) noexcept;
std::size_t bf16_workspace_bytes(const ConvInputGradArgs& args, int threads) noexcept;
std::size_t bf16_workspace_bytes(const ConvWeightGradArgs& args, int threads) noexcept;

void compute_bf16(const ConvForwardArgs& args, void* workspace, int threads, DotUnit unit) noexcept;
void compute_bf16(const ConvInputGradArgs& args, void* workspace, int threads, DotUnit unit) noexcept;
void compute_bf16(const ConvWeightGradArgs& args, void* workspace, int threads, DotUnit unit) noexcept;

}  // namespace thimble::kernels::conv_detail
