#pragma once
// Writing a result where an operand lay.

#include <thimble/core/tensor.h>

namespace thimble {

/// True when this handle is the only one to its storage and covers all of it densely: the bytes are free to be written.
inline bool owns_buffer(const Tensor& t) noexcept {
  return t.is_unshared() && t.is_contiguous() && t.storage()->bytes() == t.bytes();
}

/// A dense tensor like t whose elements may be written: t itself when it owns its buffer, else a new one. An
/// elementwise kernel gives the same bits in both.
inline Tensor overwritable(const Tensor& t) { return owns_buffer(t) ? t : Tensor::empty_like(t); }

}  // namespace thimble
