// Quantization on the CPU. Work is cut into tiles: a row of blocks by whole blocks of up to `tile` columns, or one
// block that is wider. A block's magnitude is a maximum of integers, so tiles, threads and variants change no
// bits.

#include <algorithm>
#include <atomic>
#include <cstring>

#include <thimble/core/kernels/cpu/base/variants.h>
#include <thimble/core/kernels/cpu/quant/quant_loops.h>
#include <thimble/core/kernels/quantize.h>
#include <thimble/core/kernels/table_for.h>
#include <thimble/core/numbers/convert.h>
#include <thimble/core/numbers/integers.h>
#include <thimble/core/numbers/quant_code.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::kernels {
namespace quantize_detail {

using quant::BlockScale;

constexpr std::int64_t tile = quant_tile;  // columns processed at once
constexpr std::int64_t grain = 16 * tile;  // values that pay for another thread

// Factors of a tile's columns, one per column.
struct Columns {
  alignas(64) float factor[tile];
  bool is_bad[tile];  // has a non-finite block; set and read only where any_bad
  bool any_bad = false;
};

struct LargestOfColumns {
  THIMBLE_ALWAYS_INLINE static void run(const float* values, std::uint32_t* __restrict largest, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t magnitude = bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFFu;
      largest[i] = largest[i] < magnitude ? magnitude : largest[i];
    }
  }
};

struct Largest {
  THIMBLE_ALWAYS_INLINE static void run(const std::uint32_t* magnitudes, std::uint32_t* result, std::int64_t n) {
    std::uint32_t most = 0;
    for (std::int64_t i = 0; i < n; ++i) most = most < magnitudes[i] ? magnitudes[i] : most;
    *result = most;
  }
};

// AVX-512 has hand-written FP8 loops with the same bits.
template <class Code>
void encode(DType dtype, const Code& code, const float* values, const float* inverse, std::uint8_t* codes,
            std::int64_t n) {
#if defined(__x86_64__)
  const bool is_fp8 = dtype == DType::f8e4m3 || dtype == DType::f8e5m2;
  if (is_fp8 && isa() == Isa::avx512) return fp8_encode_avx512(dtype, values, inverse, codes, n);
#endif
  using Bits = typename Code::Bits;
  with_target(isa(), [&]<Isa target>() {
    compiled_for<target, EncodeLoop<Code, target>, Code, const float*, const float*, Bits*, std::int64_t>(
        code, values, inverse, reinterpret_cast<Bits*>(codes), n);
  });
}

template <class F>
void with_code(const QuantizeArgs& a, F&& f) {
  switch (a.code_dtype) {
    case DType::i8:
      return f(quant::Int8Code{});
    case DType::f8e4m3:
      return f(quant::Float8Code<f8e4m3>{});
    case DType::f8e5m2:
      return f(quant::Float8Code<f8e5m2>{});
    default:
      return a.is_signed ? f(quant::DynamicCode<true>{&quant::dynamic_table(true)})
                         : f(quant::DynamicCode<false>{&quant::dynamic_table(false)});
  }
}

// Values of a run of a row, in place or converted.
class RowPart {
 public:
  explicit RowPart(const QuantizeArgs& a) : a_(a), size_(static_cast<std::int64_t>(size_of(a.dtype))) {}
  const float* load(std::int64_t row, std::int64_t column, std::int64_t n) {
    const auto* const from = static_cast<const std::byte*>(a_.values) + (row * a_.columns + column) * size_;
    if (a_.dtype == DType::f32) return reinterpret_cast<const float*>(from);
    if (from != held_) load_f32(from, a_.dtype, 1, buffer_, n);
    held_ = from;
    return buffer_;
  }

 private:
  const QuantizeArgs& a_;
  std::int64_t size_;
  const std::byte* held_ = nullptr;  // where the buffer's values come from; a region has one width
  alignas(64) float buffer_[tile];
};

// Rows [row, row_end) and columns [column, column_end) of the matrix.
struct Part {
  std::int64_t row, row_end, column, column_end;
};

// Encodes a region whose scales are known.
template <class Code>
void encode_part(const QuantizeArgs& a, const Code& code, const Part& p, const Columns& columns, RowPart& part) {
  const std::int64_t n = p.column_end - p.column;
  for (std::int64_t r = p.row; r < p.row_end; ++r) {
    auto* const to = static_cast<std::uint8_t*>(a.codes) + r * a.columns + p.column;
    encode(a.code_dtype, code, part.load(r, p.column, n), columns.factor, to, n);
    if (!columns.any_bad) continue;
    for (std::int64_t i = 0; i < n; ++i) {
      if (columns.is_bad[i]) to[i] = 0;
    }
  }
}

// Quantizes a row of blocks, up to a tile wide.
template <class Code>
void quantize_tile(const QuantizeArgs& a, const Code& code, std::int64_t block_row, const Part& p) {
  RowPart part(a);
  Columns columns;
  alignas(64) std::uint32_t largest[tile];
  const std::int64_t n = p.column_end - p.column;
  std::fill(largest, largest + n, 0u);
  for (std::int64_t r = p.row; r < p.row_end; ++r) {
    run_variant<LargestOfColumns>(part.load(r, p.column, n), static_cast<std::uint32_t*>(largest), n);
  }
  const std::int64_t across = ceil_div(a.columns, a.block_columns);
  for (std::int64_t begin = 0; begin < n; begin += a.block_columns) {
    const std::int64_t end = std::min(n, begin + a.block_columns);
    std::uint32_t amax = 0;
    run_variant<Largest>(static_cast<const std::uint32_t*>(largest + begin), &amax, end - begin);
    const BlockScale s = quant::block_scale(amax, Code::largest, a.scale_dtype);
    const std::int64_t block = block_row * across + (p.column + begin) / a.block_columns;
    quant::store_scale(s.scale, a.scales, a.scale_dtype, block);
    std::fill(columns.factor + begin, columns.factor + end, s.inverse);
    if (!s.is_finite && !columns.any_bad) std::fill(columns.is_bad, columns.is_bad + n, false);
    if (!s.is_finite) std::fill(columns.is_bad + begin, columns.is_bad + end, true);
    columns.any_bad |= !s.is_finite;
  }
  encode_part(a, code, p, columns, part);
}

// f(region) for a block's regions of up to `tile` columns in a row, by several threads or one.
template <class F>
void for_parts(const Part& block, bool is_parallel, F&& f) {
  const std::int64_t across = ceil_div(block.column_end - block.column, tile);
  const std::int64_t count = across * (block.row_end - block.row);
  const auto range = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = block.row + i / across, column = block.column + i % across * tile;
      f(Part{row, row + 1, column, std::min(block.column_end, column + tile)});
    }
  };
  if (!is_parallel) return range(0, count);
  parallel_for(count, grain / tile, range);
}

// Quantizes a block that is wider than a tile.
template <class Code>
void quantize_wide(const QuantizeArgs& a, const Code& code, std::int64_t block, const Part& p, bool is_parallel) {
  std::atomic<std::uint32_t> amax{0};
  for_parts(p, is_parallel, [&](const Part& part) {
    RowPart values(a);
    alignas(64) std::uint32_t largest[tile];
    const std::int64_t n = part.column_end - part.column;
    std::fill(largest, largest + n, 0u);
    std::uint32_t most = 0;
    run_variant<LargestOfColumns>(values.load(part.row, part.column, n), static_cast<std::uint32_t*>(largest), n);
    run_variant<Largest>(static_cast<const std::uint32_t*>(largest), &most, n);
    for (std::uint32_t now = amax.load(); now < most && !amax.compare_exchange_weak(now, most);) continue;
  });
  const BlockScale s = quant::block_scale(amax.load(), Code::largest, a.scale_dtype);
  quant::store_scale(s.scale, a.scales, a.scale_dtype, block);
  for_parts(p, is_parallel, [&](const Part& part) {
    if (!s.is_finite) {
      auto* const to = static_cast<std::uint8_t*>(a.codes) + part.row * a.columns + part.column;
      std::memset(to, 0, static_cast<std::size_t>(part.column_end - part.column));
      return;
    }
    RowPart values(a);
    Columns columns;
    std::fill(columns.factor, columns.factor + (part.column_end - part.column), s.inverse);
    encode_part(a, code, part, columns, values);
  });
}

template <class Code>
void quantize_as(const QuantizeArgs& a, const Code& code) {
  const bool is_wide = a.block_columns > tile;
  const std::int64_t width = is_wide ? a.block_columns : tile / a.block_columns * a.block_columns;
  const std::int64_t across = ceil_div(a.columns, width), down = ceil_div(a.rows, a.block_rows);
  const auto part_of = [&](std::int64_t unit) {
    const std::int64_t row = unit / across * a.block_rows, column = unit % across * width;
    return Part{row, std::min(a.rows, row + a.block_rows), column, std::min(a.columns, column + width)};
  };
  const std::int64_t values = a.block_rows * std::min(width, a.columns);
  if (is_wide && values >= 2 * grain) {
    for (std::int64_t unit = 0; unit < across * down; ++unit) quantize_wide(a, code, unit, part_of(unit), true);
    return;
  }
  parallel_for(across * down, std::max<std::int64_t>(1, grain / values), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      if (is_wide) {
        quantize_wide(a, code, unit, part_of(unit), false);
      } else {
        quantize_tile(a, code, unit / across, part_of(unit));
      }
    }
  });
}

template <class Code>
void dequantize_as(const QuantizeArgs& a, const Code& code) {
  const auto size = static_cast<std::int64_t>(size_of(a.dtype));
  const std::int64_t blocks_across = ceil_div(a.columns, a.block_columns);
  for_parts({0, a.rows, 0, a.columns}, true, [&](const Part& p) {
    const std::int64_t n = p.column_end - p.column;
    alignas(64) float scale[tile], buffer[tile];
    const std::int64_t first = p.row / a.block_rows * blocks_across;
    if (a.block_columns == 1 && a.scale_dtype != DType::u8) {
      const auto* const from = static_cast<const std::byte*>(a.scales);
      load_f32(from + (first + p.column) * static_cast<std::int64_t>(size_of(a.scale_dtype)), a.scale_dtype, 1, scale,
               n);
    } else {
      std::int64_t block = p.column / a.block_columns;
      for (std::int64_t at = 0; at < n; ++block) {
        const std::int64_t end = std::min(n, (block + 1) * a.block_columns - p.column);
        std::fill(scale + at, scale + end, quant::load_scale(a.scales, a.scale_dtype, first + block));
        at = end;
      }
    }
    const std::int64_t offset = p.row * a.columns + p.column;
    auto* const place = static_cast<std::byte*>(a.values) + offset * size;
    float* const to = a.dtype == DType::f32 ? reinterpret_cast<float*>(place) : buffer;
    using Bits = typename Code::Bits;
    with_target(isa(), [&]<Isa target>() {
      compiled_for<target, DecodeLoop<Code, target>, Code, const Bits*, const float*, float*, std::int64_t>(
          code, static_cast<const Bits*>(a.codes) + offset, scale, to, n);
    });
    if (to == buffer) store_f32(buffer, place, a.dtype, 1, n);
  });
}

void quantize(const QuantizeArgs& a) {
  with_code(a, [&](const auto& code) { quantize_as(a, code); });
}

void dequantize(const QuantizeArgs& a) {
  with_code(a, [&](const auto& code) { dequantize_as(a, code); });
}

}  // namespace quantize_detail

const QuantizeKernels quantize_cpu{.quantize = quantize_detail::quantize, .dequantize = quantize_detail::dequantize};

const QuantizeKernels& quantize_kernels(memory::Device device) {
  return table_for(device, "quantize", quantize_cpu, quantize_cuda);
}

}  // namespace thimble::kernels
