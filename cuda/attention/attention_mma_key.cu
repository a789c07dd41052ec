// Attention on tensor cores, backward, the keys' side: the gradients of k and v. A team takes 64 keys of one head and
// walks over the queries that see them, head by head if heads share keys. Scores are computed transposed, keys by
// queries, so that probabilities are in the fragments of the left operand of both products: dv = (P M)^T dout, dk =
// scale dS^T q.
//
// Policy
// - The walk begins at the first tile that sees a key, so the order of a sum depends only on sizes.
// - The chunk behind a query's row of a tile holds its logarithm and its delta.
// - If rows are wider than 128, a team walks twice, each time for half of the columns, because all sums would not fit
//   into registers. Its keys and values stay in shared memory, because their gradients may alias them.

#include <algorithm>
#include <cmath>

#include <thimble/cuda/attention/attention.h>

namespace thimble::cuda_kernels::attention_mma_detail {

template <class T, int W, class Sight>
struct KeyGradients {
  static constexpr int threads = team_threads;
  static constexpr int tile_keys = 64;
  static constexpr int tile_queries = row_bytes<T, W> <= 128 ? 64 : row_bytes<T, W> <= 256 ? 32 : 16;
  static constexpr int queries_at_once =
      W <= 128 && sizeof(T) == 2 && !Sight::has_mask ? 32 : 16;  ///< no order depends on it
  static constexpr int columns = W <= 128 ? W : W / 2;           ///< of a walk
  static constexpr bool holds_keys = W <= 64;                    ///< k and v in registers; else in shared memory
  using Tile = SharedTile<T, W>;
  using Seeing = Ranges<Sight, QueriesOfKey, T, W>;
  static constexpr int stage_rows = 2 * tile_queries;  ///< q, then dout

  Problem p;
  Rows<T> q, k, v, dout;
  ResultRows<T> dk, dv;
  const float *lse, *delta;
  float exponent_scale;  ///< includes log2(e)
  std::int64_t key_tiles;
  MaskScale mask_scale;

  static constexpr std::size_t shared_bytes() { return OwnRows<T, W, holds_keys>::shared_bytes(stage_rows); }

  /// A warp's state for its 16 keys: rows of k and v.
  struct Own : OwnRows<T, W, holds_keys> {
    Sums dk[columns / 8], dv[columns / 8];
  };

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    const Warp warp(team);
    const std::int64_t s0 = job % key_tiles * tile_keys;  // keys seen by the most queries first
    const std::int64_t key_heads = p.heads / p.group;
    const std::int64_t key_head = job / key_tiles % key_heads, b = job / key_tiles / key_heads;
    const Stages<T, W> stages{{shared_address(team.template shared<float>())}, stage_rows};
    Own own;
    own.begin(warp, stages);
    AsyncLoads loads;
    load_rows<tile_keys>(team, loads, k, k.at(b, key_head), s0, p.keys, p.width, own.tiles[0]);
    load_rows<tile_keys>(team, loads, v, v.at(b, key_head), s0, p.keys, p.width, own.tiles[1]);
    const Seeing seeing{own.tiles[0]};
    seeing.search(team, p, b, s0, tile_keys);
    if constexpr (holds_keys) {
      loads.wait();
      team.sync();
      own.hold(warp);
    }
    const std::int64_t first = seeing.begin(p, s0, 0) / tile_queries * tile_queries;
    const std::int64_t end = seeing.end(p, s0 + tile_keys - 1, tile_keys - 1);
    const bool has_keys = s0 + own.row < p.keys;
    for (int column = 0; column < W; column += columns) {
      if (column >= p.width) break;
      clear(own.dk);
      clear(own.dv);
      for (std::int64_t h = key_head * p.group; first < end && h < (key_head + 1) * p.group; ++h) {
        if (column > 0 || h > key_head * p.group) team.sync();  // the previous walk may still read its last stages
        walk(team, loads, warp, own, stages, column, b, h, first, end, s0, has_keys);
      }
      if (has_keys) finish(warp, own, column, b, key_head, s0 + own.row);
    }
  }

  // Walks over the queries of one head from `first` to `end`.
  template <class Team>
  THIMBLE_DEVICE void walk(Team& team, AsyncLoads& loads, const Warp& warp, Own& own, const Stages<T, W>& stages,
                           int column, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t end,
                           std::int64_t s0, bool has_keys) const {
    const Seeing seeing{own.tiles[0]};
    load_queries(team, loads, b, h, first, stages.get(0));
    int stage = 0;
    for (std::int64_t t0 = first; t0 < end; t0 += tile_queries, stage ^= 1) {
      loads.wait();
      team.sync();  // the tile has arrived, the other stage is free
      if (t0 + tile_queries < end) load_queries(team, loads, b, h, t0 + tile_queries, stages.get(stage ^ 1));
      if (!has_keys) continue;
      THIMBLE_ROLLED
      for (int j = 0; j < tile_queries; j += queries_at_once) {
        if (t0 + j + queries_at_once > seeing.begin(p, s0 + own.row, own.row) &&
            t0 + j < seeing.end(p, s0 + own.row + 15, own.row + 15)) {
          take_queries(warp, own, stages.get(stage), j, column, b, h, t0 + j, s0 + own.row);
        }
      }
    }
  }

  template <class Team>
  THIMBLE_DEVICE void load_queries(const Team& team, AsyncLoads& loads, std::int64_t b, std::int64_t h, std::int64_t t0,
                                   const Tile& stage) const {
    load_rows<tile_queries>(team, loads, q, q.at(b, h), t0, p.queries, p.width, stage);
    load_rows<tile_queries>(team, loads, dout, dout.at(b, h), t0, p.queries, p.width, Tile{stage.at(tile_queries, 0)});
    const std::int64_t row = (b * p.heads + h) * p.queries;
    for (int j = team.rank(); j < 2 * tile_queries; j += Team::size) {
      const std::int64_t t = t0 + j % tile_queries;
      const float* const from = j < tile_queries ? lse : delta;
      loads.template load<4>(stage.at(j, W), from + (t < p.queries ? row + t : 0), t < p.queries);
    }
  }

  // Adds to dk and dv, columns from `column` on, the terms of queries from t0 on, in the stage's rows from j on.
  THIMBLE_DEVICE void take_queries(const Warp& warp, Own& own, const Tile& stage, int j, int column, std::int64_t b,
                                   std::int64_t h, std::int64_t t0, std::int64_t s0) const {
    constexpr int n_end = queries_at_once / 8;
    Sums scores[n_end], gradient[n_end];  // (keys, queries)
    clear(scores);
    clear(gradient);
    own.multiply_both(warp, stage, j, tile_queries, scores, gradient);
    if constexpr (Sight::has_mask) add_mask<true>(warp, p, mask_scale, scores, b, h, t0, s0);
    THIMBLE_UNROLL
    for (int n = 0; n < n_end; ++n) {
      std::uint32_t words[4] = {};
      if (p.has_dropout) draw_words<true>(warp, p, site_of(p), b, h, t0 + 8 * n, s0, words);
      THIMBLE_UNROLL
      for (int side = 0; side < 2; ++side) {
        const int query = j + 8 * n + lane_map::sums(warp.lane, side).column;
        const float log_sum = load_shared(stage.at(query, W)) * log2_e;
        const float row_delta = load_shared(stage.at(tile_queries + query, W));
        THIMBLE_UNROLL
        for (int e = side; e < 4; e += 2) {
          const float power = power_of_two(exponent_of<Sight>(scores[n].value[e], exponent_scale, mask_scale, log_sum));
          float kept_power = power, g = gradient[n].value[e];
          if (p.has_dropout) {
            const bool is_dropped = words[e] < p.threshold;
            kept_power = is_dropped ? 0.0f : power;
            g = is_dropped ? 0.0f : g * static_cast<float>(p.keep_scale);
          }
          scores[n].value[e] = kept_power;
          gradient[n].value[e] = power * (g - row_delta);
        }
      }
    }
    const Seeing seeing{own.tiles[0]};
    if (seeing.begin(p, s0 + 15, own.row + 15) > t0 || seeing.end(p, s0, own.row) < t0 + queries_at_once) {
      hide(warp, scores, gradient, seeing, own.row, t0, s0);
    }
    THIMBLE_UNROLL
    for (int n = 0; n < n_end; n += 2) {
      const auto probability = rounded<T>(scores[n], scores[n + 1]);
      const auto left = rounded<T>(gradient[n], gradient[n + 1]);
      THIMBLE_UNROLL
      for (int d = 0; d < columns / 8; d += 2) {
        multiply<T>(own.dv[d], own.dv[d + 1], probability,
                    load_right_transposed(warp, stage, tile_queries + j + 8 * n, column + 8 * d));
        multiply<T>(own.dk[d], own.dk[d + 1], left, load_right_transposed(warp, stage, j + 8 * n, column + 8 * d));
      }
    }
  }

  // Zeroes terms of queries that do not see a key, for the keys from s0 on, the team's rows from `own_row` on.
  template <int N>
  THIMBLE_DEVICE void hide(const Warp& warp, Sums (&scores)[N], Sums (&gradient)[N], const Seeing& seeing, int own_row,
                           std::int64_t t0, std::int64_t s0) const {
    THIMBLE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Place at = lane_map::sums(warp.lane, 2 * half);
      const int hidden = seeing.begin(p, s0 + at.row, own_row + at.row) - static_cast<int>(t0);
      const int last = seeing.end(p, s0 + at.row, own_row + at.row) - static_cast<int>(t0);
      THIMBLE_UNROLL
      for (int n = 0; n < N; ++n) {
        THIMBLE_UNROLL
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          const int query = 8 * n + at.column + e % 2;
          if (query < hidden || query >= last) scores[n].value[e] = gradient[n].value[e] = 0;
        }
      }
    }
  }

  THIMBLE_DEVICE void finish(const Warp& warp, const Own& own, int column, std::int64_t b, std::int64_t h,
                             std::int64_t s0) const {
    const float scale = static_cast<float>(p.scale), keep = p.has_dropout ? static_cast<float>(p.keep_scale) : 1.0f;
    const float of_keys[2] = {scale, scale}, of_values[2] = {keep, keep};
    if (dk.to.data) dk.store(warp, b, h, s0, p.keys, column, p.width, of_keys, own.dk);
    if (dv.to.data) dv.store(warp, b, h, s0, p.keys, column, p.width, of_values, own.dv);
  }
};

template <class Sight>
void launch_key_gradients(const GradCall& call) {
  const kernels::AttentionGradArgs& args = call.args;
  with_tile(args.dtype, args.width, [&]<class T, int W>() {
    using Body = KeyGradients<T, W, Sight>;
    const std::int64_t tiles = (args.keys + Body::tile_keys - 1) / Body::tile_keys;
    const auto scale = static_cast<float>(args.scale * 1.4426950408889634);
    const Body body{call.problem,
                    Rows<T>(args.q),
                    Rows<T>(args.k),
                    Rows<T>(args.v),
                    Rows<T>(args.dout),
                    ResultRows<T>(args.dk),
                    ResultRows<T>(args.dv),
                    static_cast<const float*>(args.lse),
                    call.delta,
                    scale,
                    tiles,
                    MaskScale(scale)};
    for_each_team(args.batch * (args.heads / args.group) * tiles, body, Body::shared_bytes());
  });
}

template void launch_key_gradients<BySizes>(const GradCall&);
template void launch_key_gradients<ByDocuments>(const GradCall&);
template void launch_key_gradients<ByMask>(const GradCall&);

}  // namespace thimble::cuda_kernels::attention_mma_detail
