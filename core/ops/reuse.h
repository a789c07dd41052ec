#pragma once
// The rule by which operators, elementwise functors and the tape write a result in an operand's buffer.

#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// Whether backward may write a result of the same shape and dtype in t's buffer, or keep t as a result: t has no other
/// holder, is dense, and is all of its storage (a window would keep the rest alive).
inline bool is_reusable(const Tensor& t) {
  return t.is_unshared() && t.is_contiguous() && t.storage()->bytes() == t.bytes();
}

/// A dense tensor like t whose elements may be written: t itself if it is reusable, else a new one. An elementwise
/// kernel gives the same bits in both.
inline Tensor reused_or_new(const Tensor& t) { return is_reusable(t) ? t : Tensor::empty_like(t); }

}  // namespace thimble
