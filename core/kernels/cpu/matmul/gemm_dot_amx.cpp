// The microtiles of gemm_dot.h on AMX, and whether the processor has it.

#include <thimble/core/kernels/cpu/base/isa.h>
#include <thimble/core/kernels/cpu/matmul/gemm_dot_kernel.h>

#if defined(__x86_64__)

#include <algorithm>

#include <cpuid.h>
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace thimble::kernels::gemm_detail {
namespace dot_amx_detail {

#define THIMBLE_TARGET_AMX __attribute__((target("amx-tile,amx-int8,amx-bf16")))

// Tiles 0 to 3 are the four sums (upper left, upper right, lower left, lower right), 4 and 5 the rows of a, 6 and 7 the
// columns of b.
THIMBLE_TARGET_AMX void begin_amx(int rows) {
  struct alignas(64) {
    std::uint8_t palette = 1;
    std::uint8_t rest[15] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  } config;
  const int upper = std::min(rows, 16), lower = std::max(rows - 16, 1);
  const int tile_rows[8] = {upper, upper, lower, lower, upper, lower, step_groups, step_groups};
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = static_cast<std::uint16_t>(step_bytes);
    config.rows[i] = static_cast<std::uint8_t>(tile_rows[i]);
  }
  __asm__ volatile("" : : "r"(&config) : "memory");  // GCC's intrinsic says that it reads 8 bytes
  _tile_loadconfig(&config);
}
THIMBLE_TARGET_AMX void end_amx() { _tile_release(); }

struct AmxU8 {
  THIMBLE_TARGET_AMX static THIMBLE_ALWAYS_INLINE void upper() {
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
  }
  THIMBLE_TARGET_AMX static THIMBLE_ALWAYS_INLINE void lower() {
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
};
struct AmxI8 {
  THIMBLE_TARGET_AMX static THIMBLE_ALWAYS_INLINE void upper() {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
  }
  THIMBLE_TARGET_AMX static THIMBLE_ALWAYS_INLINE void lower() {
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
};
struct AmxBf16 {
  THIMBLE_TARGET_AMX static THIMBLE_ALWAYS_INLINE void upper() {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  }
  THIMBLE_TARGET_AMX static THIMBLE_ALWAYS_INLINE void lower() {
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
};

template <class Products, bool has_lower>
THIMBLE_TARGET_AMX void tile_amx(const DotTile& tile) {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (has_lower) {
    _tile_zero(2);
    _tile_zero(3);
  }
  const std::uint8_t* b = tile.b;
  const std::uint8_t* a = tile.a;
  std::int64_t stride = tile.a_stride;
  for (std::int64_t s = tile.steps(), whole = tile.whole_steps; s > 0; --s, --whole) {
    if (whole == 0) {
      a = tile.a_tail;
      stride = step_bytes;
    }
    _tile_loadd(6, b, step_bytes);
    _tile_loadd(4, a, stride);
    _tile_loadd(7, b + step_block_bytes / 2, step_bytes);
    Products::upper();
    if constexpr (has_lower) {
      _tile_loadd(5, a + 16 * stride, stride);
      Products::lower();
    }
    a += step_bytes;
    b += step_block_bytes;
  }
  auto* const out = static_cast<std::int32_t*>(tile.out);
  const std::int64_t out_stride = tile.out_stride * 4;
  _tile_stored(0, out, out_stride);
  _tile_stored(1, out + block_columns, out_stride);
  if constexpr (has_lower) {
    _tile_stored(2, out + 16 * tile.out_stride, out_stride);
    _tile_stored(3, out + 16 * tile.out_stride + block_columns, out_stride);
  }
}
template <class Products>
void compute_amx(const DotTile& tile) {
  if (tile.rows > 16) return tile_amx<Products, true>(tile);
  tile_amx<Products, false>(tile);
}

template <class Products>
inline constexpr DotKernel kernel{begin_amx, compute_amx<Products>, end_amx};

#undef THIMBLE_TARGET_AMX

}  // namespace dot_amx_detail

/// Bits of CPUID leaf 7: the compilers' own test does not know them all. Linux hands out tile registers on request.
bool has_amx([[maybe_unused]] DType dtype) noexcept {
#if defined(__linux__)
  static const unsigned bits = [] {
    constexpr long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return 0U;
    constexpr unsigned tile = 1U << 24;
    return (d & tile) != 0 && syscall(SYS_arch_prctl, request_permission, tile_data) == 0 ? d : 0U;
  }();
  return (bits & (dtype == DType::bf16 ? 1U << 22 : 1U << 25)) != 0;
#else
  return false;
#endif
}

const DotKernel& amx_kernel(DType a_dtype) noexcept {
  using namespace dot_amx_detail;
  if (a_dtype == DType::bf16) return kernel<AmxBf16>;
  return a_dtype == DType::u8 ? kernel<AmxU8> : kernel<AmxI8>;
}

}  // namespace thimble::kernels::gemm_detail

#endif
