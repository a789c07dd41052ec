#pragma once
// Placement problems as the CSV of public packing benchmarks.
//
// Policy
// - A header names the columns: `id,lower,upper,size`, and `offset` where places are known; in any order.
// - Whole numbers only. Nothing is repaired: what is malformed, negative, too large, empty or there twice is an error
//   that names the line.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/memory/placement/placement.h>

namespace thimble::memory {

struct PlacementFile {
  std::vector<Buffer> buffers;       ///< in the order of the lines, alignment 1
  std::vector<std::size_t> offsets;  ///< of all of them, or none
};

/// Reads the text of a file; "\n" and "\r\n" both end a line, empty lines at the end are allowed. Throws FileError
/// (`path`, the byte at which the line begins, and the line's number) for anything else than a header and lines of
/// whole numbers below 2^62: a missing or unknown column, a wrong number of fields, a sign, a value that is too large,
/// a repeated id, lower >= upper, size 0.
PlacementFile parse_placement(std::string_view text, const std::string& path);

/// Reads a file. Throws FileError, also when it cannot be read.
PlacementFile read_placement(const std::string& path);

/// The text of a file; with a column `offset` unless `offsets` is empty. Throws ValueError when there are not as many
/// offsets as buffers.
std::string write_placement(std::span<const Buffer> buffers, std::span<const std::size_t> offsets = {});

}  // namespace thimble::memory
