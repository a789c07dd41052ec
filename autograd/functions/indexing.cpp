#include <thimble/autograd/functions/indexing.h>

#include <algorithm>
#include <string>

#include <thimble/autograd/apply.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/concat.h>
#include <thimble/core/ops/gather.h>

namespace thimble {

Tensor embedding(const Tensor& table, const Tensor& ids) { return apply(ops::Embedding{}, table, ids); }

Tensor gather(const Tensor& x, int axis, const Tensor& index) { return apply(ops::Gather{axis}, x, index); }

Tensor concat(std::span<const Tensor> parts, int axis) { return apply_list(ops::Concat{axis}, parts); }

Tensor concat(std::initializer_list<Tensor> parts, int axis) {
  return concat(std::span<const Tensor>(parts.begin(), parts.size()), axis);
}

Tensor pad(const Tensor& x, std::span<const std::int64_t> low, std::span<const std::int64_t> high, double value) {
  if (low.size() > static_cast<std::size_t>(max_rank) || high.size() > static_cast<std::size_t>(max_rank)) {
    throw ShapeError("pad: " + std::to_string(low.size()) + " and " + std::to_string(high.size()) +
                     " axes, there are at most " + std::to_string(max_rank));
  }
  ops::Pad op;
  std::copy(low.begin(), low.end(), op.low.begin());
  std::copy(high.begin(), high.end(), op.high.begin());
  op.value = value;
  return apply(op, x);
}

Tensor pad(const Tensor& x, std::initializer_list<std::int64_t> low, std::initializer_list<std::int64_t> high,
           double value) {
  return pad(x, std::span<const std::int64_t>(low.begin(), low.size()),
             std::span<const std::int64_t>(high.begin(), high.size()), value);
}

}  // namespace thimble
