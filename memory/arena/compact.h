#pragma once
// Planning a compaction: which blocks to slide so that a request finds a hole.
//
// Policy
// - Blocks slide towards offset 0 and keep their order, so every move is a memmove to a lower offset.
// - A request needs a hole, not a tidy range: of all windows (ranges whose free bytes together suffice) choose the one
//   whose blocks have the fewest bytes to move; among equals the lowest.
// - Pinned blocks are walls: a window does not contain one. Where only existing pages may be used, a granule without
//   pages is a wall as well.
// - Linear in the number of spans, and no allocation: two walks go over the same list, one behind the other.
// - Alignment costs bytes that depend on the final offsets of blocks, so a window must have room for the largest loss.
//   Sliding everything decides requests that only this margin refuses (bytes_after_sliding_all).
//
// Terms
//   piece    a usable free range: a free span, the range above the height, or the section of one with pages
//   window   consecutive pieces and the blocks between them; sliding the blocks down leaves one hole at its upper end
//   wall     a block or granule that cannot be slid and so ends a window

#include <cstddef>
#include <vector>

#include <thimble/memory/arena/tlsf.h>

namespace thimble {

/// The granules of an arena that have pages.
struct PageMap {
  std::size_t granule = 0;              ///< bytes
  std::vector<std::uint8_t> has_pages;  ///< 0 or 1 per granule, up to the highest ever committed
  std::size_t solid_bytes = 0;          ///< everything below has pages

  bool has(std::size_t index) const noexcept { return index < has_pages.size() && has_pages[index]; }
  /// Updates solid_bytes after pages were put under granules.
  void extend_solid() noexcept;
  /// After Backing::remap of granules.
  void remap(std::size_t from, std::size_t to, std::size_t count) noexcept;
};

/// Walks the pieces of a range by address. With `pages`, only ranges with pages count; null counts everything up to the
/// limit.
class PieceWalk {
 public:
  PieceWalk(Tlsf& spans, const PageMap* pages) noexcept : spans_(&spans), pages_(pages), next_(spans.first()) {}

  /// The bytes between a piece and the one before it.
  struct Between {
    std::size_t blocks = 0;
    std::size_t bytes = 0;  ///< as requested: the bytes that a slide copies
    std::size_t slack = 0;  ///< the largest cost of aligning the blocks
    bool has_wall = false;
  };

  /// Goes to the next piece; false without one.
  bool next() noexcept;

  Tlsf::Span* span() const noexcept { return span_; }  ///< the free span of the piece; null above the height
  std::size_t begin() const noexcept { return begin_; }
  std::size_t end() const noexcept { return end_; }
  std::size_t bytes() const noexcept { return end_ - begin_; }
  const Between& between() const noexcept { return between_; }

 private:
  bool clip() noexcept;
  void pass(const Tlsf::Span& block) noexcept;

  Tlsf* spans_;
  const PageMap* pages_;
  Tlsf::Span* next_;
  Tlsf::Span* span_ = nullptr;
  std::size_t at_ = 0, stretch_end_ = 0;  // the rest of the free range
  std::size_t begin_ = 0, end_ = 0;
  bool is_above_ = false;
  Between between_;
};

/// The slides that make a hole.
struct CompactionWindow {
  Tlsf::Span* first = nullptr;  ///< the free span it begins with; null above the height, where nothing slides
  std::size_t begin = 0;        ///< blocks may slide down to here
  std::size_t end = 0;          ///< future end of the hole
  std::size_t blocks = 0;       ///< how many blocks after `first` slide
  std::size_t bytes = 0;        ///< and their requested bytes

  bool is_found() const noexcept { return end != 0; }
};

/// The window that makes a hole of `bytes` at `alignment` and moves least. A window without blocks is an existing
/// place.
CompactionWindow cheapest_window(Tlsf& spans, const PageMap* pages, std::size_t bytes, std::size_t alignment) noexcept;

/// The largest request at `alignment` that would fit if all blocks were slid down.
std::size_t bytes_after_sliding_all(const Tlsf& spans, std::size_t alignment) noexcept;

/// The whole pages of a block's slide from `from` down to `to`: granules [first, first + count) move down by `distance`
/// granules, the bytes before and after them are copied. count = 0 where the distance is not a whole number of
/// granules.
struct PageMove {
  std::size_t first = 0, count = 0, distance = 0;
};
PageMove page_move(std::size_t from, std::size_t to, std::size_t size, std::size_t granule) noexcept;

/// Whether a pin holds the block in place.
inline bool is_pinned(const memory::Block& block) noexcept { return block.pins.load(std::memory_order_acquire) > 0; }

}  // namespace thimble
