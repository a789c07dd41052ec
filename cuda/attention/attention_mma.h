#pragma once
// Shared by the kernels of attention on tensor cores (after Dao 2023, arXiv:2307.08691): tiles of an operand's rows in
// shared memory, the mask, dropout of a block of probabilities, stores.
//
// A team is four warps, and each has 16 rows of the result (or twice as many) to itself, whose scores it never shares:
// S = q k^T leaves one product in the fragments that the next one takes its left operand from. So a sum depends only on
// the walk over the other side's tiles, whose size depends only on the type and the width.
//
// T is bf16, f16, or float for f32 tensors whose products are made in TF32. A row of f32 takes twice the bytes, so
// tiles have half as many; the number of a kernel's rows in registers depends on bytes, too.

#include <bit>
#include <cstdint>

#include <thimble/core/kernels/attention.h>
#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/cuda/attention/attention.h>
#include <thimble/cuda/attention/attention_mma_sight.h>
#include <thimble/cuda/kernel/tensor_core.h>

namespace thimble::cuda_kernels {

/// For arguments where is_tensor_core_attention (core/kernels/cuda_workspace.h) is true.
void attention_mma_forward(const kernels::AttentionArgs& args);
void attention_mma_backward(const kernels::AttentionGradArgs& args, void* workspace);

namespace attention_mma_detail {

/// Shared by the parts of backward. delta (B, H, T) = sum_d out dout.
struct GradCall {
  kernels::AttentionGradArgs args;
  Problem problem;
  float* delta;
};

/// The parts, for each Sight in separate files (attention_mma_*_*.cu): query writes dq, key dk and dv.
template <class Sight>
void launch_forward(const kernels::AttentionArgs& args);
template <class Sight>
void launch_query_gradient(const GradCall& call);
template <class Sight>
void launch_key_gradients(const GradCall& call);

using kernels::AttentionOperand;
using kernels::AttentionResult;
/// Of an f16 or bf16, or of an f32.
template <class T>
using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>;
template <class T>
inline constexpr int chunk_elements = 16 / sizeof(T);
template <class T, int W>
inline constexpr int row_bytes = static_cast<int>(sizeof(T)) * W;

inline constexpr int team_threads = 128;
inline constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

/// f.template operator()<T>(): the type of the elements.
template <class F>
void with_element(DType dtype, F&& f) {
  if (dtype == DType::bf16) return f.template operator()<bf16>();
  if (dtype == DType::f16) return f.template operator()<f16>();
  f.template operator()<float>();
}

/// f.template operator()<T, W>(): also the width of tiles that rows are padded to.
template <class F>
void with_tile(DType dtype, std::int64_t width, F&& f) {
  with_element(dtype, [&]<class T>() {
    if (width <= 32) return f.template operator()<T, 32>();
    if (width <= 64) return f.template operator()<T, 64>();
    if (width <= 96) return f.template operator()<T, 96>();
    if (width <= 128) return f.template operator()<T, 128>();
    if constexpr (kernels::widest_tensor_core_attention(dtype_of<T>) > 128) f.template operator()<T, 256>();
  });
}

/// An operand, and whether its rows can be read by chunks.
template <class T>
struct Rows {
  const Bits<T>* data;
  std::int64_t batch, row, head;
  bool has_chunks;
  explicit Rows(const AttentionOperand& x)
      : data(static_cast<const Bits<T>*>(x.data)),
        batch(x.batch),
        row(x.row),
        head(x.head),
        has_chunks(reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 &&
                   (x.batch | x.row | x.head) % chunk_elements<T> == 0) {}
  THIMBLE_DEVICE const Bits<T>* at(std::int64_t b, std::int64_t h) const { return data + b * batch + h * head; }
};

/// The chunks of a tile's rows that a thread of a team of `size` loads: in rows first_row, first_row + rows_at_once,
/// ... the chunk `chunk`; none where it is idle.
template <int size, int chunks>
struct ChunkMap {
  static_assert(size >= chunks);
  static constexpr int rows_at_once = static_cast<int>(std::bit_floor(static_cast<unsigned>(size / chunks)));
  int chunk, first_row;
  bool is_busy;
  THIMBLE_HD constexpr explicit ChunkMap(int thread)
      : chunk(thread % chunks), first_row(thread / chunks), is_busy(thread / chunks < rows_at_once) {}
};

/// Loads rows first .. first + count - 1 of one head, `from`, into the first rows of a tile; 0 from row `end` and from
/// column `width` on.
template <int count, class T, int W, class Team>
THIMBLE_DEVICE inline void load_rows(const Team& team, AsyncLoads& loads, const Rows<T>& x, const Bits<T>* from,
                                     std::int64_t first, std::int64_t end, std::int64_t width,
                                     const SharedTile<T, W>& tile) {
  using Map = ChunkMap<Team::size, SharedTile<T, W>::chunks>;
  static_assert(count % Map::rows_at_once == 0);
  const Map map(team.rank());
  if (!map.is_busy) return;
  const int rows = static_cast<int>(end - first < count ? end - first : count);
  const Bits<T>* const start = from + first * x.row;
  const int column = chunk_elements<T> * map.chunk;
  const bool is_column = column < width;
  const Bits<T>* source = start + map.first_row * x.row + column;
  if (x.has_chunks) {
    THIMBLE_UNROLL
    for (int n = 0; n < count / Map::rows_at_once; ++n) {
      const int row = map.first_row + n * Map::rows_at_once;
      const bool is_there = is_column && row < rows;
      loads.template load<16>(tile.at(row, column), is_there ? source : from, is_there);
      source += Map::rows_at_once * x.row;
    }
    return;
  }
  THIMBLE_ROLLED
  for (int row = map.first_row; row < count; row += Map::rows_at_once) {
    constexpr int in_word = chunk_elements<T> / 4;
    std::uint32_t words[4] = {};
    THIMBLE_UNROLL
    for (int e = 0; e < chunk_elements<T>; ++e) {
      const Bits<T> bits = is_column && row < rows ? source[e] : Bits<T>{0};
      words[e / in_word] |= static_cast<std::uint32_t>(bits) << (16 * (e % in_word));
    }
    store_shared(tile.at(row, column), words);
    source += Map::rows_at_once * x.row;
  }
}

/// The site of dropout's mask, as a value; field by field, so that it stays in registers.
THIMBLE_DEVICE inline RandomSite site_of(const Problem& p) {
  const RandomSite *const place = p.site_argument.place, &value = p.site_argument.value;
  RandomSite site;
  site.seed = place ? place->seed : value.seed;
  site.step = place ? place->step : value.step;
  site.first_sample = place ? place->first_sample : value.first_sample;
  site.site = place ? place->site : value.site;
  return site;
}

/// Two tiles' rows, used in turn.
template <class T, int W>
struct Stages {
  SharedTile<T, W> first;
  int rows;
  THIMBLE_DEVICE SharedTile<T, W> get(int stage) const { return {first.at(stage * rows, 0)}; }
};

/// The random words of a block of 16 queries from t0 and 8 keys from s0 on, by elements of D; with `is_turned` D's rows
/// are 16 keys and its columns 8 queries. s0 is divisible by 4.
template <bool is_turned>
THIMBLE_DEVICE inline void draw_words(const Warp& warp, const Problem& p, const RandomSite& site, std::int64_t b,
                                      std::int64_t h, std::int64_t t0, std::int64_t s0, std::uint32_t (&words)[4]) {
  const int lane = warp.lane;
  const std::int64_t base = (h * p.queries + t0) * p.keys + s0;
  const auto sample = static_cast<std::uint32_t>(site.first_sample + b);
  // A block of four words is four neighbouring keys of a query, where their number is divisible by 4. Then each lane
  // draws one block, and lanes exchange words; else each draws for one of its elements after the other.
  const bool shares = p.keys % 4 == 0;
  THIMBLE_ROLLED
  for (int e = 0; e < (shares ? 1 : 4); ++e) {
    Place at = lane_map::sums(lane, e);
    if (is_turned) at = {at.column, at.row};
    if (shares && is_turned) {  // lanes L, L + 4, L + 8, L + 12 have four keys: each draws for one of its elements
      at = {2 * (lane % 4) + lane / 4 % 2, lane / 16 * 4 + lane / 8 % 2 * 8};
    } else if (shares) {  // lanes L and L + 1 have four keys: the one draws for row L / 4, the other for L / 4 + 8
      at = {lane / 4 + lane % 2 * 8, lane / 2 % 2 * 4};
    }
    const std::int64_t element = base + at.row * p.keys + at.column;
    const PhiloxBlock block = kernels::random_block(site, static_cast<std::uint32_t>(element / 4), sample);
    const int place = static_cast<int>(element % 4);
    const std::uint32_t low = place == 0 ? block.word[0] : block.word[1];
    const std::uint32_t word = place < 2 ? low : place == 2 ? block.word[2] : block.word[3];
    THIMBLE_UNROLL
    for (int f = 0; f < 4; ++f) words[f] = shares ? block.word[f] : f == e ? word : words[f];
  }
  if (!shares) return;
  if constexpr (is_turned) {
    // Word w of lane 4 j becomes element j of lane 4 w: a transposition of 4 x 4, first of pairs, then within them.
    THIMBLE_UNROLL
    for (int mask = 2; mask >= 1; mask /= 2) {
      const bool is_high = (lane / 4 & mask) != 0;
      THIMBLE_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        const int low = mask == 2 ? pair : 2 * pair, high = low + mask;
        const std::uint32_t taken = exchange(is_high ? words[low] : words[high], 4 * mask);
        if (is_high) {
          words[low] = taken;
        } else {
          words[high] = taken;
        }
      }
    }
  } else {
    const bool is_odd = lane % 2 != 0;
    THIMBLE_UNROLL
    for (int e = 0; e < 2; ++e) {
      const std::uint32_t taken = exchange(is_odd ? words[e] : words[2 + e], 1);
      if (is_odd) {
        words[e] = taken;
      } else {
        words[2 + e] = taken;
      }
    }
  }
}

/// Destination of a result.
template <class T>
struct ResultRows {
  AttentionResult to;
  bool has_pairs;  ///< two neighbours can be written at once
  explicit ResultRows(const AttentionResult& x)
      : to(x),
        has_pairs(reinterpret_cast<std::uintptr_t>(x.data) % (2 * sizeof(T)) == 0 &&
                  (x.batch | x.row | x.head) % 2 == 0) {}

  /// Rows first .. of one head = factor[half] sums, up to `end` and `width`; the sums' columns begin at `column`.
  template <int N>
  THIMBLE_DEVICE void store(const Warp& warp, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t end,
                            int column, std::int64_t width, const float (&factor)[2], const Sums (&sums)[N]) const {
    THIMBLE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Place at = lane_map::sums(warp.lane, 2 * half);
      if (first + at.row >= end) continue;
      Bits<T>* const row = static_cast<Bits<T>*>(to.data) + b * to.batch + (first + at.row) * to.row + h * to.head;
      THIMBLE_UNROLL
      for (int n = 0; n < N; ++n) {
        const int d = column + 8 * n + at.column;
        if (d >= width) continue;
        const float* const pair = sums[n].value + 2 * half;
        store_pair(row + d, factor[half] * pair[0], factor[half] * pair[1]);
      }
    }
  }

 private:
  THIMBLE_DEVICE void store_pair(Bits<T>* place, float first, float second) const {
    using Pair = std::conditional_t<sizeof(T) == 2, std::uint32_t, std::uint64_t>;
    Pair both;
    if constexpr (sizeof(T) == 2) {
      both = packed<T>(first, second);
    } else {
      both = bit_cast<std::uint32_t>(first) | static_cast<Pair>(bit_cast<std::uint32_t>(second)) << 32;
    }
    if (has_pairs) {
      *reinterpret_cast<Pair*>(place) = both;
    } else {
      place[0] = static_cast<Bits<T>>(both), place[1] = static_cast<Bits<T>>(both >> (8 * sizeof(T)));
    }
  }
};

}  // namespace attention_mma_detail
}  // namespace thimble::cuda_kernels
