#pragma once
// Tables of Unicode 16.0.0, made by tools/unicode_tables.py. What their numbers hold stands beside them.

#include <array>
#include <cstdint>

namespace thimble::data::unicode_tables {

extern const std::array<std::uint32_t, 1610> class_runs;
extern const std::array<std::uint32_t, 590> combining_runs;
extern const std::array<std::uint64_t, 1035> single_decompositions;
extern const std::array<std::uint64_t, 1046> pair_decompositions;
extern const std::array<std::uint16_t, 961> compositions;

}  // namespace thimble::data::unicode_tables
