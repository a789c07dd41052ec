// Attention on tensor cores, backward, the queries' side: the gradient of q.
//
// Policy
// - Scores are computed twice: here by teams of 64 queries that walk over the keys, and in attention_mma_key.cu by
//   teams of 64 keys that walk over the queries. That takes seven products instead of five, but every sum has one
//   order, nothing is added atomically, and no gradient is stored in f32. (One walk over tiles of 64 keys would read
//   and write 4 D bytes of q's gradient for every 64 scores, in a sequential order.)
// - q's gradient is computed before k's and v's, which may alias k and v. If it may alias q, it goes to the workspace
//   in the operands' type, because the other kernel still reads q.

#include <algorithm>
#include <cmath>

#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/cuda/attention/attention.h>

namespace thimble::cuda_kernels::attention_mma_detail {

template <class T, int W, class Sight>
struct QueryGradient {
  static constexpr int threads = team_threads;
  static constexpr int tile_queries = 64;
  static constexpr int tile_keys = row_bytes<T, W> <= 256 ? 64 : row_bytes<T, W> <= 384 ? 32 : 16;
  static constexpr int keys_at_once =
      row_bytes<T, W> <= (sizeof(T) == 2 ? 256 : 128) && !Sight::has_mask ? 32 : 16;  ///< no order depends on it
  static constexpr bool holds_queries = row_bytes<T, W> <= 384;  ///< q and dout in registers; else in shared memory
  using Tile = SharedTile<T, W>;
  using Seen = Ranges<Sight, KeysOfQuery, T, W>;
  static constexpr int stage_rows = 2 * tile_keys;

  Problem p;
  Rows<T> q, k, v, dout;
  ResultRows<T> dq;
  const float *lse, *delta;
  float exponent_scale;  ///< includes log2(e)
  std::int64_t query_tiles;
  MaskScale mask_scale;

  static constexpr std::size_t shared_bytes() { return OwnRows<T, W, holds_queries>::shared_bytes(stage_rows); }

  /// A warp's state for its 16 queries: rows of q and dout.
  struct Own : OwnRows<T, W, holds_queries> {
    float log_sum[2], delta[2];  ///< of two rows; log_sum includes log2(e)
    Sums dq[W / 8];
  };

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    const Warp warp(team);
    // 32 bits suffice for any sequence and save registers.
    const int t0 = static_cast<int>(query_tiles - 1 - job % query_tiles) * tile_queries;
    const int h = static_cast<int>(job / query_tiles % p.heads), b = static_cast<int>(job / query_tiles / p.heads);
    const Stages<T, W> stages{{shared_address(team.template shared<float>())}, stage_rows};
    Own own;
    own.begin(warp, stages);
    AsyncLoads loads;
    load_rows<tile_queries>(team, loads, q, q.at(b, h), t0, p.queries, p.width, own.tiles[0]);
    load_rows<tile_queries>(team, loads, dout, dout.at(b, h), t0, p.queries, p.width, own.tiles[1]);
    const Seen seen{own.tiles[0]};
    seen.search(team, p, b, t0, tile_queries);
    const int begin = seen.begin(p, t0, 0) / tile_keys * tile_keys;
    const int end = seen.end(p, t0 + tile_queries - 1, tile_queries - 1);
    load_keys(team, loads, b, h, begin, stages.get(0));
    read_rows(warp, own, b, h, t0 + own.row);
    loads.wait();
    team.sync();
    if constexpr (holds_queries) own.hold(warp);
    clear(own.dq);
    const bool has_queries = t0 + own.row < p.queries;
    int stage = 0;
    for (int s0 = begin; s0 < end; s0 += tile_keys, stage ^= 1) {
      loads.wait();
      team.sync();  // the tile has arrived, the other stage is free
      if (s0 + tile_keys < end) load_keys(team, loads, b, h, s0 + tile_keys, stages.get(stage ^ 1));
      if (!has_queries) continue;
      THIMBLE_ROLLED
      for (int j = 0; j < tile_keys; j += keys_at_once) {
        if (s0 + j < seen.end(p, t0 + own.row + 15, own.row + 15) &&
            s0 + j + keys_at_once > seen.begin(p, t0 + own.row, own.row)) {
          take_keys(warp, own, stages.get(stage), j, b, h, t0 + own.row, s0 + j);
        }
      }
    }
    if (!has_queries) return;
    const float factor[2] = {static_cast<float>(p.scale), static_cast<float>(p.scale)};
    dq.store(warp, b, h, t0 + own.row, p.queries, 0, p.width, factor, own.dq);
  }

  THIMBLE_DEVICE void read_rows(const Warp& warp, Own& own, int b, int h, int t0) const {
    for (int half = 0; half < 2; ++half) {
      const std::int64_t t = t0 + lane_map::sums(warp.lane, 2 * half).row;
      const std::int64_t row = (b * p.heads + h) * p.queries + t;
      own.log_sum[half] = t < p.queries ? lse[row] * log2_e : 0.0f;
      own.delta[half] = t < p.queries ? delta[row] : 0.0f;
    }
  }

  template <class Team>
  THIMBLE_DEVICE void load_keys(const Team& team, AsyncLoads& loads, int b, int h, int s0, const Tile& stage) const {
    load_rows<tile_keys>(team, loads, k, k.at(b, h / p.group), s0, p.keys, p.width, stage);
    load_rows<tile_keys>(team, loads, v, v.at(b, h / p.group), s0, p.keys, p.width, Tile{stage.at(tile_keys, 0)});
  }

  // dq += dS k for the keys from s0 on, in the stage's rows from j on.
  THIMBLE_DEVICE void take_keys(const Warp& warp, Own& own, const Tile& stage, int j, int b, int h, int t0,
                                int s0) const {
    constexpr int n_end = keys_at_once / 8;
    Sums scores[n_end], gradient[n_end];
    clear(scores);
    clear(gradient);
    own.multiply_both(warp, stage, j, tile_keys, scores, gradient);
    if constexpr (Sight::has_mask) add_mask<false>(warp, p, mask_scale, scores, b, h, t0, s0);
    THIMBLE_UNROLL
    for (int n = 0; n < n_end; ++n) {
      std::uint32_t words[4] = {};
      if (p.has_dropout) draw_words<false>(warp, p, site_of(p), b, h, t0, s0 + 8 * n, words);
      THIMBLE_UNROLL
      for (int e = 0; e < 4; ++e) {
        const float exponent = exponent_of<Sight>(scores[n].value[e], exponent_scale, mask_scale, own.log_sum[e / 2]);
        float& g = gradient[n].value[e];
        if (p.has_dropout) g = words[e] < p.threshold ? 0.0f : g * static_cast<float>(p.keep_scale);
        g = power_of_two(exponent) * (g - own.delta[e / 2]);
      }
    }
    // The first query's range ends first, the last query's begins last.
    const Seen all{own.tiles[0]};
    if (all.before_end(p, t0, own.row, s0, keys_at_once) < keys_at_once ||
        all.before(p, t0 + 15, own.row + 15, s0, keys_at_once) > 0) {
      THIMBLE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const Place at = lane_map::sums(warp.lane, 2 * half);
        const int seen = all.before_end(p, t0 + at.row, own.row + at.row, s0, keys_at_once);
        const int unseen = all.before(p, t0 + at.row, own.row + at.row, s0, keys_at_once);
        THIMBLE_UNROLL
        for (int n = 0; n < n_end; ++n) {
          float* const pair = gradient[n].value + 2 * half;
          if (8 * n + at.column >= seen || 8 * n + at.column < unseen) pair[0] = 0;
          if (8 * n + at.column + 1 >= seen || 8 * n + at.column + 1 < unseen) pair[1] = 0;
        }
      }
    }
    THIMBLE_UNROLL
    for (int n = 0; n < n_end; n += 2) {
      const auto left = rounded<T>(gradient[n], gradient[n + 1]);
      THIMBLE_UNROLL
      for (int d = 0; d < W / 8; d += 2) {
        multiply<T>(own.dq[d], own.dq[d + 1], left, load_right_transposed(warp, stage, j + 8 * n, 8 * d));
      }
    }
  }
};

template <class Sight>
void launch_query_gradient(const GradCall& call) {
  const kernels::AttentionGradArgs& args = call.args;
  with_tile(args.dtype, args.width, [&]<class T, int W>() {
    using Body = QueryGradient<T, W, Sight>;
    const std::int64_t tiles = (args.queries + Body::tile_queries - 1) / Body::tile_queries;
    const auto scale = static_cast<float>(args.scale * 1.4426950408889634);
    const Body body{call.problem,
                    Rows<T>(args.q),
                    Rows<T>(args.k),
                    Rows<T>(args.v),
                    Rows<T>(args.dout),
                    ResultRows<T>(args.dq),
                    static_cast<const float*>(args.lse),
                    call.delta,
                    scale,
                    tiles,
                    MaskScale(scale)};
    for_each_team(args.batch * args.heads * tiles, body, Body::shared_bytes());
  });
}

template void launch_query_gradient<BySizes>(const GradCall&);
template void launch_query_gradient<ByDocuments>(const GradCall&);
template void launch_query_gradient<ByMask>(const GradCall&);

}  // namespace thimble::cuda_kernels::attention_mma_detail
