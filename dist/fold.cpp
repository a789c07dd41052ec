#include <thimble/dist/fold.h>

#include <utility>

#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/ops/elementwise/elementwise_functors.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/copy.h>
#include <thimble/dist/transit.h>
#include <thimble/dist/window.h>

namespace thimble::dist {

void add_to(const Tensor& sum, const Tensor& term) {
  elementwise_detail::run("add", ops::Add(), {&sum, &term}, sum);
  if (sum.storage()) sum.storage()->bump_version();
}

Tensor fold(Communicator& ranks, Tensor mine, bool last_first) {
  const int size = ranks.size(), rank = ranks.rank();
  const Tensor own = contiguous(std::exchange(mine, Tensor()).detach());
  const std::int64_t n = own.elements();
  const auto begin_of = [&](int r) { return n / size * r + n % size * r / size; };
  const auto share_of = [&](const Tensor& of, int r) {
    return window_of(of, begin_of(r), {begin_of(r + 1) - begin_of(r)});
  };
  const std::int64_t share = begin_of(rank + 1) - begin_of(rank);
  const Tensor sum = reused_or_new(own);
  const Tensor here = share_of(sum, rank);  // where this rank's share is added up
  if (sum.storage() != own.storage()) copy_into(here, share_of(own, rank));
  const PathScope path = ranks_path();
  Tensor incoming;  // (size - 1, share): the other ranks' in their order
  if (share > 0) incoming = Tensor::empty({size - 1, share}, own.dtype(), own.device(), Category::communication);
  const auto term_of = [&](int r) {
    return r == rank ? here : window_of(incoming, (r < rank ? r : r - 1) * share, {share});
  };
  Transit transit;
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    transit.send(r, share_of(own, r));
    if (share > 0) transit.receive(r, term_of(r));
  }
  transit.begin(ranks);
  transit.wait();
  if (share > 0) {
    Tensor before;  // the sum of the terms before
    for (int k = 0; k < size; ++k) {
      const int r = last_first ? size - 1 - k : k;
      const Tensor term = term_of(r);
      if (!before.defined()) {
        before = term;
      } else if (r == rank) {  // a sum of two has the same bits either way round
        add_to(term, before);
        before = term;
      } else {
        add_to(before, term);
      }
    }
  }
  incoming = Tensor();
  Transit gather;
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    gather.send(r, here);
    gather.receive(r, share_of(sum, r));
  }
  gather.begin(ranks);
  gather.wait();
  return sum;
}

}  // namespace thimble::dist
