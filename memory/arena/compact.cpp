#include <thimble/memory/arena/compact.h>

#include <algorithm>

#include <thimble/core/numbers/integers.h>
#include <thimble/memory/arena/granules.h>

namespace thimble::memory {
namespace {

/// Sums over a window that grows at its upper end and shrinks at its lower end.
struct Sums {
  std::size_t free = 0, blocks = 0, bytes = 0, slack = 0;

  void add(const PieceWalk::Between& between) noexcept {
    blocks += between.blocks;
    bytes += between.bytes;
    slack += between.slack;
  }
  void subtract(const PieceWalk::Between& between) noexcept {
    blocks -= between.blocks;
    bytes -= between.bytes;
    slack -= between.slack;
  }
};

}  // namespace

void PageMap::extend_solid() noexcept {
  while (has(solid_bytes / granule)) solid_bytes += granule;
}

void PageMap::remap(std::size_t from, std::size_t to, std::size_t count) noexcept {
  move_granules(has_pages.begin(), from, to, count);
  extend_solid();
}

PageMove page_move(std::size_t from, std::size_t to, std::size_t size, std::size_t granule) noexcept {
  if ((from - to) % granule != 0) return {};
  const std::size_t first = (from + granule - 1) / granule, end = (from + size) / granule;
  return end > first ? PageMove{first, end - first, (from - to) / granule} : PageMove{};
}

bool PieceWalk::next() noexcept {
  between_ = {};
  for (;;) {
    if (at_ < stretch_end_ && clip()) return true;
    at_ = stretch_end_ = 0;
    if (next_ != nullptr) {
      Tlsf::Span* const span = next_;
      next_ = span->next;
      if (span->is_free) {
        span_ = span;
        at_ = span->offset;
        stretch_end_ = span->end();
      } else {
        pass(*span);
      }
    } else {
      if (is_above_) return false;
      is_above_ = true;
      span_ = nullptr;
      at_ = spans_->height();
      stretch_end_ = spans_->limit();
    }
  }
}

void PieceWalk::pass(const Tlsf::Span& block) noexcept {
  ++between_.blocks;
  between_.bytes += block.bytes;
  between_.slack += block.alignment() - spans_->unit();
  between_.has_wall = between_.has_wall || is_pinned(block);
}

/// Cuts the next usable piece off the free range; false when none is left.
bool PieceWalk::clip() noexcept {
  begin_ = at_;
  end_ = stretch_end_;
  if (pages_ != nullptr) {
    const std::size_t granule = pages_->granule;
    const std::size_t last = std::min((stretch_end_ + granule - 1) / granule, pages_->has_pages.size());
    std::size_t index = at_ / granule;
    const std::size_t wanted = index;
    while (index < last && !pages_->has(index)) ++index;
    if (index != wanted || index >= last) between_.has_wall = true;
    if (index >= last) return false;
    begin_ = std::max(at_, index * granule);
    while (index < last && pages_->has(index)) ++index;
    end_ = std::min(stretch_end_, index * granule);
  }
  at_ = end_;
  return true;
}

CompactionWindow cheapest_window(Tlsf& spans, const PageMap* pages, std::size_t bytes, std::size_t alignment) noexcept {
  const std::size_t need = round_up_to_power(bytes, spans.unit()) + std::max(alignment, spans.unit()) - spans.unit();
  CompactionWindow best;
  Sums sums;
  PieceWalk upper(spans, pages), lower = upper;
  bool is_empty = true;
  while (upper.next()) {
    if (is_empty || upper.between().has_wall) {
      sums = {};
      lower = upper;
      is_empty = false;
    } else {
      sums.add(upper.between());
    }
    sums.free += upper.bytes();
    while (lower.begin() != upper.begin()) {  // bytes that the hole does not need stay in place
      PieceWalk above = lower;
      above.next();
      if (sums.free - lower.bytes() < need + sums.slack - above.between().slack) break;
      sums.free -= lower.bytes();
      sums.subtract(above.between());
      lower = above;
    }
    if (sums.free >= need + sums.slack && (!best.is_found() || sums.bytes < best.bytes)) {
      best = {lower.span(), lower.begin(), upper.end(), sums.blocks, sums.bytes};
      if (best.bytes == 0) break;
    }
  }
  return best;
}

std::size_t bytes_after_sliding_all(const Tlsf& spans, std::size_t alignment) noexcept {
  alignment = std::max(alignment, spans.unit());
  std::size_t at = 0, largest = 0;
  const auto gap_until = [&](std::size_t end) {
    const std::size_t begin = round_up_to_power(at, alignment);
    if (begin < end) largest = std::max(largest, end - begin);
  };
  for (const Tlsf::Span* span = spans.first(); span != nullptr; span = span->next) {
    if (span->is_free) continue;
    const std::size_t offset = is_pinned(*span) ? span->offset : round_up_to_power(at, span->alignment());
    gap_until(offset);
    at = offset + span->size;
  }
  gap_until(spans.limit());
  return largest;
}

}  // namespace thimble::memory
