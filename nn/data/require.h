#pragma once
// The check of an argument's range that samplers, sources and generators share.

#include <cstdint>
#include <string>

#include <thimble/core/error.h>

namespace thimble::data {

/// `value`, unless it is outside of low .. high: then throws ValueError `WHAT is VALUE; allowed: LOW to HIGH`.
inline std::int64_t require_between(const char* what, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high)
    throw ValueError(std::string(what) + " is " + std::to_string(value) + "; expected " + std::to_string(low) + " to " +
                     std::to_string(high));
  return value;
}

}  // namespace thimble::data
