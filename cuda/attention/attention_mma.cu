// Attention on tensor cores: calls the parts, and computes delta.

#include <thimble/core/kernels/cuda_workspace.h>
#include <thimble/cuda/attention/attention.h>

namespace thimble::cuda_kernels {
namespace attention_mma_detail {

/// delta[row] for four rows (b, h, t) per warp: each of eight lanes takes every eighth chunk of a row, then lanes sum
/// pairwise.
template <class T>
struct Delta {
  static constexpr int threads = team_threads;
  static constexpr int rows_of_team = 16;
  static constexpr int n = chunk_elements<T>;
  Problem p;
  Rows<T> out, dout;
  float* delta;
  std::int64_t rows;

  template <class Team>
  THIMBLE_DEVICE void operator()(Team& team, std::int64_t job) const {
    const Warp warp(team);
    const std::int64_t row = job * rows_of_team + 4 * warp.rank + warp.lane / 8;
    float sum = row < rows ? sum_chunks(row, warp.lane % 8) : 0.0f;
    for (int mask = 1; mask <= 4; mask *= 2) sum += exchange(sum, mask);
    if (warp.lane % 8 == 0 && row < rows) delta[row] = sum;
  }

  THIMBLE_DEVICE float sum_chunks(std::int64_t row, int chunk) const {
    const std::int64_t t = row % p.queries, h = row / p.queries % p.heads, b = row / p.queries / p.heads;
    const Bits<T>* const x = out.at(b, h) + t * out.row;
    const Bits<T>* const y = dout.at(b, h) + t * dout.row;
    float sum = 0;
    for (int d = n * chunk; d < p.width; d += 8 * n) {
      Bits<T> left[n], right[n];
      read_chunk(out, x + d, left);
      read_chunk(dout, y + d, right);
      for (int e = 0; e < n; ++e) {
        sum += static_cast<float>(bit_cast<T>(left[e])) * static_cast<float>(bit_cast<T>(right[e]));
      }
    }
    return sum;
  }
  THIMBLE_DEVICE static void read_chunk(const Rows<T>& x, const Bits<T>* from, Bits<T> (&to)[n]) {
    if (x.has_chunks) {
      struct alignas(16) Chunk {
        Bits<T> bits[n];
      };
      const Chunk chunk = *reinterpret_cast<const Chunk*>(from);
      for (int e = 0; e < n; ++e) to[e] = chunk.bits[e];
    } else {
      for (int e = 0; e < n; ++e) to[e] = from[e];
    }
  }
};

/// f.template operator()<Sight>(), by the kind of visibility.
template <class F>
void with_sight(const kernels::AttentionProblem& problem, F&& f) {
  if (problem.has_mask) return f.template operator()<ByMask>();
  if (problem.has_documents) return f.template operator()<ByDocuments>();
  f.template operator()<BySizes>();
}

}  // namespace attention_mma_detail

void attention_mma_forward(const kernels::AttentionArgs& args) {
  using namespace attention_mma_detail;
  with_sight(args, [&]<class Sight>() { launch_forward<Sight>(args); });
}

void attention_mma_backward(const kernels::AttentionGradArgs& args, void* workspace) {
  using namespace attention_mma_detail;
  const std::int64_t rows = args.batch * args.heads * args.queries;
  GradCall call{args, Problem(args), static_cast<float*>(workspace)};
  with_element(args.dtype, [&]<class T>() {
    const Delta<T> body{call.problem, Rows<T>(args.out), Rows<T>(args.dout), call.delta, rows};
    for_each_team((rows + Delta<T>::rows_of_team - 1) / Delta<T>::rows_of_team, body);
  });
  void* const held = static_cast<std::byte*>(workspace) + kernels::tensor_core_attention_delta_bytes(args);
  const bool is_in_place = args.dq.data == args.q.data;
  if (args.dq.data) {
    if (is_in_place) {
      const std::int64_t matrix = args.queries * args.width;
      call.args.dq = {held, args.heads * matrix, args.width, matrix};
    }
    with_sight(args, [&]<class Sight>() { launch_query_gradient<Sight>(call); });
  }
  if (args.dk.data || args.dv.data) {
    with_sight(args, [&]<class Sight>() { launch_key_gradients<Sight>(call); });
  }
  if (args.dq.data && is_in_place)
    for_each_item(rows * args.width,
                  attention_cuda_detail::PlaceQueryGradient<float>{call.problem, held, args.dtype, args.dq});
}

}  // namespace thimble::cuda_kernels
