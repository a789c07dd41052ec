#pragma once
// Indexing and concatenation. core/ops/layout/gather.h names the tensors kept for backward. Throw ShapeError,
// DTypeError, DeviceError, ValueError.

#include <initializer_list>
#include <span>

#include <thimble/core/ops/reduce.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// The rows of table (V, C) at ids (...), i32 or i64: (..., C). Throws ValueError, naming the first id out of range.
Tensor embedding(const Tensor& table, const Tensor& ids);
/// y[i, j, k] = x[i, index[i, j, k], k] for axis 1 of three; the result has the shape of index (i32 or i64).
Tensor gather(const Tensor& x, int axis, const Tensor& index);
/// y[i, j, k] = x[i, index[j], k] for axis 1 of three, index (L) in i32 or i64: whole rows in any order, also repeated.
Tensor index_select(const Tensor& x, int axis, const Tensor& index);
/// x with source[i, j, k] added at [i, index[i, j, k], k] for axis 1 of three; source has the shape of index. Keeps
/// only the index.
Tensor scatter_add(const Tensor& x, int axis, const Tensor& index, const Tensor& source);
/// x with source[i, j, k] added at [i, index[j], k], index (L): graphs' messages to their nodes, along axis 0.
Tensor index_add(const Tensor& x, int axis, const Tensor& index, const Tensor& source);

/// Takes any number of tensors: more than a node's limit (32) are recorded as concatenations of concatenations.
Tensor concat(std::span<const Tensor> parts, int axis);
Tensor concat(std::initializer_list<Tensor> parts, int axis);
/// Joins any number of tensors of one shape along a new axis, `axis` of the result, which counts from the end if
/// negative.
Tensor stack(std::span<const Tensor> parts, int axis = 0);
Tensor stack(std::initializer_list<Tensor> parts, int axis = 0);
/// y[i] = x[(i - shift) mod size] along `axis`. Keeps nothing.
Tensor roll(const Tensor& x, std::int64_t shift, int axis);
/// Reverses one axis, a list of axes, or all (the default). Keeps nothing.
Tensor flip(const Tensor& x, const Axes& axes = {});
/// Adds low[i] elements of `value` before axis i and high[i] after it; axes beyond the lists get none.
Tensor pad(const Tensor& x, std::span<const std::int64_t> low, std::span<const std::int64_t> high, double value = 0);
Tensor pad(const Tensor& x, std::initializer_list<std::int64_t> low, std::initializer_list<std::int64_t> high,
           double value = 0);

}  // namespace thimble
