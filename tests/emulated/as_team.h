#pragma once
// Runs a kernel that is written inside a test.

#include <cstddef>
#include <cstdint>

#include <thimble/cuda/kernel/tensor_core.h>

namespace thimble::testing {

template <int N, class F>
struct TeamCall {
  static constexpr int threads = N;
  const F* f;
  void operator()(cuda_kernels::Team<N>& team, std::int64_t i) const { (*f)(team, i); }
};

/// One block of N threads that call f(team).
template <int N, class F>
void as_team(std::size_t shared_bytes, const F& f) {
  const auto one = [&](cuda_kernels::Team<N>& team, std::int64_t) { f(team); };
  cuda_kernels::for_each_team(1, TeamCall<N, decltype(one)>{&one}, shared_bytes);
}

}  // namespace thimble::testing
