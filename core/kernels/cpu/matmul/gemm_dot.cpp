// Loops and packing of gemm_dot.h. Panels of the right operand go through the cache group by group; within a group
// every 32 rows of a meet every panel, with sums over all of k in registers.

#include <thimble/core/kernels/cpu/matmul/gemm_dot.h>

#include <algorithm>
#include <cstring>

#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/matmul/gemm_dot_kernel.h>
#include <thimble/core/numbers/half.h>
#include <thimble/core/numbers/integers.h>

namespace thimble::kernels {
namespace dot_detail {

using namespace gemm_detail;

inline constexpr std::int64_t group_of_panels_bytes = 1024 * 1024;  // stays in the second-level cache

/// Products that pay for another thread. `vdpbf16ps` makes few in the time that the other units make many.
std::int64_t worthwhile_work(DotUnit unit, DType dtype) noexcept {
  return unit == DotUnit::avx512 && dtype == DType::bf16 ? 1 << 17 : 1 << 21;
}

std::int64_t panel_bytes(std::int64_t k, DType dtype) noexcept {
  return ceil_div(k * static_cast<std::int64_t>(size_of(dtype)), step_bytes) * step_block_bytes;
}
std::int64_t panels_of(std::int64_t n) noexcept { return ceil_div(n, dot_columns); }

/// How many panels are worked on at a time.
std::int64_t group_panels(const DotGemmArgs& args) noexcept {
  return std::clamp<std::int64_t>(group_of_panels_bytes / std::max<std::int64_t>(1, panel_bytes(args.k, args.b_dtype)),
                                  1, panels_of(args.n));
}

/// Packs a panel of elements E, which are int8 or bf16 as they lie in memory, with `flipped` bits of every word.
template <class E>
struct PackPanel {
  static constexpr int depth = 4 / sizeof(E);  // of a group

  static void run(const DotGemmArgs& args, std::int64_t column, std::uint32_t flipped, std::uint8_t* out) noexcept {
    const std::int64_t columns = std::min<std::int64_t>(dot_columns, args.n - column);
    const E* const b = static_cast<const E*>(args.b) + column * args.b_column_stride;
    const std::int64_t steps = ceil_div(args.k * static_cast<std::int64_t>(sizeof(E)), step_bytes);
    for (std::int64_t s = 0; s < steps; ++s, out += step_block_bytes) {
      for (int g = 0; g < step_bytes / 4; ++g) {
        std::uint32_t words[dot_columns] = {};
        const std::int64_t k = (s * (step_bytes / 4) + g) * depth;
        for (int i = 0; i < depth && k + i < args.k; ++i) {
          const E* const row = b + (k + i) * args.b_row_stride;
          const int shift = i * 8 * static_cast<int>(sizeof(E));
          if (columns == dot_columns && args.b_column_stride == 1) {
            for (int c = 0; c < dot_columns; ++c) words[c] |= static_cast<std::uint32_t>(row[c]) << shift;
          } else {
            for (std::int64_t c = 0; c < columns; ++c) {
              words[c] |= static_cast<std::uint32_t>(row[c * args.b_column_stride]) << shift;
            }
          }
        }
        for (std::uint32_t& word : words) word ^= flipped;
        std::memcpy(out + g * 64, words, 64);
        std::memcpy(out + g * 64 + step_block_bytes / 2, words + block_columns, 64);
      }
    }
  }
};

/// Cuts [0, count) into one range per thread.
template <class Body>
void split(std::int64_t count, int threads, Body&& body) noexcept {
  threads = static_cast<int>(std::clamp<std::int64_t>(threads, 1, count));
  parallel_threads(threads, [&](int thread) {
    const std::int64_t first = count * thread / threads, last = count * (thread + 1) / threads;
    if (first < last) body(first, last);
  });
}

void pack(const DotGemmArgs& args, const DotKernel& kernel, std::int64_t first, std::int64_t count,
          std::uint8_t* packed, int threads) noexcept {
  const std::uint32_t flipped = kernel.flipped_bits * 0x01010101U;
  const std::int64_t bytes = panel_bytes(args.k, args.b_dtype);
  split(count, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t column = (first + i) * dot_columns;
      if (args.b_dtype == DType::bf16) {
        run_variant<PackPanel<std::uint16_t>>(args, column, flipped, packed + i * bytes);
      } else {
        run_variant<PackPanel<std::uint8_t>>(args, column, flipped, packed + i * bytes);
      }
    }
  });
}

/// One thread's microtiles of a group of panels.
class Worker {
 public:
  Worker(const DotGemmArgs& args, const DotKernel& kernel) noexcept
      : args_(args), kernel_(kernel), element_bytes_(static_cast<std::int64_t>(size_of(args.a_dtype))) {
    tile_.starts = starts_;
  }
  ~Worker() { kernel_.end(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void open_rows(std::int64_t row) noexcept {
    row_ = row;
    const int rows = static_cast<int>(std::min<std::int64_t>(dot_rows, args_.m - row));
    if (rows != tile_.rows) kernel_.begin(rows);
    const std::int64_t row_bytes = args_.k * element_bytes_;
    tile_.rows = rows;
    tile_.a_stride = args_.a_row_stride * element_bytes_;
    tile_.a = static_cast<const std::uint8_t*>(args_.a) + row * tile_.a_stride;
    tile_.whole_steps = row_bytes / step_bytes;
    const std::int64_t rest = row_bytes % step_bytes;
    tile_.a_tail = rest != 0 ? tail_ : nullptr;
    for (int r = 0; rest != 0 && r < rows; ++r) {
      std::memcpy(tail_ + r * step_bytes, tile_.a + r * tile_.a_stride + tile_.whole_steps * step_bytes,
                  static_cast<std::size_t>(rest));
    }
    if (kernel_.start != nullptr) kernel_.start(tile_, starts_);
  }

  void compute(std::int64_t column, const std::uint8_t* panel) noexcept {
    const std::int64_t columns = std::min<std::int64_t>(dot_columns, args_.n - column);
    auto* const c = static_cast<std::uint32_t*>(args_.c) + row_ * args_.c_row_stride + column;
    const bool is_direct = columns == dot_columns && !args_.accumulate;
    tile_.b = panel;
    tile_.columns = static_cast<int>(columns);
    tile_.out = is_direct ? static_cast<void*>(c) : sums_;
    tile_.out_stride = is_direct ? args_.c_row_stride : dot_columns;
    kernel_.compute(tile_);
    for (int r = 0; !is_direct && r < tile_.rows; ++r) {
      store(sums_ + r * dot_columns, c + r * args_.c_row_stride, columns);
    }
  }

 private:
  /// Words are what c holds: i32 or f32.
  void store(const std::uint32_t* from, std::uint32_t* to, std::int64_t count) const noexcept {
    if (!args_.accumulate) {
      std::memcpy(to, from, static_cast<std::size_t>(count) * 4);
      return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint32_t word = from[i];
      if (args_.a_dtype != DType::bf16) {
        word += to[i];
      } else {
        float sum = 0, there = 0;
        std::memcpy(&sum, from + i, 4);
        std::memcpy(&there, to + i, 4);
        sum += there;
        std::memcpy(&word, &sum, 4);
      }
      std::memcpy(to + i, &word, 4);
    }
  }

  const DotGemmArgs& args_;
  const DotKernel& kernel_;
  std::int64_t element_bytes_;
  std::int64_t row_ = 0;
  DotTile tile_{};
  alignas(64) std::uint8_t tail_[dot_rows * step_bytes] = {};
  alignas(64) std::uint32_t sums_[dot_rows * dot_columns];
  std::int32_t starts_[dot_rows];
};

template <class A, class B, class Sum, class C>
void reference(const DotGemmArgs& args) noexcept {
  for (std::int64_t i = 0; i < args.m; ++i) {
    for (std::int64_t j = 0; j < args.n; ++j) {
      Sum sum = 0;
      for (std::int64_t p = 0; p < args.k; ++p) {
        sum += static_cast<Sum>(static_cast<float>(static_cast<const A*>(args.a)[i * args.a_row_stride + p])) *
               static_cast<Sum>(
                   static_cast<float>(static_cast<const B*>(args.b)[p * args.b_row_stride + j * args.b_column_stride]));
      }
      C& c = static_cast<C*>(args.c)[i * args.c_row_stride + j];
      if (args.accumulate) sum += static_cast<Sum>(c);
      c = static_cast<C>(sum);
    }
  }
}

}  // namespace dot_detail

std::size_t dot_packed_bytes(std::int64_t k, std::int64_t n, DType dtype) noexcept {
  return static_cast<std::size_t>(dot_detail::panels_of(n) * dot_detail::panel_bytes(k, dtype));
}

void pack_dot_right(const DotGemmArgs& args, void* packed, DotUnit unit, int threads) noexcept {
  using namespace dot_detail;
  if (args.n == 0) return;
  pack(args, dot_kernel(unit, args.a_dtype), 0, panels_of(args.n), static_cast<std::uint8_t*>(packed), threads);
}

std::size_t dot_gemm_workspace_bytes(const DotGemmArgs& args) noexcept {
  if (args.packed_b != nullptr || args.m == 0 || args.n == 0) return 0;
  return static_cast<std::size_t>(dot_detail::group_panels(args) * dot_detail::panel_bytes(args.k, args.b_dtype));
}

void dot_gemm(const DotGemmArgs& args, void* workspace, int threads, DotUnit unit) noexcept {
  using namespace dot_detail;
  if (args.m == 0 || args.n == 0) return;
  const DotKernel& kernel = dot_kernel(unit, args.a_dtype);
  const std::int64_t panels = panels_of(args.n), group = group_panels(args);
  const std::int64_t bytes = panel_bytes(args.k, args.b_dtype);
  const std::int64_t row_panels = ceil_div(args.m, dot_rows);
  threads = static_cast<int>(
      std::clamp<std::int64_t>(args.m * args.n * args.k / worthwhile_work(unit, args.a_dtype), 1, threads));
  for (std::int64_t first = 0; first < panels; first += group) {
    const std::int64_t count = std::min(group, panels - first);
    const auto* packed = static_cast<const std::uint8_t*>(args.packed_b) + first * bytes;
    if (args.packed_b == nullptr) {
      pack(args, kernel, first, count, static_cast<std::uint8_t*>(workspace), threads);
      packed = static_cast<const std::uint8_t*>(workspace);
    }
    split(row_panels * count, threads, [&](std::int64_t begin, std::int64_t end) {
      Worker worker(args, kernel);
      for (std::int64_t at = begin; at < end; ++at) {
        const std::int64_t panel = at % count;
        if (at == begin || panel == 0) worker.open_rows(at / count * dot_rows);
        worker.compute((first + panel) * dot_columns, packed + panel * bytes);
      }
    });
  }
}

void dot_gemm_reference(const DotGemmArgs& args) noexcept {
  using namespace dot_detail;
  if (args.a_dtype == DType::bf16) return reference<bf16, bf16, double, float>(args);
  if (args.a_dtype == DType::u8) return reference<std::uint8_t, std::int8_t, std::int64_t, std::int32_t>(args);
  reference<std::int8_t, std::int8_t, std::int64_t, std::int32_t>(args);
}

}  // namespace thimble::kernels
