#include <thimble/dist/fold.h>

#include <utility>

#include <thimble/core/kernels/functors/elementwise_functors.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/dist/transit.h>
#include <thimble/dist/window.h>

namespace thimble::dist {

void add_to(const Tensor& sum, const Tensor& term) {
  elementwise_detail::run("add", ops::Add(), {&sum, &term}, sum);
  if (sum.storage()) sum.storage()->bump_version();
}

namespace {

/// Rank r's shard of a dense tensor.
Tensor share_of(const Tensor& dense, int ranks, int r) {
  const std::int64_t n = dense.elements();
  const auto begin_of = [&](int k) { return n / ranks * k + n % ranks * k / ranks; };
  return window_of(dense, begin_of(r), {begin_of(r + 1) - begin_of(r)});
}

/// Adds the other ranks' shards to `here`, which has this rank's shard of `own`.
void add_shares(Communicator& ranks, const Tensor& own, const Tensor& here, bool last_first) {
  const int size = ranks.size(), rank = ranks.rank();
  const std::int64_t share = here.elements();
  Tensor incoming;  // (size - 1, shard): the other ranks' in their order
  if (share > 0)
    incoming = Tensor::empty({size - 1, share}, own.dtype(), own.device(), memory::Category::communication);
  const auto term_of = [&](int r) {
    return r == rank ? here : window_of(incoming, (r < rank ? r : r - 1) * share, {share});
  };
  Transit transit;
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    transit.send(r, share_of(own, size, r));
    if (share > 0) transit.receive(r, term_of(r));
  }
  transit.begin(ranks);
  transit.wait();
  if (share == 0) return;
  Tensor before;  // the sum of the earlier terms
  for (int k = 0; k < size; ++k) {
    const int r = last_first ? size - 1 - k : k;
    const Tensor term = term_of(r);
    if (!before.defined()) {
      before = term;
    } else if (r == rank) {  // a sum of two has the same bits in either order
      add_to(term, before);
      before = term;
    } else {
      add_to(before, term);
    }
  }
}

}  // namespace

Tensor fold_share(Communicator& ranks, const Tensor& mine, const Shape& shape, bool last_first) {
  const Tensor own = mine.detach();
  const Tensor here = Tensor::empty(shape, own.dtype(), own.device());
  const Tensor flat = window_of(here, 0, {here.elements()});
  copy_into(flat, share_of(own, ranks.size(), ranks.rank()));
  const PathScope path = ranks_path();
  add_shares(ranks, own, flat, last_first);
  return here;
}

Tensor fold(Communicator& ranks, Tensor mine, bool last_first) {
  const int size = ranks.size(), rank = ranks.rank();
  const Tensor own = contiguous(std::exchange(mine, Tensor()).detach());
  const Tensor sum = reused_or_new(own);
  const Tensor here = share_of(sum, size, rank);  // accumulates this rank's shard
  if (sum.storage() != own.storage()) copy_into(here, share_of(own, size, rank));
  const PathScope path = ranks_path();
  add_shares(ranks, own, here, last_first);
  Transit gather;
  for (int r = 0; r < size; ++r) {
    if (r == rank) continue;
    gather.send(r, here);
    gather.receive(r, share_of(sum, size, r));
  }
  gather.begin(ranks);
  gather.wait();
  return sum;
}

}  // namespace thimble::dist
