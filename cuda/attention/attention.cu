// Attention on CUDA devices, forward, and the table of the family. A team takes a tile of queries of one head and walks
// over the keys in tiles, with a running largest score and sum of each query (Dao et al. 2022): the matrix of
// probabilities is never in memory. The order of every sum depends only on the number of keys and the width.

#include <cmath>

#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/cuda/attention/attention.h>
#include <thimble/cuda/attention/attention_mma.h>

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

  /// q, k, v and out (tile, width); scores (tile, tile), whose rows lie one more apart; largest, sum and correction
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

  // Only a mask may: scores that are themselves -infinity give NaN.
  THIMBLE_DEVICE bool hides_all(T sum) const { return p.has_mask && sum == T(0); }

  // A row of scores becomes e^(score - largest so far); earlier sums are corrected for a new largest.
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
