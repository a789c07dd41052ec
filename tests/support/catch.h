#pragma once
// Catch2 2.13 and 3.x both work: the one place that knows the difference.

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

#include <initializer_list>
#include <vector>

#include "support/sanitizer.h"

namespace thimble::testing {

/// Rows of a table, for GENERATE; under a sanitizer one of three, because all of them call the same.
template <class T>
Catch::Generators::GeneratorWrapper<T> rows(std::initializer_list<T> all) {
  std::vector<T> some;
  for (std::size_t i = 0; i < all.size(); i += has_sanitizer ? 3 : 1) some.push_back(all.begin()[i]);
  return Catch::Generators::from_range(some);
}

}  // namespace thimble::testing
