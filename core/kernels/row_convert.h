#pragma once
// Rows of any storage dtype to and from the type arithmetic is done in (float, double, std::int64_t).

#include <cstdint>

#include <thimble/core/dtype.h>
#include <thimble/core/kernels/isa.h>

namespace thimble::kernels {

/// out[i] = the element `first + i * stride` behind `base`, converted exactly or with one rounding, i < count.
template <class T>
using LoadRow = void (*)(const void* base, std::int64_t first, std::int64_t stride, std::int64_t count, T* out);

/// The element `first + i * stride` behind `base` = values[i], rounded once to nearest even; floats too large become
/// infinity (E4M3: NaN), integers wrap, bool is value != 0. A floating value that an integer dtype cannot hold is
/// outside of the contract.
template <class T>
using StoreRow = void (*)(const T* values, std::int64_t count, void* base, std::int64_t first, std::int64_t stride);

/// The conversions for a storage dtype. T is float, double or std::int64_t. The result does not depend on `isa`.
template <class T>
LoadRow<T> load_row(DType dtype, Isa isa) noexcept;
template <class T>
StoreRow<T> store_row(DType dtype, Isa isa) noexcept;

}  // namespace thimble::kernels
