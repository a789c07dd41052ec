#pragma once
// The innermost loops of gemm_dot.h: a microtile of 32 columns, on each unit.

#include <cstdint>

#include <thimble/core/kernels/cpu/matmul/gemm_dot.h>

namespace thimble::kernels::gemm_detail {

inline constexpr std::int64_t step_bytes = 64;
inline constexpr int dot_rows = 32;       // of a microtile
inline constexpr int dot_columns = 32;    // of a microtile and a panel
inline constexpr int block_columns = 16;  // of a half of a panel
inline constexpr int step_groups = 16;    // of a step, four bytes each
inline constexpr std::int64_t step_block_bytes = step_bytes * dot_columns;

/// out (rows, 32) = a (rows, k) b (k, 32), rows <= 32. The bytes of k that do not fill a step lie in a_tail, zeros
/// behind them. Elements of out are 32 bits wide, in rows of out_stride elements.
struct DotTile {
  const std::uint8_t* a;
  std::int64_t a_stride;       ///< bytes from one row of a to the next
  const std::uint8_t* a_tail;  ///< null, or 32 rows of step_bytes bytes
  std::int64_t whole_steps;
  const std::uint8_t* b;  ///< a panel
  int rows;
  int columns;                 ///< that out needs: a kernel may leave out blocks behind them
  const std::int32_t* starts;  ///< what sums of each row begin with: read where the kernel has start()
  void* out;
  std::int64_t out_stride;

  std::int64_t steps() const noexcept { return whole_steps + (a_tail != nullptr ? 1 : 0); }
};

/// Computes a microtile. begin(rows) comes before the first one of a thread and whenever `rows` changes, end() after
/// the last.
///
/// vpdpbusd multiplies unsigned by signed bytes, so a signed a meets b + 128, and sums begin with -128 times the sum of
/// a's row: exact modulo 2^32, whatever the sums on the way.
struct DotKernel {
  void (*begin)(int rows);
  void (*compute)(const DotTile& tile);
  void (*end)();
  void (*start)(const DotTile& tile, std::int32_t* starts) = nullptr;  ///< null, or writes dot_rows starts of a tile
  std::uint8_t flipped_bits = 0;                                       ///< of every packed byte of b
};

/// The kernel for a's dtype: u8, i8 or bf16. The unit is supported.
const DotKernel& dot_kernel(DotUnit unit, DType a_dtype) noexcept;

#if defined(__x86_64__)
/// Whether the processor has AMX for the dtype, and the system gives it to us.
bool has_amx(DType dtype) noexcept;
/// dot_kernel() on AMX.
const DotKernel& amx_kernel(DType a_dtype) noexcept;
#endif

}  // namespace thimble::kernels::gemm_detail
