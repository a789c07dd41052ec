#pragma once
// Placement problems as the CSV of public packing benchmarks (google/minimalloc, src/converter.cc).
//
// Policy
// - A header names the columns, in any order: `id,lower,upper,size`, and optionally `alignment` (a power of two),
//   `gaps` and `offset`. Older names: `buffer` and `buffer_id` for id, `begin` and `start` for lower, and `end` for
//   upper; `end` is the last time of the lifetime (and of each gap), not the one after it.
// - `gaps` are times [lower, upper) within the lifetime at which the buffer is free, as `3-5 8-9`. `@0:4` after a gap
//   means that bytes [0, 4) stay in use.
// - An id is any text. A field in double quotes may contain commas; a quote in it is doubled.
// - Nothing is repaired: a malformed, negative, too large, empty or repeated value is an error that names the line.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/memory/placement/placement.h>

namespace thimble::memory {

// Placement of buffers that hold fewer bytes at times within their lifetimes (gaps), as in minimalloc's CSV.
//
// Policy
// - The exact stage assumes that a buffer is one interval of time and one of bytes, which gaps break. So these buffers
//   are placed greedily in several orders, and a local search moves the highest ones forward in the best order.
// - Only a height equal to the load is proven optimal.

/// A time [lower, upper) within a buffer's lifetime at which it holds only its bytes [from, to), which may be none.
struct Gap {
  std::uint64_t lower = 0, upper = 0;
  std::size_t from = 0, to = 0;

  friend bool operator==(const Gap&, const Gap&) = default;
};

/// place() for buffers with gaps, given per buffer, disjoint and in order of time. Throws ValueError as place() does,
/// and for gaps outside the lifetime or the bytes of their buffer.
Placement place_with_gaps(std::span<const Buffer> buffers, std::span<const std::vector<Gap>> gaps,
                          const PlacementOptions& options = {});

/// check_placement() for buffers with gaps.
void check_placement_with_gaps(std::span<const Buffer> buffers, std::span<const std::vector<Gap>> gaps,
                               std::span<const std::size_t> offsets, std::size_t height_bytes);

struct PlacementFile {
  std::vector<Buffer> buffers;         ///< in the order of the lines; `id` is the line's index, from 0
  std::vector<std::string> ids;        ///< per buffer
  std::vector<std::vector<Gap>> gaps;  ///< per buffer, or empty
  std::vector<std::size_t> offsets;    ///< per buffer, or empty
};

/// Reads the text of a file. "\n" and "\r\n" both end a line; empty lines at the end are ignored. Throws FileError
/// (`path`, the byte at which the line begins, and the line's number) for a missing, repeated or unknown column, a
/// wrong number of fields, a value that is no whole number below 2^62, a sum of sizes from 2^62 on, a repeated id,
/// lower >= upper, size 0, an alignment that is not a power of two, gaps that overlap or leave the lifetime or size.
PlacementFile parse_placement(std::string_view text, const std::string& path);

/// Reads a regular file of at most 1 GiB. Throws FileError.
PlacementFile read_placement(const std::string& path);

/// The text of a file: `id,lower,upper,size`, `alignment` unless all are 1, `gaps` and `offset` if there are any.
/// Throws ValueError when ids, gaps or offsets differ in number from buffers.
std::string write_placement(const PlacementFile& file);
/// Writes the buffers under their numeric ids.
std::string write_placement(std::span<const Buffer> buffers, std::span<const std::size_t> offsets = {});

}  // namespace thimble::memory
