#include <thimble/core/kernels/cpu/matmul/gemm_microkernel.h>

#include <type_traits>

#include <thimble/core/kernels/cpu/base/simd.h>

namespace thimble::kernels::gemm_detail {
namespace microkernel_detail {

/// Walks over the lines of Ahead, one per group; without lines it stays at `b`, which is in the cache.
struct Prefetcher {
  THIMBLE_ALWAYS_INLINE Prefetcher(const Ahead& ahead, const void* b) noexcept
      : line(ahead.first != nullptr ? ahead.first : static_cast<const std::byte*>(b)),
        stride(ahead.first != nullptr ? ahead.stride : 0),
        rows(ahead.first != nullptr ? ahead.rows : INT64_MAX),
        left(rows) {}
  /// How many of `groups` groups fit before turn().
  THIMBLE_ALWAYS_INLINE std::int64_t groups_to_turn(std::int64_t groups) const noexcept {
    return groups < left ? groups : left;
  }
  /// Counts these groups, and at the end of a column moves to the next.
  THIMBLE_ALWAYS_INLINE void turn(std::int64_t groups) noexcept {
    left -= groups;
    if (left != 0) return;
    line += 64 - rows * stride;
    left = rows;
  }

  const std::byte* line;
  std::int64_t stride;
  std::int64_t rows;
  std::int64_t left;
};

/// The sums of a microtile, followed by numbers that groups_of_avx2 reads at their offsets.
template <class T, Isa target, int rows, int vectors>
struct Sums {
  typename Simd<T, target>::Vector at[rows][vectors];
  std::int64_t groups, line_stride, turn, line_rows;
};

#if defined(__x86_64__)
// clang-format off
// Six rows of A times both vectors of a row of B. Strides, and the offset `p`, are in bytes.
#define THIMBLE_ROW(a, i, j)                     \
  "vbroadcastss (%[" a "],%[p]),%%ymm2\n"        \
  "vfmadd231ps %%ymm0,%%ymm2,%%ymm" #i "\n"      \
  "vfmadd231ps %%ymm1,%%ymm2,%%ymm" #j "\n"
#define THIMBLE_COLUMN(b)                        \
  "vmovups (" b "),%%ymm0\n"                     \
  "vmovups 32(" b "),%%ymm1\n"                   \
  THIMBLE_ROW("a0", 4, 5)   THIMBLE_ROW("a1", 6, 7)   THIMBLE_ROW("a2", 8, 9) \
  THIMBLE_ROW("a3", 10, 11) THIMBLE_ROW("a4", 12, 13) THIMBLE_ROW("a5", 14, 15) \
  "add %[depth_stride],%[p]\n"
#define THIMBLE_TWO_COLUMNS THIMBLE_COLUMN("%[b]") THIMBLE_COLUMN("%[b],%[b_stride]") "lea (%[b],%[b_stride],2),%[b]\n"
#define THIMBLE_SUMS(move)                                                      \
  move(4, 0)    move(5, 32)   move(6, 64)   move(7, 96)   move(8, 128)  move(9, 160) \
  move(10, 192) move(11, 224) move(12, 256) move(13, 288) move(14, 320) move(15, 352)
#define THIMBLE_LOAD(i, at) "vmovups " #at "(%[loop]),%%ymm" #i "\n"
#define THIMBLE_STORE(i, at) "vmovups %%ymm" #i "," #at "(%[loop])\n"
// clang-format on

/// `groups` > 0 groups of a full microtile of AVX2 in f32: GCC 12's code for step() runs out of registers and is slower
/// by a tenth to two fifths (docs/lab/matmul.md). Returns b behind the groups. The sums stay in place, because copying
/// them costs as much as a sixth of a microtile.
THIMBLE_ALWAYS_INLINE const float* groups_of_avx2(const float* const (&a)[6], std::int64_t depth_stride, const float* b,
                                                  std::int64_t b_stride, std::int64_t groups, Prefetcher& ahead,
                                                  Sums<float, Isa::avx2, 6, 2>& loop) {
  static_assert(sizeof(loop.at) == 384);
  loop.groups = groups, loop.line_stride = ahead.stride;
  loop.turn = 64 - ahead.rows * ahead.stride, loop.line_rows = ahead.rows;
  std::int64_t p = 0;
  __asm__ volatile(
      THIMBLE_SUMS(THIMBLE_LOAD)
      "1: prefetcht1 (%[line])\n"
      "add 392(%[loop]),%[line]\n"
      "dec %[left]\n"
      "jnz 2f\n"
      "add 400(%[loop]),%[line]\n"
      "mov 408(%[loop]),%[left]\n"
      "2:\n"
      THIMBLE_TWO_COLUMNS THIMBLE_TWO_COLUMNS
      "decq 384(%[loop])\n"
      "jnz 1b\n"
      THIMBLE_SUMS(THIMBLE_STORE)
      : [p] "+r"(p), [b] "+r"(b), [line] "+r"(ahead.line), [left] "+r"(ahead.left)
      : [a0] "r"(a[0]), [a1] "r"(a[1]), [a2] "r"(a[2]), [a3] "r"(a[3]), [a4] "r"(a[4]), [a5] "r"(a[5]),
        [depth_stride] "r"(4 * depth_stride), [b_stride] "r"(4 * b_stride), [loop] "r"(&loop)
      : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
        "xmm12", "xmm13", "xmm14", "xmm15");
  return b;
}
#undef THIMBLE_ROW
#undef THIMBLE_COLUMN
#undef THIMBLE_TWO_COLUMNS
#undef THIMBLE_SUMS
#undef THIMBLE_LOAD
#undef THIMBLE_STORE
#endif

/// A microtile of `rows` rows and `vectors` vectors of columns.
template <class T, Isa target, int rows, int vectors>
struct Tile {
  using V = Simd<T, target>;
  using Vector = typename V::Vector;
  /// Prefetches where a multiply-add is one instruction; elsewhere products need the registers.
  static constexpr bool asks_ahead = FullBlock<T, target>::is_fused;

  /// sum += a's column p times b's row.
  static THIMBLE_ALWAYS_INLINE void step(const T* const (&a)[rows], std::int64_t p, const T* b,
                                         Vector (&sum)[rows][vectors]) {
    Vector row[vectors];
#pragma GCC unroll 3
    for (int v = 0; v < vectors; ++v) row[v] = V::at(b + v * V::lanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      Vector value;
      V::broadcast(value, a[r][p]);
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) V::multiply_add(sum[r][v], value, row[v], sum[r][v]);
    }
  }

  static THIMBLE_ALWAYS_INLINE void run(const Microtile<T>& tile) {
    Sums<T, target, rows, vectors> sums;
    Vector(&sum)[rows][vectors] = sums.at;
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) V::broadcast(sum[r][v], T{0});
    }
    const T* b = tile.b;
    const std::int64_t b_stride = tile.b_stride != 0 ? tile.b_stride : FullBlock<T, target>::vectors * V::lanes;
    const std::int64_t depth_stride = tile.depth_stride;
    const T* total = tile.total;
    const std::int64_t total_stride = total != nullptr ? tile.total_stride : 0;
    T* out = tile.out;
    const std::int64_t out_stride = tile.out_stride;
    Prefetcher ahead(tile.ahead, b);
    for (std::int64_t run = 0; run < tile.run_count; ++run) {
      const T* a[rows];
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) a[r] = tile.a[run * max_tile_rows + r];
      std::int64_t p = 0, left = tile.runs[run];
#if defined(__x86_64__)
      if constexpr (std::is_same_v<T, float> && target == Isa::avx2 && rows == 6 && vectors == 2) {
        if (const std::int64_t groups = left / group_depth; groups > 0) {
          b = groups_of_avx2(a, depth_stride, b, b_stride, groups, ahead, sums);
          p = groups * group_depth * depth_stride;
          left %= group_depth;
        }
      } else
#endif
          if constexpr (asks_ahead) {
        for (std::int64_t groups = left / group_depth; groups > 0;) {
          // Pointers advance by themselves: with one more index, GCC would run out of registers in the inner loop.
          const std::int64_t some = ahead.groups_to_turn(groups);
          const std::byte* line = ahead.line;
          const std::int64_t stride = ahead.stride;
          const std::int64_t end = p + some * group_depth * depth_stride;
          while (p != end) {
            __builtin_prefetch(line, 0, 2);
            line += stride;
#pragma GCC unroll 4
            for (int i = 0; i < group_depth; ++i) {
              step(a, p, b, sum);
              b += b_stride;
              p += depth_stride;
            }
          }
          ahead.line = line;
          ahead.turn(some);
          groups -= some;
        }
        left %= group_depth;
      }
      for (; left > 0; --left) {
        step(a, p, b, sum);
        b += b_stride;
        p += depth_stride;
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < vectors; ++v) {
        Vector value = sum[r][v];
        if (total != nullptr) value = V::at(total + v * V::lanes) + value;
        V::at(out + v * V::lanes) = value;
      }
      // Hidden, so that the compiler does not keep the rows' addresses in registers.
      out += out_stride;
      total += total_stride;
      __asm__("" : "+r"(out), "+r"(total));
    }
  }
};

template <class T, Isa target>
constexpr Microkernels<T> make_table() {
  using Full = FullBlock<T, target>;
  Microkernels<T> table{Full::rows, Simd<T, target>::lanes, Full::vectors, {}};
  fill_blocks<Tile, T, target>(table.kernels);
  return table;
}
template <class T, Isa target>
inline constexpr Microkernels<T> table = make_table<T, target>();

}  // namespace microkernel_detail

template <class T>
const Microkernels<T>& microkernels(Isa isa) noexcept {
  return with_target(isa, []<Isa target>() -> const Microkernels<T>& { return microkernel_detail::table<T, target>; });
}

template const Microkernels<float>& microkernels<float>(Isa) noexcept;
template const Microkernels<double>& microkernels<double>(Isa) noexcept;
template const Microkernels<std::int64_t>& microkernels<std::int64_t>(Isa) noexcept;

}  // namespace thimble::kernels::gemm_detail
