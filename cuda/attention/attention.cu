// Attention on CUDA devices, forward, and the table of the family. A team takes a tile of queries of one head, walks
// over the keys in tiles, and keeps each query's largest score and sum so far (Dao et al. 2022): the matrix of
// probabilities is never in memory. The order of every sum depends only on the number of keys and the width.

#include <thimble/cuda/attention/attention.h>

#include <cmath>

#include <thimble/core/kernels/cuda_workspace.h>

namespace thimble::cuda_kernels {
namespace attention_cuda_detail {

template <class T>
struct Forward {
  static constexpr int threads = 128;
  Problem p;
  AttentionOperand q, k, v;
  AttentionResult out;
  T* lse;
  int tile;
  std::int64_t query_tiles;

  /// q, k, v and out (tile, width); scores (tile, tile), with rows padded by one element; largest, sum and correction
  /// (tile).
  std::size_t shared_bytes() const {
    const auto rows = static_cast<std::size_t>(tile);
    return (4 * rows * static_cast<std::size_t>(p.stride()) + rows * (rows + 1) + 3 * rows) * sizeof(T);
  }

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    const std::int64_t t0 = job % query_tiles * tile, h = job / query_tiles % p.heads, b = job / query_tiles / p.heads;
    const std::int64_t elements = tile * p.width, stride = p.stride(), area = tile * stride;
    const int score_stride = tile + 1;
    const Shared<T> qs = team.template shared<T>(), ks = qs + area, vs = ks + area, sums = vs + area;
    const Shared<T> scores = sums + area, largest = scores + tile * score_stride;
    const Shared<T> total = largest + tile, correction = total + tile;
    load_rows(team, p, q, b, h, t0, p.queries, tile, qs);
    for (std::int64_t e = team.rank(); e < elements; e += Team::size) sums[e / p.width * stride + e % p.width] = T(0);
    for (int i = team.rank(); i < tile; i += Team::size) {
      largest[i] = -static_cast<T>(INFINITY);
      total[i] = T(0);
    }
    const std::int64_t begin = p.seen(b, t0).begin / tile * tile, end = p.seen(b, t0 + tile - 1).end;
    for (std::int64_t s0 = begin; s0 < end; s0 += tile) {
      load_rows(team, p, k, b, h / p.group, s0, p.keys, tile, ks);
      load_rows(team, p, v, b, h / p.group, s0, p.keys, tile, vs);
      team.sync();
      for (int e = team.rank(); e < tile * tile; e += Team::size) {
        const int i = e / tile, j = e % tile;
        const KeyRange seen = p.seen(b, t0 + i);
        const bool is_seen = t0 + i < p.queries && s0 + j >= seen.begin && s0 + j < seen.end;
        scores[i * score_stride + j] =
            is_seen ? static_cast<T>(p.scale) * dot_rows<T>(qs + i * stride, ks + j * stride, p.width) +
                          p.masked<T>(b, h, t0 + i, s0 + j)
                    : -static_cast<T>(INFINITY);
      }
      team.sync();
      for (int i = team.rank(); i < tile; i += Team::size)
        update_row(scores + i * score_stride, largest + i, total + i, correction + i);
      team.sync();
      if (p.has_dropout) {
        for (int e = team.rank(); e < tile * tile; e += Team::size) {
          const int at = e / tile * score_stride + e % tile;
          if (scores[at] != T(0)) scores[at] *= p.kept<T>(b, h, t0 + e / tile, s0 + e % tile);
        }
        team.sync();
      }
      for (std::int64_t e = team.rank(); e < elements; e += Team::size) {
        const std::int64_t i = e / p.width, d = e % p.width;
        T sum = sums[i * stride + d] * correction[i];
        for (int j = 0; j < tile; ++j) sum += scores[i * score_stride + j] * vs[j * stride + d];
        sums[i * stride + d] = sum;
      }
      team.sync();
    }
    for (std::int64_t e = team.rank(); e < elements; e += Team::size) {
      const std::int64_t i = e / p.width, d = e % p.width, t = t0 + i;
      if (t >= p.queries || !out.data) continue;
      const T value = hides_all(total[i]) ? T(0) : sums[i * stride + d] / total[i];
      store<T>(out.data, p.dtype, b * out.batch + t * out.row + h * out.head + d, value);
    }
    for (int i = team.rank(); lse && i < tile && t0 + i < p.queries; i += Team::size) {
      lse[(b * p.heads + h) * p.queries + t0 + i] =
          hides_all(total[i]) ? T(0) : largest[i] + static_cast<T>(std::log(static_cast<double>(total[i])));
    }
  }

  // Only a mask hides all keys of a query; scores that are -infinity give NaN.
  THIMBLE_DEVICE bool hides_all(T sum) const { return p.has_mask && sum == T(0); }

  // Turns a row of scores into e^(score - largest so far), and corrects earlier sums for a new largest score.
  THIMBLE_DEVICE void update_row(Shared<T> row, Shared<T> largest, Shared<T> total, Shared<T> correction) const {
    const T before = *largest;
    T top = before;
    for (int j = 0; j < tile; ++j) top = larger_of<T>(top, row[j]);
    const bool sees_none = top == -static_cast<T>(INFINITY);
    const T factor = sees_none ? T(1) : math::exp(before - top);
    T sum = *total * factor;
    for (int j = 0; j < tile; ++j) {
      const T score = row[j], power = sees_none || score == -static_cast<T>(INFINITY) ? T(0) : math::exp(score - top);
      row[j] = power;
      sum += power;
    }
    *largest = top;
    *total = sum;
    *correction = factor;
  }
};

void forward(const kernels::AttentionArgs& args, void*, int) {
  if (kernels::is_tensor_core_attention(args)) return attention_mma_forward(args);
  with_compute_type(args.dtype, [&]<class T>() {
    Forward<T> body{Problem(args), args.q, args.k, args.v, args.out, static_cast<T*>(args.lse), 0, 0};
    body.tile = tile_rows(args.width, sizeof(T), 4);
    body.query_tiles = (args.queries + body.tile - 1) / body.tile;
    for_each_team(args.batch * args.heads * body.query_tiles, body, body.shared_bytes());
  });
}

constexpr kernels::AttentionKernels table{kernels::cuda_attention_forward_bytes, kernels::cuda_attention_backward_bytes,
                                          forward, attention_backward};

}  // namespace attention_cuda_detail
}  // namespace thimble::cuda_kernels

namespace thimble::kernels {

const AttentionKernels* const attention_cuda = &cuda_kernels::attention_cuda_detail::table;

}  // namespace thimble::kernels

namespace thimble::cuda_kernels {

// ---- Attention on CUDA devices, backward. Recomputes probabilities from the logarithms of forward's sums. The first
// kernel computes dq: a team takes a tile of queries and walks over the keys. dq goes to the workspace, because it may
// alias q, which the second kernel reads. That kernel computes dk and dv: a team takes a tile of keys and walks over
// the queries of all heads that share them, so every sum has one order. A third kernel copies dq to its place.

namespace attention_cuda_detail {

using kernels::AttentionGradArgs;

/// Shared by the two kernels.
template <class T>
struct Backward {
  Problem p;
  AttentionOperand q, k, v, out, dout;
  const T* lse;
  int tile;

  explicit Backward(const AttentionGradArgs& args)
      : p(args),
        q(args.q),
        k(args.k),
        v(args.v),
        out(args.out),
        dout(args.dout),
        lse(static_cast<const T*>(args.lse)),
        tile(tile_rows(args.width, sizeof(T), 6)) {}

  /// Six arrays of (tile, width), two of (tile, tile), one of (tile).
  std::size_t shared_bytes() const {
    const auto rows = static_cast<std::size_t>(tile);
    return (6 * rows * static_cast<std::size_t>(p.stride()) + 2 * rows * rows + rows) * sizeof(T);
  }
  THIMBLE_DEVICE std::int64_t row(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return (b * p.heads + h) * p.queries + t;
  }
  /// delta[i] = out . dout of query t0 + i.
  template <class Team>
  THIMBLE_DEVICE void load_delta(Team& team, std::int64_t b, std::int64_t h, std::int64_t t0, Shared<T> douts,
                                 Shared<T> delta) const {
    for (int i = team.rank(); i < tile; i += Team::size) {
      T sum = 0;
      const std::int64_t t = t0 + i, base = b * out.batch + t * out.row + h * out.head;
      for (std::int64_t d = 0; t < p.queries && d < p.width; ++d) {
        sum += load<T>(out.data, p.dtype, base + d) * douts[i * p.stride() + d];
      }
      delta[i] = sum;
    }
  }
  /// The probability (after dropout) and the score's gradient of each pair of a query and a key of two tiles.
  template <class Team>
  THIMBLE_DEVICE void score(Team& team, std::int64_t b, std::int64_t h, std::int64_t t0, std::int64_t s0, Shared<T> qs,
                            Shared<T> ks, Shared<T> vs, Shared<T> douts, Shared<T> delta, Shared<T> probability,
                            Shared<T> gradient) const {
    const std::int64_t stride = p.stride();
    for (int e = team.rank(); e < tile * tile; e += Team::size) {
      const int i = e / tile, j = e % tile;
      const std::int64_t t = t0 + i, s = s0 + j;
      probability[e] = gradient[e] = T(0);
      const KeyRange seen = p.seen(b, t);
      if (t >= p.queries || s < seen.begin || s >= seen.end) continue;
      const T scale = static_cast<T>(p.scale), kept = p.kept<T>(b, h, t, s);
      const T score = scale * dot_rows<T>(qs + i * stride, ks + j * stride, p.width) + p.masked<T>(b, h, t, s);
      const T chance = math::exp(score - lse[row(b, h, t)]);
      probability[e] = chance * kept;
      gradient[e] = scale * chance * (kept * dot_rows<T>(douts + i * stride, vs + j * stride, p.width) - delta[i]);
    }
  }
};

template <class T>
struct QueryGradient {
  static constexpr int threads = 128;
  Backward<T> all;
  std::int64_t tiles;
  T* dq;  ///< (B, H, T, D), dense
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    const Problem& p = all.p;
    const int tile = all.tile;
    const std::int64_t t0 = job % tiles * tile, h = job / tiles % p.heads, b = job / tiles / p.heads;
    const std::int64_t elements = tile * p.width, stride = p.stride(), area = tile * stride;
    const Shared<T> qs = team.template shared<T>(), ks = qs + area, vs = ks + area, douts = vs + area;
    const Shared<T> sums = douts + area, probability = sums + 2 * area, gradient = probability + tile * tile;
    const Shared<T> delta = gradient + tile * tile;
    load_rows(team, p, all.q, b, h, t0, p.queries, tile, qs);
    load_rows(team, p, all.dout, b, h, t0, p.queries, tile, douts);
    for (std::int64_t e = team.rank(); e < elements; e += Team::size) sums[e / p.width * stride + e % p.width] = T(0);
    team.sync();
    all.load_delta(team, b, h, t0, douts, delta);
    const std::int64_t begin = p.seen(b, t0).begin / tile * tile, end = p.seen(b, t0 + tile - 1).end;
    for (std::int64_t s0 = begin; s0 < end; s0 += tile) {
      load_rows(team, p, all.k, b, h / p.group, s0, p.keys, tile, ks);
      load_rows(team, p, all.v, b, h / p.group, s0, p.keys, tile, vs);
      team.sync();
      all.score(team, b, h, t0, s0, qs, ks, vs, douts, delta, probability, gradient);
      team.sync();
      for (std::int64_t e = team.rank(); e < elements; e += Team::size) {
        const std::int64_t i = e / p.width, d = e % p.width;
        T sum = sums[i * stride + d];
        for (int j = 0; j < tile; ++j) sum += gradient[i * tile + j] * ks[j * stride + d];
        sums[i * stride + d] = sum;
      }
      team.sync();
    }
    for (std::int64_t e = team.rank(); e < elements; e += Team::size) {
      const std::int64_t i = e / p.width, d = e % p.width;
      if (t0 + i < p.queries) dq[all.row(b, h, t0 + i) * p.width + d] = sums[i * stride + d];
    }
  }
};

template <class T>
struct KeyGradients {
  static constexpr int threads = 128;
  Backward<T> all;
  std::int64_t tiles;
  AttentionResult dk, dv;
  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    const Problem& p = all.p;
    const int tile = all.tile;
    const std::int64_t key_heads = p.heads / p.group;
    const std::int64_t s0 = job % tiles * tile, key_head = job / tiles % key_heads, b = job / tiles / key_heads;
    const std::int64_t elements = tile * p.width, stride = p.stride(), area = tile * stride;
    const Shared<T> qs = team.template shared<T>(), ks = qs + area, vs = ks + area, douts = vs + area;
    const Shared<T> dks = douts + area, dvs = dks + area, probability = dvs + area;
    const Shared<T> gradient = probability + tile * tile, delta = gradient + tile * tile;
    load_rows(team, p, all.k, b, key_head, s0, p.keys, tile, ks);
    load_rows(team, p, all.v, b, key_head, s0, p.keys, tile, vs);
    for (std::int64_t e = team.rank(); e < elements; e += Team::size) {
      const std::int64_t at = e / p.width * stride + e % p.width;  // every such loop gives it to this thread
      dks[at] = dvs[at] = T(0);
    }
    const KeyRange seeing = kernels::seeing_range(p, b, s0, s0 + tile < p.keys ? s0 + tile : p.keys);
    const std::int64_t first = seeing.begin / tile * tile;
    const std::int64_t tiles_of_head = (seeing.end - first + tile - 1) / tile;
    for (std::int64_t i = 0; seeing.begin < seeing.end && i < p.group * tiles_of_head; ++i) {
      const std::int64_t h = key_head * p.group + i / tiles_of_head, t0 = first + i % tiles_of_head * tile;
      load_rows(team, p, all.q, b, h, t0, p.queries, tile, qs);
      load_rows(team, p, all.dout, b, h, t0, p.queries, tile, douts);
      team.sync();
      all.load_delta(team, b, h, t0, douts, delta);
      team.sync();
      all.score(team, b, h, t0, s0, qs, ks, vs, douts, delta, probability, gradient);
      team.sync();
      for (std::int64_t e = team.rank(); e < elements; e += Team::size) {
        const std::int64_t j = e / p.width, d = e % p.width, at = j * stride + d;
        T k_sum = dks[at], v_sum = dvs[at];
        for (int r = 0; r < tile; ++r) {
          k_sum += gradient[r * tile + j] * qs[r * stride + d];
          v_sum += probability[r * tile + j] * douts[r * stride + d];
        }
        dks[at] = k_sum;
        dvs[at] = v_sum;
      }
      team.sync();
    }
    for (std::int64_t e = team.rank(); e < elements; e += Team::size) {
      const std::int64_t j = e / p.width, d = e % p.width, s = s0 + j, at = j * stride + d;
      if (s >= p.keys) continue;
      if (dk.data) store<T>(dk.data, p.dtype, b * dk.batch + s * dk.row + key_head * dk.head + d, dks[at]);
      if (dv.data) store<T>(dv.data, p.dtype, b * dv.batch + s * dv.row + key_head * dv.head + d, dvs[at]);
    }
  }
};

}  // namespace attention_cuda_detail

void attention_backward(const kernels::AttentionGradArgs& args, void* workspace, int) {
  using namespace attention_cuda_detail;
  if (kernels::is_tensor_core_attention(args)) return attention_mma_backward(args, workspace);
  with_compute_type(args.dtype, [&]<class T>() {
    const Backward<T> all(args);
    const std::int64_t heads = args.batch * args.heads;
    const std::int64_t query_tiles = (args.queries + all.tile - 1) / all.tile;
    const std::int64_t key_tiles = (args.keys + all.tile - 1) / all.tile;
    T* const dq = static_cast<T*>(workspace);
    if (args.dq.data) {
      for_each_team(heads * query_tiles, QueryGradient<T>{all, query_tiles, dq}, all.shared_bytes());
    }
    if (args.dk.data || args.dv.data) {
      for_each_team(heads / args.group * key_tiles, KeyGradients<T>{all, key_tiles, args.dk, args.dv},
                    all.shared_bytes());
    }
    if (args.dq.data) {
      for_each_item(heads * args.queries * args.width, PlaceQueryGradient<T>{all.p, dq, dtype_of<T>, args.dq});
    }
  });
}

}  // namespace thimble::cuda_kernels
