#pragma once
// Range check of arguments for samplers, sources and generators.

#include <cstdint>
#include <string>

#include <thimble/core/error.h>

namespace thimble::data {

/// Returns `value`. Throws ValueError "NAME is VALUE; expected LOW to HIGH" if it is outside of low .. high.
inline std::int64_t require_between(const char* what, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high)
    throw ValueError(std::string(what) + " is " + std::to_string(value) + "; expected " + std::to_string(low) + " to " +
                     std::to_string(high));
  return value;
}

}  // namespace thimble::data
