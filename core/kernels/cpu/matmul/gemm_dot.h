#pragma once
// Matmul on the processor's dot-product instructions: int8 with sums in 32 bits, bf16 with sums in f32.
//
//   group   the 4 bytes of k (4 int8 or 2 bf16) whose products one lane of an instruction sums
//   step    16 groups, 64 bytes of k: what one AMX tile holds
//   panel   32 columns of the right operand, packed step by step: two blocks of 16 groups x 16 columns x 4 bytes

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include <thimble/core/tensor/dtype.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {

/// What computes the dot products. All give the same int8 results; for bf16 see dot_gemm.
enum class DotUnit : std::uint8_t {
  generic,  ///< plain C++; for bf16 a model of vdpbf16ps with its bits, the twin that tests run where there is none
  avx2,     ///< 16-bit multiply-adds; int8 only
  avx512,   ///< vpdpbusd (AVX-512 VNNI), vdpbf16ps (AVX-512 BF16)
  amx,      ///< tile registers (AMX-INT8, AMX-BF16)
};
inline constexpr DotUnit dot_units[] = {DotUnit::generic, DotUnit::avx2, DotUnit::avx512, DotUnit::amx};

/// "generic", "avx2", "avx512", "amx".
std::string_view to_string(DotUnit unit) noexcept;

/// True when this machine (and, for AMX, the operating system) offers `unit` for products of `dtype`: i8 or bf16.
bool is_supported(DotUnit unit, DType dtype) noexcept;

/// The best unit within isa() for products of `dtype`: a function of what the processor reports, so fixed for a
/// machine. AMX comes before AVX-512 BF16 not only as the wider one: processors that have both run vdpbf16ps at half
/// the rate of f32 multiply-adds (measured: 85 of 176 GFLOP/s on one thread). None for bf16 with neither: its model is
/// never chosen. units.h says which one is used.
std::optional<DotUnit> best_dot_unit(DType dtype) noexcept;

/// c = a b, or c += a b with `accumulate`, for a (m, k), b (k, n), c (m, n).
///
///     a u8 or i8, b i8, c i32: exact modulo 2^32, which no sum reaches for k <= 65793 (u8) or 131071 (i8)
///     a bf16, b bf16, c f32
///
/// a's and c's rows are contiguous; b has any strides (elements). c must not overlap a or b.
struct DotGemmArgs {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType a_dtype = DType::i8;
  DType b_dtype = DType::i8;
  const void* a = nullptr;
  std::int64_t a_row_stride = 0;
  const void* b = nullptr;  ///< not read when packed_b is there
  std::int64_t b_row_stride = 0;
  std::int64_t b_column_stride = 1;
  const void* packed_b = nullptr;  ///< null, or what pack_dot_right() made of b for the same unit; aligned to 64
  void* c = nullptr;
  std::int64_t c_row_stride = 0;
  bool accumulate = false;
};

/// Bytes of a packed (k, n) operand of `dtype`: k is filled up to 64 bytes and n to 32 columns.
std::size_t dot_packed_bytes(std::int64_t k, std::int64_t n, DType dtype) noexcept;

/// Packs b, for weights that many calls use. `packed`: dot_packed_bytes() bytes, aligned to 64; the format belongs to
/// `unit` and to a's and b's dtypes: for an i8 a, avx512 keeps b + 128. Allocates nothing and throws nothing.
void pack_dot_right(const DotGemmArgs& args, void* packed, DotUnit unit, int threads = thread_count()) noexcept;

/// Bytes of workspace of dot_gemm(): 0 with packed_b, else up to 1 MiB (one panel where that is more).
std::size_t dot_gemm_workspace_bytes(const DotGemmArgs& args) noexcept;

/// Computes `args` on up to `threads` threads. `workspace` is aligned to 64, and may be null when it needs 0 bytes.
///
/// The bits of an element depend on the unit and on its row of a and column of b alone: never on m, n, strides, packing
/// or threads. For bf16, subnormal operands and results count as zero. AVX-512 and its model sum pairs in ascending k,
/// the odd element of a pair first, each product by a fused multiply-add; AMX adds to the sum, every 32 elements, that
/// of the even elements plus that of the odd ones.
void dot_gemm(const DotGemmArgs& args, void* workspace, int threads, DotUnit unit) noexcept;

/// The oracle: plain loops, sums in 64-bit integers or double, one rounding at the store.
void dot_gemm_reference(const DotGemmArgs& args) noexcept;

}  // namespace thimble::kernels
