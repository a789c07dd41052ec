#pragma once
// Shared by the kernels of attention on CUDA devices: rows of operands, the mask, dropout, and the size of tiles.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <thimble/core/kernels/attention.h>
#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/core/kernels/shared/attention_range.h>
#include <thimble/core/kernels/shared/random_bits.h>
#include <thimble/core/numbers/math.h>
#include <thimble/cuda/kernel/element.h>
#include <thimble/cuda/kernel/step_argument.h>
#include <thimble/cuda/kernel/tensor_core.h>

namespace thimble::cuda_kernels {

void attention_backward(const kernels::AttentionGradArgs& args, void* workspace, int threads);

namespace attention_cuda_detail {

using kernels::AttentionOperand;
using kernels::AttentionProblem;
using kernels::AttentionResult;
using kernels::KeyRange;

/// Sizes and the operations on scores.
struct Problem {
  DType dtype;
  std::int64_t heads, group, queries, keys, width;
  std::int64_t window, first_key;
  const std::int32_t* documents;
  std::int64_t documents_batch;
  bool is_causal, has_dropout, has_mask;
  kernels::AttentionMask mask;
  std::uint32_t threshold;
  double keep_scale, scale;
  StepArgument<RandomSite> site_argument;
  explicit Problem(const AttentionProblem& p)
      : dtype(p.dtype),
        heads(p.heads),
        group(p.group),
        queries(p.queries),
        keys(p.keys),
        width(p.width),
        window(p.window),
        first_key(p.first_key),
        documents(p.documents),
        documents_batch(p.documents_batch),
        is_causal(p.is_causal),
        has_dropout(p.has_dropout),
        has_mask(p.has_mask),
        mask(p.mask),
        threshold(p.threshold),
        keep_scale(p.keep_scale),
        scale(p.scale),
        site_argument(p.has_dropout ? step_argument(p.site) : StepArgument<RandomSite>{p.site, nullptr}) {}

  /// Elements between rows of a tile in shared memory; one of padding puts a column's elements into different banks.
  THIMBLE_HD std::int64_t stride() const { return width + 1; }
  /// Keys visible to query t before the mask; a t beyond the last query counts as the last one.
  THIMBLE_DEVICE KeyRange seen(std::int64_t b, std::int64_t t) const {
    return kernels::seen_range(*this, b, t < queries ? t : queries - 1);
  }
  /// The mask's addend to a score.
  template <class T>
  THIMBLE_DEVICE T masked(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s) const {
    if (!has_mask) return T(0);
    const std::int64_t at = b * mask.batch + h * mask.head + t * mask.query + s * mask.key;
    if (mask.dtype != DType::boolean) return load<T>(mask.data, mask.dtype, at);
    return static_cast<const std::uint8_t*>(mask.data)[at] != 0 ? T(0) : -static_cast<T>(INFINITY);
  }
  /// Dropout's factor of the probability of (h, t, s) in sample b.
  template <class T>
  THIMBLE_DEVICE T kept(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t s) const {
    if (!has_dropout) return T(1);
    const std::int64_t i = (h * queries + t) * keys + s;
    const RandomSite& site = site_argument.get();
    const PhiloxBlock block = kernels::random_block(site, static_cast<std::uint32_t>(i / 4),
                                                    static_cast<std::uint32_t>(site.first_sample + b));
    return block.word[i % 4] < threshold ? T(0) : static_cast<T>(keep_scale);
  }
};

/// Loads rows [begin, end) of one head of an operand into a tile (tile, width) with the problem's stride; 0 from `end`.
template <class T, class Team>
THIMBLE_DEVICE inline void load_rows(Team& team, const Problem& p, const AttentionOperand& x, std::int64_t b,
                                     std::int64_t h, std::int64_t begin, std::int64_t end, int tile, Shared<T> to) {
  const std::int64_t elements = tile * p.width;
  for (std::int64_t e = team.rank(); e < elements; e += Team::size) {
    const std::int64_t i = e / p.width, d = e % p.width, row = begin + i;
    to[i * p.stride() + d] = row < end ? load<T>(x.data, p.dtype, b * x.batch + row * x.row + h * x.head + d) : T(0);
  }
}

template <class T>
THIMBLE_DEVICE inline T dot_rows(Shared<T> a, Shared<T> b, std::int64_t width) {
  T sum = 0;
  for (std::int64_t d = 0; d < width; ++d) sum += a[d] * b[d];
  return sum;
}

/// Copies element e of q's gradient from the workspace, (B, H, T, D) of `dtype`, to its place, converted through T.
template <class T>
struct PlaceQueryGradient {
  Problem p;
  const void* from;
  DType dtype;
  AttentionResult dq;
  THIMBLE_DEVICE void operator()(std::int64_t e) const {
    const std::int64_t d = e % p.width, t = e / p.width % p.queries, h = e / p.width / p.queries % p.heads;
    const std::int64_t b = e / p.width / p.queries / p.heads;
    store<T>(dq.data, p.dtype, b * dq.batch + t * dq.row + h * dq.head + d, load<T>(from, dtype, e));
  }
};

/// Rows of a tile such that `rows` arrays of them fit into every kernel's shared memory.
inline int tile_rows(std::int64_t width, std::size_t element_bytes, int arrays) {
  int rows = 16;
  while (rows > 1 && static_cast<std::size_t>(rows) * static_cast<std::size_t>(arrays * (width + 1) + 4 * rows + 8) *
                             element_bytes >
                         (std::size_t{48} << 10)) {
    rows /= 2;
  }
  return rows;
}

}  // namespace attention_cuda_detail

}  // namespace thimble::cuda_kernels

// ---- Shared by the kernels of attention on tensor cores (after Dao 2023, arXiv:2307.08691): tiles of an operand's
// rows in shared memory, the mask, dropout of a block of probabilities, stores.
//
// A team has four warps. Each owns 16 or 32 rows of the result and never shares their scores: S = q k^T is in the
// fragments in which the next product takes its left operand. So a sum depends only on the walk over the other side's
// tiles, whose size depends only on the type and the width.
//
// T is bf16, f16, or float for f32 tensors with products in TF32. Tiles of f32 have half as many rows, because a row
// takes twice the bytes; the number of rows that a kernel holds in registers also depends on bytes.

namespace thimble::cuda_kernels::attention_mma_detail {

// ---- Visible keys of queries, and the reverse, in attention on tensor cores. A kernel is compiled for a kind of
// visibility, a type called its Sight:
//
//   BySizes      lengths, causality and a window: ranges follow from sizes wherever they are used
//   ByDocuments  also documents: a team searches the ranges of its rows once and keeps them behind the rows
//   ByMask       also a given mask, which is added to the scores of the tiles within the ranges
//
// Policy
// - Both ends of a range ascend from row to row (attention_range.h). So the first and the last row of a tile determine
//   whether all pairs of two tiles are visible, and whether none is.
// - A kept range is in words 1 and 2 of the chunk behind its row; word 0 may have another use.
// - Each lane reads the mask's elements for its scores in place. A mask of zeros changes no bit.

using attention_cuda_detail::Problem;
using kernels::KeyRange;

struct BySizes {
  static constexpr bool keeps_ranges = false, has_mask = false;
};
struct ByDocuments {
  static constexpr bool keeps_ranges = true, has_mask = false;
};
struct ByMask {
  static constexpr bool keeps_ranges = true, has_mask = true;
};

/// Positions of the range `all` of a sample that are in the document of `own`.
THIMBLE_DEVICE inline KeyRange of_document(const std::int32_t* numbers, std::int64_t own, KeyRange all) {
  // Numbers ascend, so there is no search behind `own` if `all` ends there, as with causality.
  const std::int64_t begin = all.begin, after = begin > own + 1 ? begin : own + 1;
  return {begin + kernels::first_from(numbers + begin, own - begin, numbers[own]),
          after + kernels::first_from(numbers + after, all.end - after, std::int64_t{numbers[own]} + 1)};
}

/// A query's visible keys. 32 bits suffice for any sequence and save registers.
struct KeysOfQuery {
  THIMBLE_DEVICE static int begin(const Problem& p, std::int64_t t) {
    const int first = static_cast<int>(p.first_key);
    const int begin = static_cast<int>(t + 1) + static_cast<int>(p.keys - p.queries - p.window);
    return p.window > 0 && begin > first ? begin : first;
  }
  THIMBLE_DEVICE static int end(const Problem& p, std::int64_t t) {
    const int keys = static_cast<int>(p.keys);
    const int end = static_cast<int>(t) + static_cast<int>(p.keys - p.queries + (p.is_causal ? 1 : p.window));
    return (p.is_causal || p.window > 0) && end < keys ? end : keys;
  }
  /// With documents; a t beyond the last query counts as the last one.
  THIMBLE_DEVICE static KeyRange range(const Problem& p, std::int64_t b, std::int64_t t) {
    if (t >= p.queries) t = p.queries - 1;
    const KeyRange all{begin(p, t), end(p, t)};
    return p.documents ? of_document(p.documents + b * p.documents_batch, t + p.keys - p.queries, all) : all;
  }
};

/// The queries that see a key.
struct QueriesOfKey {
  THIMBLE_DEVICE static int begin(const Problem& p, std::int64_t s) {
    const int t = static_cast<int>(s) - static_cast<int>(p.keys - p.queries + (p.is_causal ? 0 : p.window - 1));
    return (p.is_causal || p.window > 0) && t > 0 ? t : 0;
  }
  THIMBLE_DEVICE static int end(const Problem& p, std::int64_t s) {
    const int t = static_cast<int>(s) + static_cast<int>(p.window - (p.keys - p.queries));
    return p.window > 0 && t < static_cast<int>(p.queries) ? t : static_cast<int>(p.queries);
  }
  /// With documents; an s beyond the last key counts as the last one.
  THIMBLE_DEVICE static KeyRange range(const Problem& p, std::int64_t b, std::int64_t s) {
    if (s >= p.keys) s = p.keys - 1;
    const KeyRange all{begin(p, s), end(p, s)};
    if (!p.documents) return all;
    const std::int64_t more = p.keys - p.queries;  // query t is at the position of key t + more
    const KeyRange own = of_document(p.documents + b * p.documents_batch, s, {all.begin + more, all.end + more});
    return {own.begin - more, own.end - more};
  }
};

/// The ranges [begin, end) on the other side of a team's rows; Of is KeysOfQuery or QueriesOfKey.
template <class Sight, class Of, class T, int W>
struct Ranges {
  SharedTile<T, W> rows;

  /// Computes the ranges of the first `count` rows, from position `first` on. All threads call it before use.
  template <class Team>
  THIMBLE_DEVICE void search(Team& team, const Problem& p, std::int64_t b, std::int64_t first, int count) const {
    if constexpr (Sight::keeps_ranges) {
      if (team.rank() < count) {
        const KeyRange range = Of::range(p, b, first + team.rank());
        const std::uint32_t words[4] = {0, static_cast<std::uint32_t>(range.begin),
                                        static_cast<std::uint32_t>(range.end), 0};
        store_shared(rows.at(team.rank(), W), words);
      }
      team.sync();  // any thread may read a range
    }
  }

  /// Start of the range of row `row`, which is at position `place` of its side.
  THIMBLE_DEVICE int begin(const Problem& p, std::int64_t place, int row) const {
    if constexpr (Sight::keeps_ranges) {
      return kept(row, 1);
    } else {
      return Of::begin(p, place);
    }
  }
  THIMBLE_DEVICE int end(const Problem& p, std::int64_t place, int row) const {
    if constexpr (Sight::keeps_ranges) {
      return kept(row, 2);
    } else {
      return Of::end(p, place);
    }
  }

  /// Number of the `most` positions from `other` on that are before the row's range; and before its end.
  THIMBLE_DEVICE int before(const Problem& p, std::int64_t place, int row, std::int64_t other, int most) const {
    return up_to(most, begin(p, place, row) - static_cast<int>(other));
  }
  THIMBLE_DEVICE int before_end(const Problem& p, std::int64_t place, int row, std::int64_t other, int most) const {
    return up_to(most, end(p, place, row) - static_cast<int>(other));
  }

 private:
  THIMBLE_DEVICE static int up_to(int most, int n) { return n < 0 ? 0 : n < most ? n : most; }
  THIMBLE_DEVICE int kept(int row, int word) const {
    return bit_cast<int>(load_shared(rows.at(row, W) + static_cast<SharedAddress>(4 * word)));
  }
};

/// Factors of scores: `early` before the mask is added, `late` in the exponents of the powers of two. The scale is late
/// if possible, as without a mask. A scale that reverses the scores' order, or is so small that a mask in its units
/// might be infinite, is early.
struct MaskScale {
  static constexpr float least_late = 1e-6f;
  float early, late, of_mask;  ///< of_mask multiplies a mask that includes log2(e)
  explicit MaskScale(float scale)
      : early(scale > least_late ? 1.0f : scale),
        late(scale > least_late ? scale : 1.0f),
        of_mask(scale > least_late ? 1.0f / scale : 1.0f) {}
};

/// Backward's exponent of a probability, base 2, from its score.
template <class Sight>
THIMBLE_DEVICE inline float exponent_of(float score, float scale, const MaskScale& mask_scale, float log_sum) {
  if constexpr (Sight::has_mask) {
    // Below 1 up to rounding errors, which are arbitrary for a huge mask.
    const float exponent = std::fma(score, mask_scale.late, -log_sum);
    return exponent > 1 ? 1.0f : exponent;
  } else {
    return std::fma(score, scale, -log_sum);
  }
}

/// The sum of a score and a mask's element. With M = std::uint8_t the element tells whether the key is visible. Finite
/// elements are limited to 1e30, including log2(e), so that sums are finite.
template <class M>
THIMBLE_DEVICE inline float masked(float score, M element, float of_mask) {
  if constexpr (sizeof(M) == 1) {
    return element != 0 ? score : -INFINITY;
  } else {
    const float value = static_cast<float>(element);
    float scaled = value * 1.4426950408889634f;
    if constexpr (!std::is_same_v<M, f16>) {
      const float bounded = std::fmin(std::fmax(scaled, -1e30f), 1e30f);
      scaled = std::fabs(value) < INFINITY ? bounded : value;
    }
    return std::fma(scaled, of_mask, score);
  }
}

/// f.template operator()<M>(): the type of a mask's elements.
template <class F>
THIMBLE_DEVICE inline void with_mask_type(DType dtype, F&& f) {
  if (dtype == DType::boolean) return f.template operator()<std::uint8_t>();
  if (dtype == DType::bf16) return f.template operator()<bf16>();
  if (dtype == DType::f16) return f.template operator()<f16>();
  if (dtype == DType::f32) return f.template operator()<float>();
  f.template operator()<double>();
}

/// Multiplies scores of 16 queries from t0 on and 8 N keys from s0 on by the early scale and adds the mask; with
/// `is_turned` scores of 16 keys and 8 N queries.
template <bool is_turned, int N>
THIMBLE_DEVICE inline void add_mask(const Warp& warp, const Problem& p, const MaskScale& scale, Sums (&scores)[N],
                                    std::int64_t b, std::int64_t h, std::int64_t t0, std::int64_t s0) {
  const kernels::AttentionMask& mask = p.mask;
  const std::int64_t first = b * mask.batch + h * mask.head + t0 * mask.query + s0 * mask.key;
  const std::int64_t of_row = is_turned ? mask.key : mask.query, of_column = is_turned ? mask.query : mask.key;
  // Reads nothing beyond the last query and key, where scores are hidden or discarded.
  const int queries = static_cast<int>(p.queries - t0), keys = static_cast<int>(p.keys - s0);
  const int rows = is_turned ? keys : queries, columns = is_turned ? queries : keys;
  if (scale.early != 1) {
    THIMBLE_UNROLL
    for (Sums& sums : scores) {
      for (float& score : sums.value) score *= scale.early;
    }
  }
  with_mask_type(mask.dtype, [&]<class M>() {
    const Place at = lane_map::sums(warp.lane, 0);
    const int upper = at.row < rows ? at.row : rows - 1, lower = at.row + 8 < rows ? at.row + 8 : rows - 1;
    const M* from = static_cast<const M*>(mask.data) + first + upper * of_row + at.column * of_column;
    const std::int64_t to_lower = (lower - upper) * of_row;
    THIMBLE_UNROLL
    for (int n = 0; n < N; ++n) {
      THIMBLE_UNROLL
      for (int e = 0; e < 4; ++e) {
        float& score = scores[n].value[e];
        const bool is_there = 8 * n + at.column + e % 2 < columns;
        const M element = is_there ? from[e % 2 * of_column + e / 2 * to_lower] : M{};
        score = masked(score, element, scale.of_mask);
      }
      from += 8 * of_column;
    }
  });
}

}  // namespace thimble::cuda_kernels::attention_mma_detail

namespace thimble::cuda_kernels {

/// For arguments where is_tensor_core_attention (core/kernels/cuda_workspace.h) is true.
void attention_mma_forward(const kernels::AttentionArgs& args);
void attention_mma_backward(const kernels::AttentionGradArgs& args, void* workspace);

namespace attention_mma_detail {

/// Arguments of all parts of backward. delta (B, H, T) = sum_d out dout.
struct GradCall {
  kernels::AttentionGradArgs args;
  Problem problem;
  float* delta;
};

/// The kernels, in separate files, compiled for each Sight: `query` writes dq, `key` writes dk and dv.
template <class Sight>
void launch_forward(const kernels::AttentionArgs& args);
template <class Sight>
void launch_query_gradient(const GradCall& call);
template <class Sight>
void launch_key_gradients(const GradCall& call);

using kernels::AttentionOperand;
using kernels::AttentionResult;
/// The bits of an f16 or bf16, or of an f32.
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

/// f.template operator()<T, W>(): the type of the elements, and the tiles' width to which rows are padded.
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

/// The chunks that a thread of a team of `size` loads: chunk `chunk` of rows first_row, first_row + rows_at_once, ...;
/// an idle thread loads none.
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

/// A warp's 16 of a team's 64 rows of two operands in backward: in registers, or in shared memory if they do not fit.
template <class T, int W, bool in_registers>
struct OwnRows {
  using Tile = SharedTile<T, W>;
  static constexpr int count = 64;
  Tile tiles[2];  // of all warps
  int row;
  Left<T> held[2][in_registers ? W / 16 : 1];

  /// Two stages. Data for registers passes through the second stage, before its first use, and the rows behind it.
  static constexpr std::size_t shared_bytes(int stage_rows) {
    const int behind = in_registers ? std::max(stage_rows, 2 * count) : stage_rows + 2 * count;
    return static_cast<std::size_t>(stage_rows + behind) * Tile::row_bytes;
  }
  THIMBLE_DEVICE void begin(const Warp& warp, const Stages<T, W>& stages) {
    tiles[0] = Tile{stages.first.at(in_registers ? stages.rows : 2 * stages.rows, 0)};
    tiles[1] = Tile{tiles[0].at(count, 0)};
    row = 16 * warp.rank;
  }
  THIMBLE_DEVICE void hold(const Warp& warp) {
    THIMBLE_UNROLL
    for (int c = 0; c < W / 16; ++c) {
      held[0][c] = load_left(warp, tiles[0], row, 16 * c);
      held[1][c] = load_left(warp, tiles[1], row, 16 * c);
    }
  }
  /// Adds the first operand's rows times a stage's rows from j on to `scores`, and the second operand's rows times the
  /// stage's rows from j + apart on to `gradient`.
  template <int N>
  THIMBLE_DEVICE void multiply_both(const Warp& warp, const Tile& stage, int j, int apart, Sums (&scores)[N],
                                    Sums (&gradient)[N]) const {
    THIMBLE_UNROLL
    for (int c = 0; c < W / 16; ++c) {
      Left<T> first, second;
      if constexpr (in_registers) {
        first = held[0][c], second = held[1][c];
      } else {
        first = load_left(warp, tiles[0], row, 16 * c);
        second = load_left(warp, tiles[1], row, 16 * c);
      }
      THIMBLE_UNROLL
      for (int n = 0; n < N; n += 2) {
        multiply<T>(scores[n], scores[n + 1], first, load_right(warp, stage, j + 8 * n, 16 * c));
        multiply<T>(gradient[n], gradient[n + 1], second, load_right(warp, stage, apart + j + 8 * n, 16 * c));
      }
    }
  }
};

/// Draws the random words of a block of 16 queries from t0 and 8 keys from s0 on, in the layout of D; with `is_turned`
/// D has 16 keys as rows and 8 queries as columns. s0 is divisible by 4.
template <bool is_turned>
THIMBLE_DEVICE inline void draw_words(const Warp& warp, const Problem& p, const RandomSite& site, std::int64_t b,
                                      std::int64_t h, std::int64_t t0, std::int64_t s0, std::uint32_t (&words)[4]) {
  const int lane = warp.lane;
  const std::int64_t base = (h * p.queries + t0) * p.keys + s0;
  const auto sample = static_cast<std::uint32_t>(site.first_sample + b);
  // If the number of keys is divisible by 4, a block's four words are four neighbouring keys of a query: each lane
  // draws one block, and lanes exchange words. Otherwise each lane draws for its elements one after the other.
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
  bool has_pairs;  ///< neighbours can be written in pairs
  explicit ResultRows(const AttentionResult& x)
      : to(x),
        has_pairs(reinterpret_cast<std::uintptr_t>(x.data) % (2 * sizeof(T)) == 0 &&
                  (x.batch | x.row | x.head) % 2 == 0) {}

  /// Stores factor[half] sums to one head's rows from `first` and columns from `column` on, up to `end` and `width`.
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
