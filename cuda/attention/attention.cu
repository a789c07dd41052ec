// Attention on CUDA devices, forward, and the table of the family. A team takes a tile of queries of one head and walks
// over the keys in tiles, with a running largest score and sum of each query (Dao et al. 2022): the matrix of
// probabilities is never in memory. The order of every sum depends on the number of keys and the width alone.

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

  /// q, k, v and out (tile, width); scores (tile, tile); largest, sum and correction (tile).
  std::size_t shared_bytes() const {
    const auto rows = static_cast<std::size_t>(tile);
    return (4 * rows * static_cast<std::size_t>(p.width) + rows * rows + 3 * rows) * sizeof(T);
  }

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    const std::int64_t t0 = job % query_tiles * tile, h = job / query_tiles % p.heads, b = job / query_tiles / p.heads;
    const std::int64_t area = tile * p.width;
    T* const qs = team.template shared<T>();
    T *const ks = qs + area, *const vs = ks + area, *const sums = vs + area, *const scores = sums + area;
    T *const largest = scores + tile * tile, *const total = largest + tile, *const correction = total + tile;
    load_rows(team, p, q, b, h, t0, p.queries, tile, qs);
    for (std::int64_t e = team.rank(); e < area; e += Team::size) sums[e] = T(0);
    for (int i = team.rank(); i < tile; i += Team::size) {
      largest[i] = -static_cast<T>(INFINITY);
      total[i] = T(0);
    }
    for (std::int64_t s0 = 0; s0 < p.keys && p.sees(t0 + tile - 1, s0); s0 += tile) {
      load_rows(team, p, k, b, h / p.group, s0, p.keys, tile, ks);
      load_rows(team, p, v, b, h / p.group, s0, p.keys, tile, vs);
      team.sync();
      for (int e = team.rank(); e < tile * tile; e += Team::size) {
        const int i = e / tile, j = e % tile;
        const bool is_seen = t0 + i < p.queries && s0 + j < p.keys && p.sees(t0 + i, s0 + j);
        scores[e] = is_seen ? static_cast<T>(p.scale) * dot_rows(qs + i * p.width, ks + j * p.width, p.width)
                            : -static_cast<T>(INFINITY);
      }
      team.sync();
      for (int i = team.rank(); i < tile; i += Team::size)
        update_row(scores + i * tile, largest[i], total[i], correction[i]);
      team.sync();
      if (p.has_dropout) {
        for (int e = team.rank(); e < tile * tile; e += Team::size) {
          if (scores[e] != T(0)) scores[e] *= p.kept<T>(b, h, t0 + e / tile, s0 + e % tile);
        }
        team.sync();
      }
      for (std::int64_t e = team.rank(); e < area; e += Team::size) {
        const std::int64_t i = e / p.width, d = e % p.width;
        T sum = sums[e] * correction[i];
        for (int j = 0; j < tile; ++j) sum += scores[i * tile + j] * vs[j * p.width + d];
        sums[e] = sum;
      }
      team.sync();
    }
    for (std::int64_t e = team.rank(); e < area; e += Team::size) {
      const std::int64_t i = e / p.width, t = t0 + i;
      if (t >= p.queries || !out.data) continue;
      store<T>(out.data, p.dtype, b * out.batch + t * out.row + h * out.head + e % p.width, sums[e] / total[i]);
    }
    for (int i = team.rank(); lse && i < tile && t0 + i < p.queries; i += Team::size) {
      lse[(b * p.heads + h) * p.queries + t0 + i] =
          largest[i] + static_cast<T>(std::log(static_cast<double>(total[i])));
    }
  }

  // A row of scores becomes e^(score - largest so far); what was summed before is corrected for a new largest.
  THIMBLE_DEVICE void update_row(T* row, T& row_largest, T& row_total, T& row_correction) const {
    T top = row_largest;
    for (int j = 0; j < tile; ++j) top = larger_of(top, row[j]);
    const bool sees_none = top == -static_cast<T>(INFINITY);
    row_correction = sees_none ? T(1) : math::exp(row_largest - top);
    T sum = row_total * row_correction;
    for (int j = 0; j < tile; ++j) {
      row[j] = sees_none || row[j] == -static_cast<T>(INFINITY) ? T(0) : math::exp(row[j] - top);
      sum += row[j];
    }
    row_largest = top;
    row_total = sum;
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
