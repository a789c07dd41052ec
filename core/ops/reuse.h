#pragma once
// Writing a result where an operand lies.

#include <thimble/core/tensor.h>

namespace thimble {

/// True when backward may write a result of the same shape and dtype in t's buffer: nobody else holds it, t is dense,
/// and it is all of its storage (a part would keep the rest alive).
inline bool is_reusable(const Tensor& t) {
  return t.is_unshared() && t.is_contiguous() && t.storage()->bytes() == t.bytes();
}

}  // namespace thimble
