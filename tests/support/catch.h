#pragma once
// Catch2 2.13 and 3.x both work: the one place that knows the difference.

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
