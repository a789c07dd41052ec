#include <thimble/autograd/functions/indexing.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <thimble/autograd/apply.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/layout/gather.h>
#include <thimble/core/tensor/view.h>

namespace thimble {

Tensor embedding(const Tensor& table, const Tensor& ids) { return apply(ops::Embedding{}, table, ids); }

Tensor gather(const Tensor& x, int axis, const Tensor& index) { return apply(ops::Gather{axis}, x, index); }

Tensor index_select(const Tensor& x, int axis, const Tensor& index) { return apply(ops::IndexSelect{axis}, x, index); }

Tensor scatter_add(const Tensor& x, int axis, const Tensor& index, const Tensor& source) {
  return apply(ops::ScatterAdd{axis}, x, index, source);
}

Tensor index_add(const Tensor& x, int axis, const Tensor& index, const Tensor& source) {
  return apply(ops::IndexAdd{axis}, x, index, source);
}

Tensor concat(std::span<const Tensor> parts, int axis) {
  const ops::Concat op{axis};
  constexpr std::size_t most = ops::Needs::max_operands;
  if (parts.size() <= most || context().tape == nullptr) return apply_list(op, parts);
  std::vector<Tensor> level(parts.begin(), parts.end());
  while (level.size() > most) {
    std::vector<Tensor> chunks;
    for (std::size_t begin = 0; begin < level.size(); begin += most) {
      const auto chunk = std::span<const Tensor>(level).subspan(begin, std::min(most, level.size() - begin));
      chunks.push_back(chunk.size() == 1 ? chunk[0] : apply_list(op, chunk));
    }
    level = std::move(chunks);
  }
  return apply_list(op, std::span<const Tensor>(level));
}

Tensor concat(std::initializer_list<Tensor> parts, int axis) {
  return concat(std::span<const Tensor>(parts.begin(), parts.size()), axis);
}

Tensor stack(std::span<const Tensor> parts, int axis) {
  std::vector<Tensor> rows;
  for (const Tensor& part : parts) {
    rows.push_back(part.defined() ? unsqueeze(part, normalize_axis("stack", axis, part.rank() + 1)) : part);
  }
  return concat(rows, axis);
}

Tensor stack(std::initializer_list<Tensor> parts, int axis) {
  return stack(std::span<const Tensor>(parts.begin(), parts.size()), axis);
}

Tensor roll(const Tensor& x, std::int64_t shift, int axis) { return apply(ops::Roll{axis, shift}, x); }

Tensor flip(const Tensor& x, const Axes& axes) {
  return apply(ops::Flip{axis_mask("flip", axes.list(), view::defined("flip", x).rank())}, x);
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
