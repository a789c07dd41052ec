#pragma once
// Placement problems as the CSV of public packing benchmarks (google/minimalloc, src/converter.cc).
//
// Policy
// - A header names the columns, in any order: `id,lower,upper,size`; `alignment`, a power of two; `gaps`; and `offset`
//   for known places. Older names: `buffer` and `buffer_id` for id, `begin` and `start` for lower, and `end` for upper,
//   which is then the last time of the lifetime (and of each gap), not the one after it.
// - `gaps`: times within the lifetime when the buffer is free, as `3-5 8-9`, [lower, upper) each; with `@0:4` behind
//   one, only the buffer's bytes [0, 4) are used.
// - An id is any text. A field in double quotes may have commas; a quote in it is doubled.
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
// - Gaps break the assumption of the exact stage: a buffer is one interval of time and one of bytes. So such buffers
//   are placed greedily in several orders, and a local search moves the highest ones forward in the best order.
// - Height equal to the load is optimal; more is not proven.

/// A time [lower, upper) within a buffer's lifetime when it holds only its bytes [from, to); none where these are
/// equal.
struct Gap {
  std::uint64_t lower = 0, upper = 0;
  std::size_t from = 0, to = 0;

  friend bool operator==(const Gap&, const Gap&) = default;
};

/// As place(). `gaps` has the gaps of each buffer, disjoint and in order of time. Throws ValueError as place() does,
/// and for gaps outside the lifetime and the bytes of their buffer.
Placement place_with_gaps(std::span<const Buffer> buffers, std::span<const std::vector<Gap>> gaps,
                          const PlacementOptions& options = {});

/// As check_placement(), for buffers with gaps.
void check_placement_with_gaps(std::span<const Buffer> buffers, std::span<const std::vector<Gap>> gaps,
                               std::span<const std::size_t> offsets, std::size_t height_bytes);

struct PlacementFile {
  std::vector<Buffer> buffers;         ///< in the order of the lines; `id`: the line's index, from 0
  std::vector<std::string> ids;        ///< of all of them
  std::vector<std::vector<Gap>> gaps;  ///< of all of them, or empty
  std::vector<std::size_t> offsets;    ///< of all of them, or empty
};

/// Reads the text of a file; "\n" and "\r\n" both end a line, empty lines at the end are ignored. Throws FileError
/// (`path`, the byte at which the line begins, and the line's number) for anything else than a header and lines of an
/// id and whole numbers below 2^62: a missing, doubled or unknown column, a wrong number of fields, a sign, a value
/// that is too large, a repeated id, lower >= upper, size 0, an alignment that is not a power of two, gaps that overlap
/// or are not within the lifetime and the size.
PlacementFile parse_placement(std::string_view text, const std::string& path);

/// Reads a regular file of at most 1 GiB. Throws FileError, also when it cannot be read.
PlacementFile read_placement(const std::string& path);

/// The text of a file: `id,lower,upper,size`, `alignment` unless all are 1, `gaps` unless none has any, `offset` unless
/// `offsets` is empty. Throws ValueError when ids or offsets differ in number from buffers.
std::string write_placement(const PlacementFile& file);
/// The same for buffers whose ids are their numbers.
std::string write_placement(std::span<const Buffer> buffers, std::span<const std::size_t> offsets = {});

}  // namespace thimble::memory
