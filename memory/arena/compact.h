#pragma once
// Planning a compaction: which blocks to slide so that a request finds a hole.
//
// Policy
// - Blocks slide towards offset 0 and keep their order, so every move is a memmove to a lower offset.
// - A request needs one hole, not a tidy range: among the windows with enough free bytes, the search takes the one
//   whose blocks have the fewest bytes to move, and the lowest among equals.
// - Pinned blocks are walls, which no window contains. When only existing pages may be used, a granule without pages is
//   a wall too.
// - The search is linear in the number of spans and allocates nothing: two walks follow each other over the list.
// - Alignment costs bytes that depend on the final offsets of blocks, so a window must have room for the largest loss.
//   If only this margin refuses a request, sliding all blocks decides (bytes_after_sliding_all).
//
// Terms
//   piece    a usable free range: a free span, the range above the height, or the part of either that has pages
//   window   consecutive pieces and the blocks between them; sliding the blocks down leaves one hole at its upper end
//   wall     a block or granule that cannot be slid, and so ends a window

#include <cstddef>
#include <vector>

#include <thimble/memory/arena/tlsf.h>

namespace thimble::memory {

/// The granules of an arena that have pages.
struct PageMap {
  std::size_t granule = 0;              ///< bytes
  std::vector<std::uint8_t> has_pages;  ///< 0 or 1 per granule, up to the highest ever committed
  std::size_t solid_bytes = 0;          ///< everything below has pages

  bool has(std::size_t index) const noexcept { return index < has_pages.size() && has_pages[index]; }
  /// Updates solid_bytes after a commit.
  void extend_solid() noexcept;
  /// After Backing::remap of granules.
  void remap(std::size_t from, std::size_t to, std::size_t count) noexcept;
};

/// Walks the pieces of a range by address: only ranges with pages, or everything up to the limit if `pages` is null.
class PieceWalk {
 public:
  PieceWalk(Tlsf& spans, const PageMap* pages) noexcept : spans_(&spans), pages_(pages), next_(spans.first()) {}

  /// The bytes between a piece and the one before it.
  struct Between {
    std::size_t blocks = 0;
    std::size_t bytes = 0;  ///< requested bytes, which a slide copies
    std::size_t slack = 0;  ///< largest loss to aligning the blocks
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
  Tlsf::Span* first = nullptr;  ///< the free span at its begin; null above the height, where nothing slides
  std::size_t begin = 0;        ///< blocks may slide down to here
  std::size_t end = 0;          ///< end of the hole after the slides
  std::size_t blocks = 0;       ///< number of blocks after `first` that slide
  std::size_t bytes = 0;        ///< their requested bytes

  bool is_found() const noexcept { return end != 0; }
};

/// The window that makes a hole of `bytes` at `alignment` and moves the fewest bytes. A window without blocks is a hole
/// already.
CompactionWindow cheapest_window(Tlsf& spans, const PageMap* pages, std::size_t bytes, std::size_t alignment) noexcept;

/// The largest request at `alignment` that fits after sliding all blocks.
std::size_t bytes_after_sliding_all(const Tlsf& spans, std::size_t alignment) noexcept;

/// The granules that a slide from `from` down to `to` can remap: [first, first + count) move down by `distance`
/// granules; the bytes before and after them are copied. count is 0 if the distance is not a whole number of granules.
struct PageMove {
  std::size_t first = 0, count = 0, distance = 0;
};
PageMove page_move(std::size_t from, std::size_t to, std::size_t size, std::size_t granule) noexcept;

/// Whether a pin holds the block in place.
inline bool is_pinned(const Block& block) noexcept { return block.pins.load(std::memory_order_acquire) > 0; }

}  // namespace thimble::memory
