// Compaction of an arena: sliding blocks, and when. memory/arena/compact.cpp plans the slides.

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/memory/arena/arena.h>
#include <thimble/memory/bytes.h>
#include <thimble/memory/summary.h>

namespace thimble {
namespace arena_compact_detail {

void refuse_inside_launch(const char* what) {
  if (is_launching()) throw Error(std::string("arena: ") + what + " inside a launch, whose addresses would move");
}

}  // namespace arena_compact_detail

/// One compaction: no launch runs while it lives; books its end if anything moved.
class Arena::Moving {
 public:
  explicit Moving(Arena& arena) noexcept
      : arena_(arena),
        start_(std::chrono::steady_clock::now()),
        blocks_before_(arena.now_.moved_blocks),
        no_launches_(arena.device()) {
    arena_.backing_->begin_moves();
  }

  ~Moving() {
    arena_.backing_->end_moves();
    if (arena_.now_.moved_blocks == blocks_before_) return;
    ++arena_.now_.compaction_count;
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start_;
    arena_.now_.compaction_time.ms += elapsed.count();
  }
  Moving(const Moving&) = delete;
  Moving& operator=(const Moving&) = delete;

 private:
  Arena& arena_;
  std::chrono::steady_clock::time_point start_;
  std::uint64_t blocks_before_;
  NoLaunches no_launches_;
};

std::size_t Arena::compact() {
  arena_compact_detail::refuse_inside_launch("compact");
  const std::lock_guard guard(*lock());
  return compact_locked();
}

std::size_t Arena::safe_point() {
  arena_compact_detail::refuse_inside_launch("safe_point");
  const std::lock_guard guard(*lock());
  return fragmentation() > tolerated_fragmentation_ ? compact_locked() : 0;
}

Arena::Freeze::Freeze(Arena& arena) : arena_(arena) {
  const std::lock_guard guard(*arena_.lock());
  ++arena_.freezes_;
}

Arena::Freeze::~Freeze() {
  const std::lock_guard guard(*arena_.lock());
  --arena_.freezes_;
}

std::size_t Arena::compact_locked() {
  if (freezes_ > 0 || now_.allocated_bytes == spans_->height()) return 0;  // no holes
  const std::uint64_t before = now_.moved_bytes;
  const Moving moving(*this);
  slide_all(remap_from_bytes_ > 0);
  return now_.moved_bytes - before;
}

void Arena::slide_all(bool may_remap) noexcept {
  for (Tlsf::Span* span = spans_->first(); span != nullptr; span = span->next) {
    if (!span->is_free && !is_pinned(*span) && !slide(span, 0, may_remap)) return;
  }
}

/// Slides one block down to `floor` or to the block below it. False when it is refused pages or spans; then nothing has
/// changed.
bool Arena::slide(Tlsf::Span* span, std::size_t floor, bool may_remap) noexcept {
  const std::size_t from = span->offset;
  const std::size_t to = spans_->slide_target(span, floor);
  if (to == from) return true;
  if (!spans_->ready()) return false;
  if (!may_remap || !move_pages(*span, to)) {
    if (to + span->size > pages_.solid_bytes && commit(to, to + span->size) != std::errc{}) return false;
    backing_->move(from, to, span->bytes, nullptr);
  }
  spans_->slide(span, to);
  span->address = base_ + to;
  if (poison_) {
    const std::size_t end = from + span->size;  // whole granules of the gap may have no pages: they were remapped
    for (std::size_t at = std::max(from, span->end()); at < end;) {
      const std::size_t index = at / pages_.granule, stop = std::min(end, (index + 1) * pages_.granule);
      if (pages_.has(index)) backing_->fill(at, stop - at, poison_value, nullptr);
      at = stop;
    }
  }
  ++now_.moved_blocks;
  now_.moved_bytes += span->bytes;
  return true;
}

/// Moves a block's whole granules down to `to` by their pages and copies its ends. False, with nothing moved, where the
/// rule requires a copy or pages are refused.
bool Arena::move_pages(const Tlsf::Span& span, std::size_t to) noexcept {
  const std::size_t from = span.offset, granule = pages_.granule;
  const PageMove move = page_move(from, to, span.size, granule);
  const std::size_t whole = move.count * granule;
  if (whole == 0 || whole < remap_from_bytes_) return false;
  const std::size_t begin = move.first * granule, target = begin - move.distance * granule, end = begin + whole;
  const std::size_t head = begin - from, rest = span.end() - end;
  // Pages for the copies: the head goes below the granules, the rest to the granule above their new address, whose
  // pages are the first displaced ones where the two ranges overlap.
  const std::size_t above = move.count < move.distance ? target + whole : target;
  if (head > 0 && commit(to, target) != std::errc{}) return false;
  if (rest > 0 && commit(above, above + granule) != std::errc{}) return false;
  if (head > 0) backing_->move(from, to, head, nullptr);
  if (!backing_->remap(begin, target, whole)) return false;
  pages_.remap(move.first, move.first - move.distance, move.count);
  if (from + span.bytes > end) backing_->move(end, target + whole, from + span.bytes - end, nullptr);
  now_.remapped_bytes += std::min(span.bytes - head, whole);
  return true;
}

/// Slides the blocks of a window; returns the request's place in the hole, or none when a slide was refused.
Tlsf::Place Arena::slide_window(const CompactionWindow& window, const Request& request) noexcept {
  Tlsf::Place none{nullptr, 0, 0};
  Tlsf::Span* hole = window.first;
  std::size_t begin = window.begin;
  // A slide may join the free span behind the block with the next, so follow the list from the moved block.
  Tlsf::Span* span = hole != nullptr ? hole->next : nullptr;
  for (std::size_t left = window.blocks; left > 0; span = span->next) {
    if (span->is_free) continue;
    if (!slide(span, window.begin, false)) return none;
    hole = span->next;
    begin = span->end();
    --left;
  }
  const std::size_t unit = spans_->unit(), alignment = std::max(request.alignment, unit);
  const std::size_t offset = (begin + alignment - 1) & ~(alignment - 1);
  const std::size_t size = (request.bytes + unit - 1) & ~(unit - 1);
  return spans_->ready() ? Tlsf::Place{hole, offset, size, static_cast<std::uint32_t>(alignment)} : none;
}

/// A place for a request that no free span fits, made by sliding; none when sliding does not suffice.
Tlsf::Place Arena::make_room(const Request& request) {
  Tlsf::Place none{nullptr, 0, 0};
  if (compaction_ == Compaction::never || freezes_ > 0 || request.bytes > spans_->limit() - now_.allocated_bytes)
    return none;
  const Moving moving(*this);
  const CompactionWindow window = cheapest_window(*spans_, nullptr, request.bytes, request.alignment);
  if (window.is_found()) return slide_window(window, request);
  if (bytes_after_sliding_all(*spans_, request.alignment) < request.bytes) return none;
  slide_all(false);
  return spans_->ready() ? spans_->find(request.bytes, request.alignment) : none;
}

/// The same using only pages that exist already.
Tlsf::Place Arena::make_room_on_pages(const Request& request) {
  Tlsf::Place none{nullptr, 0, 0};
  const Moving moving(*this);
  const CompactionWindow window = cheapest_window(*spans_, &pages_, request.bytes, request.alignment);
  const bool may_slide = compaction_ != Compaction::never && freezes_ == 0;
  if (!window.is_found() || (!may_slide && window.blocks > 0)) return none;
  return slide_window(window, request);
}

/// The compactions so far, and the reasons that kept them from doing more.
std::string Arena::compaction_text() const {
  std::size_t pinned_blocks = 0, pinned_bytes = 0;
  for (const Tlsf::Span* span = spans_->first(); span != nullptr; span = span->next) {
    if (span->is_free || !is_pinned(*span)) continue;
    ++pinned_blocks;
    pinned_bytes += span->bytes;
  }
  Statistics figures = now_;
  figures.device_time = backing_->move_time();
  std::string text = memory::compaction_to_string(figures);
  if (compaction_ == Compaction::never) text += ", switched off for requests";
  if (freezes_ > 0) text += ", held back by a captured step";
  if (pinned_blocks > 0) {
    text += ", " + std::to_string(pinned_blocks) + " blocks of " + memory::exact_bytes(pinned_bytes) + " are pinned";
  }
  return text;
}

}  // namespace thimble
