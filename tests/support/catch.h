#pragma once
// Works with Catch2 2.13 and 3.x: no other file needs to know the difference.

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
