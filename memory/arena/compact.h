#pragma once
// Planning a compaction: which blocks to slide so that a request finds a hole.
//
// Policy
// - Blocks slide towards offset 0 and keep their order, so every move is a memmove to a lower offset.
// - A request needs a hole, not a tidy range: of all windows (stretches of the range whose free bytes together suffice)
//   the one is chosen whose blocks have the fewest bytes to move; among equals the lowest.
// - Pinned blocks are walls: a window does not contain one. Where only existing pages may be used, a granule without
//   pages is a wall as well.
// - Linear in the number of spans, and no allocation: two walks go over the same list, one behind the other.
// - Alignment costs bytes that depend on where a block comes to lie, so a window is asked to have the most that could
//   be lost. What is refused by that margin alone is settled by sliding everything (bytes_after_sliding_all).
//
// Terms
//   piece    a free stretch that may be used: a free span, the range above the height, or the part of one with pages
//   window   consecutive pieces and the blocks between them; sliding those down leaves one hole at its upper end
//   wall     what cannot be slid and so ends a window

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
  /// After pages were put under granules: finds solid_bytes again.
  void extend_solid() noexcept;
  /// After Backing::remap of granules.
  void remap(std::size_t from, std::size_t to, std::size_t count) noexcept;
};

/// Walks the pieces of a range by address. `pages`: only what has pages counts; null: everything up to the limit does.
class PieceWalk {
 public:
  PieceWalk(Tlsf& spans, const PageMap* pages) noexcept : spans_(&spans), pages_(pages), next_(spans.first()) {}

  /// What lies between a piece and the one before it.
  struct Between {
    std::size_t blocks = 0;
    std::size_t bytes = 0;  ///< as requested: what a slide has to copy
    std::size_t slack = 0;  ///< the most that aligning the blocks can cost
    bool has_wall = false;
  };

  /// Goes to the next piece; false when there is none.
  bool next() noexcept;

  Tlsf::Span* span() const noexcept { return span_; }  ///< the free span of the piece; null: above the height
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
  std::size_t at_ = 0, stretch_end_ = 0;  // what is left of the free stretch
  std::size_t begin_ = 0, end_ = 0;
  bool is_above_ = false;
  Between between_;
};

/// What to slide for a hole.
struct Window {
  Tlsf::Span* first = nullptr;  ///< the free span it begins with; null: it is above the height, with nothing to slide
  std::size_t begin = 0;        ///< blocks may slide down to here
  std::size_t end = 0;          ///< where the hole will end
  std::size_t blocks = 0;       ///< how many blocks after `first` slide
  std::size_t bytes = 0;        ///< and their requested bytes

  bool is_found() const noexcept { return end != 0; }
};

/// The window that makes a hole of `bytes` at `alignment` and moves least. A window without blocks is a place that is
/// there already.
Window cheapest_window(Tlsf& spans, const PageMap* pages, std::size_t bytes, std::size_t alignment) noexcept;

/// The largest request at `alignment` that would find a place if all blocks were slid down.
std::size_t bytes_after_sliding_all(const Tlsf& spans, std::size_t alignment) noexcept;

/// What of a block's slide from `from` down to `to` can be done with whole pages: granules [first, first + count) move
/// down by `distance` granules, the bytes before and after them are copied. count = 0 where the distance is no whole
/// number of granules.
struct PageMove {
  std::size_t first = 0, count = 0, distance = 0;
};
PageMove page_move(std::size_t from, std::size_t to, std::size_t size, std::size_t granule) noexcept;

/// Whether somebody holds the block where it is.
inline bool is_pinned(const Block& block) noexcept { return block.pins.load(std::memory_order_acquire) > 0; }

}  // namespace thimble
