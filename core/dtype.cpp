#include <string>

#include <thimble/core/dtype.h>
#include <thimble/core/error.h>

namespace thimble {

DType parse_dtype(std::string_view text) {
  std::string allowed;
  for (int i = 0; i < dtype_count; ++i) {
    const DType dtype = static_cast<DType>(i);
    if (to_string(dtype) == text) return dtype;
    if (i > 0) allowed += ", ";
    allowed += to_string(dtype);
  }
  throw ValueError("parse_dtype: unknown dtype '" + std::string(text) + "', expected " + allowed);
}

}  // namespace thimble
