#include <thimble/dist/sharding/operators.h>

#include <string>
#include <utility>

#include <thimble/autograd/apply.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/functors/elementwise_functors.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/elementwise/elementwise.h>
#include <thimble/core/tensor/view.h>
#include <thimble/dist/fold.h>
#include <thimble/dist/sharding/sequence.h>
#include <thimble/dist/transit.h>
#include <thimble/dist/window.h>

namespace thimble::dist {

int ShardGroup::first() const noexcept { return ranks != nullptr ? ranks->rank() : 0; }

Tensor CopyToGroup::forward(const Tensor& x, ops::Needs, Saved&) const { return view::reshape(x, x.shape()); }

ops::Gradients CopyToGroup::backward(Saved, Tensor dy, ops::Needs) const {
  return {ranks != nullptr ? fold(*ranks, std::move(dy), true) : dy};
}

void check_terms(std::span<const Tensor> terms) {
  for (const Tensor& term : terms) {
    if (term.shape() != terms[0].shape())
      throw ShapeError("sum_shards: terms " + describe(terms[0]) + " and " + describe(term) +
                       "; expected equal shapes");
    if (term.dtype() != terms[0].dtype())
      throw DTypeError("sum_shards: terms " + describe(terms[0]) + " and " + describe(term) + "; expected one dtype");
  }
}

Tensor AllReduce::forward(std::span<const Tensor> terms, ops::Needs, Saved&) const {
  check_terms(terms);
  if (ranks != nullptr) return fold(*ranks, terms[0]);
  return sum_here(terms);
}

Tensor sum_here(std::span<const Tensor> terms) {
  const Tensor sum = Tensor::empty(terms[0].shape(), terms[0].dtype(), terms[0].device());
  if (terms.size() == 1) {
    copy_into(sum, terms[0]);
  } else {
    elementwise_detail::run("add", ops::Add(), {&terms[0], &terms[1]}, sum);
  }
  for (std::size_t p = 2; p < terms.size(); ++p) add_to(sum, terms[p]);
  return sum;
}

ops::Gradients AllReduce::backward(Saved, Tensor dy, ops::Needs needs) const {
  ops::Gradients gradients;
  for (int i = 0; needs.bits() >> i != 0; ++i) gradients.push_back(needs[i] ? dy : Tensor());
  return gradients;
}

Tensor copy_to_group(const ShardGroup& group, const Tensor& x) {
  return group.shards == 1 ? x : apply(CopyToGroup{group.ranks}, x);
}

Tensor sum_shards(const ShardGroup& group, std::span<const Tensor> terms) {
  if (static_cast<int>(terms.size()) != group.count() || group.count() > ops::Needs::max_operands) {
    throw ValueError("sum_shards: " + std::to_string(terms.size()) + " terms of " + std::to_string(group.count()) +
                     " shards; expected one each, at most " + std::to_string(ops::Needs::max_operands));
  }
  if (group.shards == 1) return terms[0];
  return group.cuts_sequence ? apply_list(ReduceScatter{group}, terms) : apply_list(AllReduce{group.ranks}, terms);
}

std::vector<Tensor> for_each_shard(const ShardGroup& group, Tensor x,
                                   FunctionRef<Tensor(std::size_t, Tensor)> term_of) {
  if (group.cuts_sequence) x = apply(AllGather{group}, std::exchange(x, Tensor()));
  // One rank with all shards adds their gradients before the gradients of x's other readers, as a group does.
  if (group.ranks == nullptr) x = copy_to_group(group, x);
  const auto count = static_cast<std::size_t>(group.count());
  std::vector<Tensor> terms;
  for (std::size_t p = 0; p < count; ++p) {
    // The gradients of a gathered tensor are summed when it is sharded again.
    Tensor own = group.cuts_sequence && group.ranks != nullptr ? x : copy_to_group(group, x);
    if (p + 1 == count) x = Tensor();
    terms.push_back(term_of(p, std::move(own)));
  }
  return terms;
}

Tensor gather_square_sums(Communicator& ranks, const Tensor& own, std::span<const int> layers) {
  const std::int64_t n = own.elements();
  const int size = ranks.size();
  const PathScope path = ranks_path();
  const Tensor rows = Tensor::empty({size, n}, own.dtype(), own.device(), memory::Category::communication);
  copy_into(window_of(rows, ranks.rank() * n, {n}), own);
  all_gather(ranks, rows);
  std::int64_t count = 0;
  for (const int layer : layers) count += layer < 0 ? 1 : size;
  Tensor all = Tensor::empty({count}, own.dtype(), own.device(), memory::Category::workspace);
  std::int64_t at = 0;
  for (std::int64_t begin = 0, end; begin < n; begin = end) {
    const int layer = layers[static_cast<std::size_t>(begin)];
    for (end = begin + 1; end < n && layers[static_cast<std::size_t>(end)] == layer;) ++end;
    for (int r = 0; r < (layer < 0 ? 1 : size); ++r, at += end - begin) {
      copy_into(window_of(all, at, {end - begin}),
                window_of(rows, (layer < 0 ? ranks.rank() : r) * n + begin, {end - begin}));
    }
  }
  return all;
}

}  // namespace thimble::dist
