#pragma once
// THIMBLE_TEST_HAS_SANITIZER: the tests are built with a sanitizer, which takes memory in addition to the program's.
// Tests of a whole process's bytes or limits are left out then, and so are most rows of tables whose runs call the same
// code.

#include <initializer_list>
#include <vector>

#include "support/catch.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define THIMBLE_TEST_HAS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define THIMBLE_TEST_HAS_SANITIZER
#endif
#endif

namespace thimble::testing {

#ifdef THIMBLE_TEST_HAS_SANITIZER
inline constexpr bool has_sanitizer = true;
#else
inline constexpr bool has_sanitizer = false;
#endif

/// Rows of a table for GENERATE; under a sanitizer one row of three.
template <class T>
Catch::Generators::GeneratorWrapper<T> table_rows(std::initializer_list<T> all) {
  std::vector<T> some;
  for (std::size_t i = 0; i < all.size(); i += has_sanitizer ? 3 : 1) some.push_back(all.begin()[i]);
  return Catch::Generators::from_range(some);
}

}  // namespace thimble::testing
