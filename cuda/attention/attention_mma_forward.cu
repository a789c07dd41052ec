// Attention on tensor cores, forward, in f16, bf16 and TF32 (Dao 2023, arXiv:2307.08691, algorithm 1). A team takes 128
// queries of one head, 64 if rows are wide, and walks over the keys in tiles, loading the next tile while it computes.
//
// Policy
// - Scores, their largest and sum so far, and the result are in f32. For the product with v, probabilities are rounded
//   to the operands' type, or TF32, as numbers <= 1; the division by their sum comes last.
// - Exponentials are powers of two: the scale includes log2(e).

#include <algorithm>
#include <cmath>

#include <thimble/cuda/attention/attention.h>

namespace thimble::cuda_kernels::attention_mma_detail {

template <class T, int W, class Sight>
struct Forward {
  static constexpr int threads = team_threads;
  static constexpr int blocks = W <= 64 && !Sight::has_mask ? 2 : 1;  ///< blocks of 16 queries per warp
  static constexpr int tile_queries = 64 * blocks;
  static constexpr int tile_keys = W <= 128 && sizeof(T) == 2 ? 64 : 32;
  static constexpr bool holds_queries = W <= 128;  ///< in registers; else in shared memory
  using Tile = SharedTile<T, W>;
  using Seen = Ranges<Sight, KeysOfQuery, T, W>;
  static constexpr int stage_rows = 2 * tile_keys;  ///< keys, then values

  Problem p;
  Rows<T> q, k, v;
  ResultRows<T> out;
  float* lse;
  float scale;  ///< includes log2(e)
  std::int64_t query_tiles;
  MaskScale mask_scale;

  /// Two stages. Queries for registers pass through the second stage, before its first use, and the rows behind it.
  static constexpr std::size_t shared_bytes() {
    constexpr int rows = stage_rows + (holds_queries ? std::max(stage_rows, tile_queries) : stage_rows + tile_queries);
    return static_cast<std::size_t>(rows) * Tile::row_bytes;
  }

  /// A warp's state for 16 queries.
  struct Block {
    Left<T> q[holds_queries ? W / 16 : 1];
    Sums out[W / 8];
    float largest[2], total[2];  ///< of two rows; `total` covers only the lane's columns
  };

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    const Warp warp(team);
    const std::int64_t t0 =
        (query_tiles - 1 - job % query_tiles) * tile_queries;  // rows with the most visible keys first
    const std::int64_t h = job / query_tiles % p.heads, b = job / query_tiles / p.heads;
    const SharedAddress memory = shared_address(team.template shared<float>());
    const Stages<T, W> stages{{memory}, stage_rows};
    const Tile queries{Tile{memory}.at(holds_queries ? stage_rows : 2 * stage_rows, 0)};
    const int own_row = 16 * blocks * warp.rank;
    const Seen seen{queries};
    seen.search(team, p, b, t0, tile_queries);
    const std::int64_t begin = seen.begin(p, t0, 0) / tile_keys * tile_keys;
    const std::int64_t end = seen.end(p, t0 + tile_queries - 1, tile_queries - 1);
    AsyncLoads loads;
    load_rows<tile_queries>(team, loads, q, q.at(b, h), t0, p.queries, p.width, queries);
    load_keys(team, loads, b, h, begin, stages.get(0));
    loads.wait();
    team.sync();
    Block own[blocks];
    THIMBLE_UNROLL
    for (int r = 0; r < blocks; ++r) {
      if constexpr (holds_queries) {
        THIMBLE_UNROLL
        for (int c = 0; c < W / 16; ++c) own[r].q[c] = load_left(warp, queries, own_row + 16 * r, 16 * c);
      }
      clear(own[r].out);
      for (int half = 0; half < 2; ++half) own[r].largest[half] = -INFINITY, own[r].total[half] = 0;
    }
    const bool has_queries = t0 + own_row < p.queries;
    int stage = 0;
    for (std::int64_t s0 = begin; s0 < end; s0 += tile_keys, stage ^= 1) {
      loads.wait();
      team.sync();  // the tile has arrived, the other stage is free
      if (s0 + tile_keys < end) load_keys(team, loads, b, h, s0 + tile_keys, stages.get(stage ^ 1));
      const int last_row = own_row + 16 * blocks - 1;
      const bool sees_some = s0 < seen.end(p, t0 + own_row + 16 * blocks - 1, last_row) &&
                             s0 + tile_keys > seen.begin(p, t0 + own_row, own_row);
      if (has_queries && sees_some) {
        take_tile(warp, own, queries, own_row, stages.get(stage), b, h, t0 + own_row, s0);
      }
    }
    if (!has_queries) return;
    THIMBLE_UNROLL
    for (int r = 0; r < blocks; ++r) finish(warp, own[r], b, h, t0 + own_row + 16 * r);
  }

  template <class Team>
  THIMBLE_DEVICE void load_keys(const Team& team, AsyncLoads& loads, std::int64_t b, std::int64_t h, std::int64_t s0,
                                const Tile& stage) const {
    load_rows<tile_keys>(team, loads, k, k.at(b, h / p.group), s0, p.keys, p.width, stage);
    load_rows<tile_keys>(team, loads, v, v.at(b, h / p.group), s0, p.keys, p.width, Tile{stage.at(tile_keys, 0)});
  }

  THIMBLE_DEVICE void take_tile(const Warp& warp, Block (&own)[blocks], const Tile& queries, int own_row,
                                const Tile& stage, std::int64_t b, std::int64_t h, std::int64_t t0,
                                std::int64_t s0) const {
    Sums scores[blocks][tile_keys / 8];
    THIMBLE_UNROLL
    for (int r = 0; r < blocks; ++r) clear(scores[r]);
    THIMBLE_UNROLL
    for (int c = 0; c < W / 16; ++c) {
      Left<T> left[blocks];
      THIMBLE_UNROLL
      for (int r = 0; r < blocks; ++r) {
        if constexpr (holds_queries) {
          left[r] = own[r].q[c];
        } else {
          left[r] = load_left(warp, queries, own_row + 16 * r, 16 * c);
        }
      }
      THIMBLE_UNROLL
      for (int n = 0; n < tile_keys / 8; n += 2) {
        const auto right = load_right(warp, stage, 8 * n, 16 * c);
        THIMBLE_UNROLL
        for (int r = 0; r < blocks; ++r) multiply<T>(scores[r][n], scores[r][n + 1], left[r], right);
      }
    }
    THIMBLE_UNROLL
    for (int r = 0; r < blocks; ++r) {
      if constexpr (Sight::has_mask) add_mask<false>(warp, p, mask_scale, scores[r], b, h, t0 + 16 * r, s0);
      hide(warp, scores[r], {queries}, own_row + 16 * r, t0 + 16 * r, s0);
      soften(own[r], scores[r]);
      if (p.has_dropout) drop(warp, scores[r], b, h, t0 + 16 * r, s0);
    }
    THIMBLE_UNROLL
    for (int n = 0; n < tile_keys / 8; n += 2) {
      Left<T, Order::paired> left[blocks];
      THIMBLE_UNROLL
      for (int r = 0; r < blocks; ++r) left[r] = rounded<T>(scores[r][n], scores[r][n + 1]);
      THIMBLE_UNROLL
      for (int d = 0; d < W / 8; d += 2) {
        const auto right = load_right_transposed(warp, stage, tile_keys + 8 * n, 8 * d);
        THIMBLE_UNROLL
        for (int r = 0; r < blocks; ++r) multiply<T>(own[r].out[d], own[r].out[d + 1], left[r], right);
      }
    }
  }

  // Factor of scores in the exponents; a scale that reverses their order is applied earlier.
  THIMBLE_DEVICE float late_scale() const {
    if constexpr (Sight::has_mask) return mask_scale.late;
    return scale > 0 ? scale : 1.0f;
  }

  // Sets scores of hidden keys to -infinity, for the queries from t0 on, the team's rows from `own_row` on.
  THIMBLE_DEVICE void hide(const Warp& warp, Sums (&scores)[tile_keys / 8], const Seen& seen, int own_row,
                           std::int64_t t0, std::int64_t s0) const {
    if (!Sight::has_mask && !(scale > 0)) {
      THIMBLE_UNROLL
      for (int n = 0; n < tile_keys / 8; ++n) {
        THIMBLE_UNROLL
        for (float& score : scores[n].value) score *= scale;
      }
    }
    // The first query's range ends first, the last query's begins last.
    if (seen.before_end(p, t0, own_row, s0, tile_keys) == tile_keys &&
        seen.before(p, t0 + 15, own_row + 15, s0, tile_keys) == 0) {
      return;
    }
    THIMBLE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Place at = lane_map::sums(warp.lane, 2 * half);
      const int last = seen.before_end(p, t0 + at.row, own_row + at.row, s0, tile_keys);
      const int first = seen.before(p, t0 + at.row, own_row + at.row, s0, tile_keys);
      THIMBLE_UNROLL
      for (int n = 0; n < tile_keys / 8; ++n) {
        float* const pair = scores[n].value + 2 * half;
        if (8 * n + at.column >= last || 8 * n + at.column < first) pair[0] = -INFINITY;
        if (8 * n + at.column + 1 >= last || 8 * n + at.column + 1 < first) pair[1] = -INFINITY;
      }
    }
  }

  // Turns scores into 2^(score scale - largest so far), and corrects earlier sums for a new largest score.
  THIMBLE_DEVICE void soften(Block& own, Sums (&scores)[tile_keys / 8]) const {
    THIMBLE_UNROLL
    for (int half = 0; half < 2; ++half) {
      float most = -INFINITY;
      THIMBLE_UNROLL
      for (int n = 0; n < tile_keys / 8; ++n) {
        most = std::fmax(most, std::fmax(scores[n].value[2 * half], scores[n].value[2 * half + 1]));
      }
      float top = std::fmax(own.largest[half], most * late_scale());
      top = combine_rows(top, [](float a, float b) { return std::fmax(a, b); });
      const float base = top == -INFINITY ? 0.0f : top;
      const float correction = power_of_two(own.largest[half] - base);
      float sum = own.total[half] * correction;
      // For a huge mask the rounding error of the largest sum exceeds the exponent's range: round all sums alike.
      const bool is_huge = Sight::has_mask && std::fabs(base) > 0x1p24f;
      THIMBLE_UNROLL
      for (int n = 0; n < tile_keys / 8; ++n) {
        THIMBLE_UNROLL
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          if (is_huge) scores[n].value[e] *= late_scale();
          const float power = power_of_two(std::fma(scores[n].value[e], is_huge ? 1.0f : late_scale(), -base));
          scores[n].value[e] = power;
          sum += power;
        }
      }
      own.largest[half] = top;
      own.total[half] = sum;
      THIMBLE_UNROLL
      for (int d = 0; d < W / 8; ++d) {
        own.out[d].value[2 * half] *= correction;
        own.out[d].value[2 * half + 1] *= correction;
      }
    }
  }

  THIMBLE_DEVICE void drop(const Warp& warp, Sums (&scores)[tile_keys / 8], std::int64_t b, std::int64_t h,
                           std::int64_t t0, std::int64_t s0) const {
    const RandomSite site = site_of(p);
    THIMBLE_UNROLL
    for (int n = 0; n < tile_keys / 8; ++n) {
      std::uint32_t words[4] = {};
      draw_words<false>(warp, p, site, b, h, t0, s0 + 8 * n, words);
      for (int e = 0; e < 4; ++e) {
        if (words[e] < p.threshold) scores[n].value[e] = 0;
      }
    }
  }

  THIMBLE_DEVICE void finish(const Warp& warp, const Block& own, std::int64_t b, std::int64_t h,
                             std::int64_t t0) const {
    float factor[2];
    for (int half = 0; half < 2; ++half) {
      const float total = combine_rows(own.total[half], [](float x, float y) { return x + y; });
      const bool hides_all = Sight::has_mask && total == 0;  // without a mask, scores of -infinity give NaN
      factor[half] = hides_all ? 0.0f : (p.has_dropout ? static_cast<float>(p.keep_scale) : 1.0f) / total;
      const Place at = lane_map::sums(warp.lane, 2 * half);
      if (lse && at.column == 0 && t0 + at.row < p.queries) {
        const float sum = own.largest[half] * ln_2 + std::log(total);
        lse[(b * p.heads + h) * p.queries + t0 + at.row] = hides_all ? 0.0f : sum;
      }
    }
    if (out.to.data) out.store(warp, b, h, t0, p.queries, 0, p.width, factor, own.out);
  }
};

template <class Sight>
void launch_forward(const kernels::AttentionArgs& args) {
  with_tile(args.dtype, args.width, [&]<class T, int W>() {
    using Body = Forward<T, W, Sight>;
    const std::int64_t tiles = (args.queries + Body::tile_queries - 1) / Body::tile_queries;
    const auto scale = static_cast<float>(args.scale * 1.4426950408889634);
    const Body body{Problem(args),
                    Rows<T>(args.q),
                    Rows<T>(args.k),
                    Rows<T>(args.v),
                    ResultRows<T>(args.out),
                    static_cast<float*>(args.lse),
                    scale,
                    tiles,
                    MaskScale(scale)};
    for_each_team(args.batch * args.heads * tiles, body, Body::shared_bytes());
  });
}

template void launch_forward<BySizes>(const kernels::AttentionArgs&);
template void launch_forward<ByDocuments>(const kernels::AttentionArgs&);
template void launch_forward<ByMask>(const kernels::AttentionArgs&);

}  // namespace thimble::cuda_kernels::attention_mma_detail
