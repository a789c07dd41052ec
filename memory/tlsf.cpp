#include <thimble/memory/tlsf.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <new>
#include <utility>

namespace thimble {
namespace tlsf_detail {

constexpr std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) & ~(to - 1); }

}  // namespace tlsf_detail

Tlsf::Tlsf(std::size_t unit_bytes, std::size_t limit_bytes)
    : unit_(unit_bytes), unit_bits_(std::countr_zero(unit_bytes)), limit_(limit_bytes & ~(unit_bytes - 1)) {
  assert(std::has_single_bit(unit_bytes));
}

Tlsf::~Tlsf() {
  while (chunks_ != nullptr) delete std::exchange(chunks_, chunks_->next);
}

Tlsf::Bin Tlsf::bin_of(std::size_t size) const noexcept {
  const std::size_t units = size >> unit_bits_;
  if (units < bins_per_level) return {0, units};
  const auto log2 = static_cast<std::size_t>(std::bit_width(units) - 1);
  return {log2 - second_level_bits + 1, (units >> (log2 - second_level_bits)) - bins_per_level};
}

/// Head of the first occupied bin after `bin`.
Tlsf::Span* Tlsf::next_occupied(Bin bin) const noexcept {
  const std::uint32_t in_level =
      bin.index + 1 < bins_per_level ? occupied_[bin.level] & (~std::uint32_t{0} << (bin.index + 1)) : 0;
  if (in_level != 0) return bins_[bin.level][static_cast<std::size_t>(std::countr_zero(in_level))];
  const std::uint64_t above = levels_ & (~std::uint64_t{0} << (bin.level + 1));
  if (above == 0) return nullptr;
  const auto level = static_cast<std::size_t>(std::countr_zero(above));
  return bins_[level][static_cast<std::size_t>(std::countr_zero(occupied_[level]))];
}

Tlsf::Place Tlsf::find(std::size_t bytes, std::size_t alignment) const noexcept {
  using tlsf_detail::round_up;
  if (bytes > limit_) return {nullptr, 0, 0};  // also keeps the sums below from wrapping
  alignment = std::max(alignment, unit_);
  const std::size_t size = round_up(bytes, unit_);
  Span* span = find_in_bins(size, alignment);
  if (span == nullptr) {
    const std::size_t offset = round_up(height_, alignment);
    if (offset <= limit_ && size <= limit_ - offset) {
      return {nullptr, offset, size, static_cast<std::uint32_t>(alignment)};
    }
    span = find_anywhere(size, alignment);
    if (span == nullptr) return {nullptr, 0, 0};
  }
  return {span, round_up(span->offset, alignment), size, static_cast<std::uint32_t>(alignment)};
}

Tlsf::Span* Tlsf::find_in_bins(std::size_t size, std::size_t alignment) const noexcept {
  if (levels_ == 0) return nullptr;
  const Bin bin = bin_of(size);
  Span* best = nullptr;
  int steps = 0;
  for (Span* span = bins_[bin.level][bin.index]; span != nullptr && steps < walk_limit;
       span = span->bin_next, ++steps) {
    const bool fits = tlsf_detail::round_up(span->offset, alignment) + size <= span->end();
    if (fits && (best == nullptr || span->size < best->size)) best = span;
  }
  if (best != nullptr) return best;
  // In any bin after that of size + alignment - unit every span fits, wherever it lies.
  return next_occupied(bin_of(size + alignment - unit_));
}

/// The lowest span that fits: for a request that has no other chance.
Tlsf::Span* Tlsf::find_anywhere(std::size_t size, std::size_t alignment) const noexcept {
  for (Span* span = first_; span != nullptr; span = span->next) {
    if (span->is_free && tlsf_detail::round_up(span->offset, alignment) + size <= span->end()) return span;
  }
  return nullptr;
}

Tlsf::Span* Tlsf::take(const Place& place) noexcept {
  Span* span = place.span;
  if (span == nullptr) {
    span = new_span();
    span->offset = height_;
    span->size = place.end() - height_;
    span->previous = last_;
    (last_ != nullptr ? last_->next : first_) = span;
    last_ = span;
    height_ = place.end();
  } else {
    remove(span);
  }
  if (place.offset > span->offset) {
    insert(span_ahead(span, span->offset, place.offset - span->offset));
    span->size = span->end() - place.offset;
    span->offset = place.offset;
  }
  if (span->size > place.size) {
    // The rest keeps this span's place in the list; the live part goes ahead of it.
    Span* const live = span_ahead(span, span->offset, place.size);
    span->offset += place.size;
    span->size -= place.size;
    insert(span);
    span = live;
  }
  span->is_free = false;
  span->alignment = place.alignment;
  return span;
}

void Tlsf::free(Span* span) noexcept {
  assert(!span->is_free && "freed twice");
  if (Span* const before = span->previous; before != nullptr && before->is_free) {
    remove(before);
    span->offset = before->offset;
    span->size += before->size;
    unlink(before);
    recycle(before);
  }
  if (Span* const after = span->next; after == nullptr) {
    height_ = span->offset;
    unlink(span);
    recycle(span);
    return;
  } else if (after->is_free) {
    remove(after);
    span->size += after->size;
    unlink(after);
    recycle(after);
  }
  insert(span);
}

std::size_t Tlsf::slide_target(const Span* span, std::size_t floor) const noexcept {
  const Span* const hole = span->previous;
  if (hole == nullptr || !hole->is_free) return span->offset;
  return std::min(tlsf_detail::round_up(std::max(hole->offset, floor), span->alignment), span->offset);
}

void Tlsf::slide(Span* span, std::size_t offset) noexcept {
  const std::size_t passed = span->offset - offset;
  if (passed == 0) return;
  Span* const hole = span->previous;
  remove(hole);
  if (offset > hole->offset) insert(span_ahead(hole, hole->offset, offset - hole->offset));
  unlink(hole);
  span->offset = offset;
  Span* const after = span->next;
  if (after == nullptr) {
    height_ = span->end();
    recycle(hole);
  } else if (after->is_free) {
    remove(after);
    after->offset -= passed;
    after->size += passed;
    insert(after);
    recycle(hole);
  } else {
    hole->offset = span->end();
    hole->size = passed;
    hole->previous = span;
    hole->next = after;
    span->next = after->previous = hole;
    insert(hole);
  }
}

std::size_t Tlsf::largest_free_bytes() const noexcept {
  if (levels_ == 0) return 0;
  const auto level = static_cast<std::size_t>(std::bit_width(levels_) - 1);
  const auto index = static_cast<std::size_t>(std::bit_width(occupied_[level]) - 1);
  std::size_t largest = 0;
  for (const Span* span = bins_[level][index]; span != nullptr; span = span->bin_next) {
    largest = std::max(largest, span->size);
  }
  return largest;
}

/// Puts a free span into its bin, in address order as far as walk_limit entries tell.
void Tlsf::insert(Span* span) noexcept {
  const Bin bin = bin_of(span->size);
  Span*& head = bins_[bin.level][bin.index];
  Span* before = nullptr;
  Span* after = head;
  for (int steps = 0; after != nullptr && after->offset < span->offset && steps < walk_limit; ++steps) {
    before = after;
    after = after->bin_next;
  }
  span->is_free = true;
  span->bin_previous = before;
  span->bin_next = after;
  (before != nullptr ? before->bin_next : head) = span;
  if (after != nullptr) after->bin_previous = span;
  occupied_[bin.level] |= std::uint32_t{1} << bin.index;
  levels_ |= std::uint64_t{1} << bin.level;
}

/// Takes a free span out of its bin.
void Tlsf::remove(Span* span) noexcept {
  if (span->bin_next != nullptr) span->bin_next->bin_previous = span->bin_previous;
  if (span->bin_previous != nullptr) {
    span->bin_previous->bin_next = span->bin_next;
    return;
  }
  const Bin bin = bin_of(span->size);
  bins_[bin.level][bin.index] = span->bin_next;
  if (span->bin_next != nullptr) return;
  occupied_[bin.level] &= ~(std::uint32_t{1} << bin.index);
  if (occupied_[bin.level] == 0) levels_ &= ~(std::uint64_t{1} << bin.level);
}

/// A new span that lies in the address list just ahead of `span`.
Tlsf::Span* Tlsf::span_ahead(Span* span, std::size_t offset, std::size_t size) noexcept {
  Span* const ahead = new_span();
  ahead->offset = offset;
  ahead->size = size;
  ahead->previous = span->previous;
  ahead->next = span;
  (span->previous != nullptr ? span->previous->next : first_) = ahead;
  span->previous = ahead;
  return ahead;
}

/// Takes a span out of the address list.
void Tlsf::unlink(Span* span) noexcept {
  (span->previous != nullptr ? span->previous->next : first_) = span->next;
  (span->next != nullptr ? span->next->previous : last_) = span->previous;
}

bool Tlsf::add_chunk() noexcept {
  auto* const chunk = new (std::nothrow) Chunk;
  if (chunk == nullptr) return false;
  chunk->next = chunks_;
  chunks_ = chunk;
  for (std::size_t i = chunk->spans.size(); i-- > 0;) recycle(&chunk->spans[i]);
  return true;
}

Tlsf::Span* Tlsf::new_span() noexcept {
  Span* const span = recycled_;
  recycled_ = span->bin_next;
  --recycled_count_;
  span->previous = span->next = nullptr;
  return span;
}

void Tlsf::recycle(Span* span) noexcept {
  span->bin_next = recycled_;
  recycled_ = span;
  ++recycled_count_;
}

}  // namespace thimble
