#include <thimble/core/kernels/cpu/matmul/gemm_microkernel.h>

#include <thimble/core/kernels/cpu/base/simd.h>

namespace thimble::kernels::gemm_detail {
namespace microkernel_detail {

/// Walks over the lines of Ahead, one per group; without any it stays at `b`, which is in the cache.
struct Prefetcher {
  THIMBLE_ALWAYS_INLINE Prefetcher(const Ahead& ahead, const void* b) noexcept
      : line(ahead.first != nullptr ? ahead.first : static_cast<const std::byte*>(b)),
        stride(ahead.first != nullptr ? ahead.stride : 0),
        rows(ahead.first != nullptr ? ahead.rows : INT64_MAX),
        left(rows) {}
  /// How many of `groups` groups can be taken before turn().
  THIMBLE_ALWAYS_INLINE std::int64_t groups_to_turn(std::int64_t groups) const noexcept {
    return groups < left ? groups : left;
  }
  /// After as many groups: at the end of a column, on to the next.
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
    Vector sum[rows][vectors];
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
