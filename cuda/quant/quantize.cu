// Quantization on CUDA devices. A block's magnitude is a maximum of integers, so its codes equal the CPU's bit for bit,
// for any division of work:
//
//   eights             blocks of 8 to 256 neighbours: each of a block's lanes holds eight values, read once
//   small blocks       a warp per block, larger ones a team; reads the values twice, the second time from the cache
//   columns            a team per 32 neighbouring columns, which reads a row of them at once
//   few large blocks   (a scale for the tensor) teams take parts of all blocks, then their maxima, then the codes

#include <algorithm>

#include <thimble/core/kernels/quantize.h>
#include <thimble/cuda/kernel/dynamic_code.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/kernel.h>
#include <thimble/cuda/kernel/words.h>

namespace thimble::kernels {
namespace quantize_cuda_detail {

using namespace cuda_kernels;

constexpr std::int64_t small_block = 512;                     // values of a block that a warp takes
constexpr std::int64_t column_tile = 32;                      // columns per team
constexpr std::int64_t most_parts = 1024;                     // of all blocks together
constexpr std::int64_t part_values = 1 << 14;                 // minimum per part of a split block
constexpr std::int64_t most_cut = most_parts / 8;             // blocks; more blocks keep a device busy unsplit
THIMBLE_DEVICE_GLOBAL std::uint32_t part_maxima[most_parts];  // one stream orders writes and reads
THIMBLE_DEVICE_GLOBAL quant::BlockScale cut_scales[most_cut];

THIMBLE_DEVICE inline std::uint32_t magnitude_bits(float x) { return bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu; }

// The matrix, its blocks, and the addresses of codes and scales.
struct Matrix {
  std::int64_t rows, columns, block_rows, block_columns, across;
  void* values;
  DType dtype;
  void* codes;
  void* scales;
  DType scale_dtype;
  explicit Matrix(const QuantizeArgs& a)
      : rows(a.rows),
        columns(a.columns),
        block_rows(a.block_rows),
        block_columns(a.block_columns),
        across((a.columns + a.block_columns - 1) / a.block_columns),
        values(a.values),
        dtype(a.dtype),
        codes(a.codes),
        scales(a.scales),
        scale_dtype(a.scale_dtype) {}

  std::int64_t blocks() const { return across * ((rows + block_rows - 1) / block_rows); }
  THIMBLE_DEVICE float value(std::int64_t at) const { return load_any<float>(values, dtype, at); }
  template <class Code>
  THIMBLE_DEVICE void encode(const Code& code, const quant::BlockScale& s, std::int64_t at) const {
    static_cast<typename Code::Bits*>(codes)[at] =
        s.is_finite ? code.encode(value(at) * s.inverse) : typename Code::Bits(0);
  }
};

// A block: its first value, and its rows and columns.
struct Place {
  std::int64_t first, rows, columns;
  THIMBLE_DEVICE Place(const Matrix& m, std::int64_t block) {
    const std::int64_t down = quotient(block, m.across), row = down * m.block_rows;
    const std::int64_t column = (block - down * m.across) * m.block_columns;
    first = row * m.columns + column;
    rows = m.rows - row < m.block_rows ? m.rows - row : m.block_rows;
    columns = m.columns - column < m.block_columns ? m.columns - column : m.block_columns;
  }
  THIMBLE_DEVICE std::int64_t count() const { return rows * columns; }
  /// Value `i` of the block, row by row.
  THIMBLE_DEVICE std::int64_t at(const Matrix& m, std::int64_t i) const {
    if (rows == 1) return first + i;
    const std::int64_t row = quotient(i, columns);
    return first + row * m.columns + (i - row * columns);
  }
};

// Blocks of neighbours, 2^log_lanes eights each, up to a warp's.
struct Eights {
  std::int64_t count;
  int log_lanes;
  /// Calls f.template operator()<S>(eights) if blocks are consecutive, begin at words and have elements of S; else
  /// returns false.
  template <class F>
  static bool with(const QuantizeArgs& a, F&& f) {
    int log_lanes = 0;
    while (log_lanes < 5 && std::int64_t{8} << log_lanes < a.block_columns) ++log_lanes;
    if (a.block_rows != 1 || a.block_columns != std::int64_t{8} << log_lanes || a.columns % a.block_columns != 0 ||
        !is_aligned(a.values, 16) || !is_aligned(a.codes, 8)) {
      return false;
    }
    return with_word_dtype(a.dtype, [&]<class S>() {
      f.template operator()<S>(Eights{a.rows * a.columns / 8, log_lanes});
    });
  }
};

template <class Code, class S>
struct QuantizeEights {
  static constexpr int threads = 256;
  Eights eights;
  const S* values;
  typename Code::Bits* codes;
  void* scales;
  DType scale_dtype;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t number) const {
    const std::int64_t i = number * Team::size + team.rank();
    Words<S, 8> from{};
    if (i < eights.count) from = words_at<8>(values, 8 * i);
    float x[8];
    std::uint32_t most = 0;
    THIMBLE_UNROLL
    for (int v = 0; v < 8; ++v) {
      x[v] = widened(from.values[v]);
      most = larger_of(most, magnitude_bits(x[v]));
    }
    for (int k = 0; k < eights.log_lanes; ++k) most = larger_of(most, exchange(most, 1 << k));
    if (i >= eights.count) return;
    const quant::BlockScale s = quant::block_scale(most, Code::largest, scale_dtype);
    const std::int64_t block = i >> eights.log_lanes;
    if (block << eights.log_lanes == i) quant::store_scale(s.scale, scales, scale_dtype, block);
    THIMBLE_UNROLL
    for (int v = 0; v < 8; ++v) x[v] *= s.inverse;
    Words<typename Code::Bits, 8> made{};
    if (s.is_finite) made = encode_eight(MakeCode<Code>::make(), x);
    put_words(codes, 8 * i, made);
  }
};

template <class Code, class S>
struct DecodeEights {
  Eights eights;
  const typename Code::Bits* codes;
  const void* scales;
  DType scale_dtype;
  S* values;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const float scale = quant::load_scale(scales, scale_dtype, i >> eights.log_lanes);
    float x[8];
    decode_eight(MakeCode<Code>::make(), words_at<8>(codes, 8 * i), x);
    THIMBLE_UNROLL
    for (int v = 0; v < 8; ++v) x[v] *= scale;
    put_words(values, 8 * i, narrowed<S>(x));
  }
};

template <class Code, int team_threads>
struct QuantizeBlock {
  static constexpr int threads = team_threads;
  Matrix m;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t block) const {
    const Place place(m, block);
    const std::int64_t n = place.count();
    std::uint32_t own = 0;
    for (std::int64_t i = team.rank(); i < n; i += Team::size) {
      own = larger_of(own, magnitude_bits(m.value(place.at(m, i))));
    }
    const quant::BlockScale s = quant::block_scale(team.max(own), Code::largest, m.scale_dtype);
    if (team.rank() == 0) quant::store_scale(s.scale, m.scales, m.scale_dtype, block);
    const Code code = MakeCode<Code>::make();
    for (std::int64_t i = team.rank(); i < n; i += Team::size) m.encode(code, s, place.at(m, i));
  }
};

// Blocks of one column: `groups` rows of up to 32 columns at a time.
template <class Code>
struct QuantizeColumns {
  static constexpr int threads = 256;
  Matrix m;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t unit) const {
    constexpr int lanes = static_cast<int>(column_tile), groups = Team::size / lanes;
    const std::int64_t tiles = (m.columns + column_tile - 1) / column_tile;
    const std::int64_t down = quotient(unit, tiles), column = (unit - down * tiles) * column_tile;
    const std::int64_t row = down * m.block_rows, row_end = row + m.block_rows < m.rows ? row + m.block_rows : m.rows;
    const Shared<std::uint32_t> maxima = team.template shared<std::uint32_t>();  // (groups, lanes)
    const int lane = team.rank() % lanes, group = team.rank() / lanes;
    const std::int64_t at = column + lane;
    std::uint32_t own = 0;
    for (std::int64_t r = row + group; at < m.columns && r < row_end; r += groups) {
      own = larger_of(own, magnitude_bits(m.value(r * m.columns + at)));
    }
    maxima[team.rank()] = own;
    team.sync();
    if (at >= m.columns) return;
    const Code code = MakeCode<Code>::make();
    std::uint32_t all = 0;
    for (int g = 0; g < groups; ++g) all = larger_of<std::uint32_t>(all, maxima[g * lanes + lane]);
    const quant::BlockScale s = quant::block_scale(all, Code::largest, m.scale_dtype);
    if (group == 0) quant::store_scale(s.scale, m.scales, m.scale_dtype, down * m.across + at);
    for (std::int64_t r = row + group; r < row_end; r += groups) m.encode(code, s, r * m.columns + at);
  }
};

// The largest magnitude of part `unit % parts` of block `unit / parts`.
struct PartMaximum {
  static constexpr int threads = 256;
  Matrix m;
  std::int64_t parts;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t unit) const {
    const Place place(m, unit / parts);
    const std::int64_t n = place.count(), size = (n + parts - 1) / parts, begin = unit % parts * size;
    const std::int64_t end = begin + size < n ? begin + size : n;
    std::uint32_t own = 0;
    for (std::int64_t i = begin + team.rank(); i < end; i += Team::size) {
      own = larger_of(own, magnitude_bits(m.value(place.at(m, i))));
    }
    const std::uint32_t all = team.max(own);
    if (team.rank() == 0) part_maxima[unit] = all;
  }
};

struct CutScale {
  Matrix m;
  std::int64_t parts;
  float largest;
  THIMBLE_DEVICE void operator()(std::int64_t block) const {
    std::uint32_t all = 0;
    for (std::int64_t part = 0; part < parts; ++part) all = larger_of(all, part_maxima[block * parts + part]);
    cut_scales[block] = quant::block_scale(all, largest, m.scale_dtype);
    quant::store_scale(cut_scales[block].scale, m.scales, m.scale_dtype, block);
  }
};

template <class Code>
struct EncodeCut {
  Matrix m;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t row = quotient(i, m.columns), column = i - row * m.columns;
    const std::int64_t block = quotient(row, m.block_rows) * m.across + quotient(column, m.block_columns);
    m.encode(MakeCode<Code>::make(), cut_scales[block], i);
  }
};

template <class Code>
struct Decode {
  Matrix m;
  THIMBLE_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t row = quotient(i, m.columns), column = i - row * m.columns;
    const std::int64_t block = quotient(row, m.block_rows) * m.across + quotient(column, m.block_columns);
    const auto bits = static_cast<const typename Code::Bits*>(m.codes)[i];
    const float value = MakeCode<Code>::make().decode(bits) * quant::load_scale(m.scales, m.scale_dtype, block);
    store_any<float>(m.values, m.dtype, i, value);
  }
};

template <class F>
void with_code(const QuantizeArgs& a, F&& f) {
  switch (a.code_dtype) {
    case DType::i8:
      return f.template operator()<quant::Int8Code>();
    case DType::f8e4m3:
      return f.template operator()<quant::Float8Code<f8e4m3>>();
    case DType::f8e5m2:
      return f.template operator()<quant::Float8Code<f8e5m2>>();
    default:
      return a.is_signed ? f.template operator()<quant::DynamicCode<true>>()
                         : f.template operator()<quant::DynamicCode<false>>();
  }
}

template <class Code>
void quantize_as(const QuantizeArgs& a) {
  const bool is_done = Eights::with(a, [&]<class S>(const Eights& eights) {
    using Body = QuantizeEights<Code, S>;
    for_each_team((eights.count + Body::threads - 1) / Body::threads,
                  Body{eights, static_cast<const S*>(a.values), static_cast<typename Code::Bits*>(a.codes), a.scales,
                       a.scale_dtype});
  });
  if (is_done) return;
  const Matrix m(a);
  const std::int64_t blocks = m.blocks(), values = a.block_rows * a.block_columns;
  if (blocks <= most_cut && values > part_values) {
    const std::int64_t parts = std::min((values + part_values - 1) / part_values, most_parts / blocks);
    for_each_team(blocks * parts, PartMaximum{m, parts});
    for_each_item(blocks, CutScale{m, parts, Code::largest});
    for_each_item(a.rows * a.columns, EncodeCut<Code>{m});
  } else if (a.block_columns == 1 && a.block_rows > 1) {
    const std::int64_t tiles = (a.columns + column_tile - 1) / column_tile;
    for_each_team(tiles * ((a.rows + a.block_rows - 1) / a.block_rows), QuantizeColumns<Code>{m},
                  QuantizeColumns<Code>::threads * sizeof(std::uint32_t));
  } else if (values <= small_block) {
    for_each_team(blocks, QuantizeBlock<Code, 32>{m});
  } else {
    for_each_team(blocks, QuantizeBlock<Code, 256>{m});
  }
}

void quantize(const QuantizeArgs& a) {
  const std::lock_guard together(launches_together);
  with_code(a, [&]<class Code>() { quantize_as<Code>(a); });
}

void dequantize(const QuantizeArgs& a) {
  with_code(a, [&]<class Code>() {
    const bool is_done = Eights::with(a, [&]<class S>(const Eights& eights) {
      for_each_item(eights.count, DecodeEights<Code, S>{eights, static_cast<const typename Code::Bits*>(a.codes),
                                                        a.scales, a.scale_dtype, static_cast<S*>(a.values)});
    });
    if (!is_done) for_each_item(a.rows * a.columns, Decode<Code>{Matrix(a)});
  });
}

constexpr QuantizeKernels table{quantize, dequantize};

}  // namespace quantize_cuda_detail

const QuantizeKernels* const quantize_cuda = &quantize_cuda_detail::table;

}  // namespace thimble::kernels
