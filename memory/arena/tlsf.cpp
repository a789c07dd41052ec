#include <thimble/memory/arena/tlsf.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <new>
#include <utility>

#include <thimble/core/numbers/integers.h>

namespace thimble::memory {

Tlsf::Tlsf(std::size_t unit_bytes, std::size_t limit_bytes)
    : unit_(unit_bytes), unit_bits_(std::countr_zero(unit_bytes)), limit_(limit_bytes & ~(unit_bytes - 1)) {
  assert(std::has_single_bit(unit_bytes));
  nil_.offset = ~std::size_t{0};
  bins_.fill(no_link());
  occupied_[word_count - 1] = 1;
}

Tlsf::~Tlsf() {
  while (chunks_ != nullptr) delete std::exchange(chunks_, chunks_->next);
}

std::size_t Tlsf::bin_of(std::size_t size) const noexcept {
  const std::size_t units = size >> unit_bits_;
  // 0 where bins are exact
  const auto shift = static_cast<int>(std::bit_width(units | bins_per_level)) - (second_level_bits + 1);
  return static_cast<std::size_t>(shift) * bins_per_level + (units >> shift);
}

/// Head of the first occupied bin after `bin`, or nil_.
Tlsf::Span* Tlsf::next_occupied(std::size_t bin) const noexcept {
  const std::size_t first = bin + 1;
  std::size_t word = first / word_bits;
  std::uint64_t bits = occupied_[word] & (~std::uint64_t{0} << first % word_bits);
  // Whether this word has one is unpredictable, so compute both answers and select.
  const std::uint64_t words_above = occupied_words_ & (~std::uint64_t{1} << word);
  const std::size_t above = static_cast<std::size_t>(std::countr_zero(words_above)) % word_bits;
  const std::uint64_t bits_above = occupied_[above];
  word = bits != 0 ? word : above;
  bits = bits != 0 ? bits : bits_above;
  return span_of(bins_[word * word_bits + static_cast<std::size_t>(std::countr_zero(bits))]);
}

Tlsf::Place Tlsf::find(std::size_t bytes, std::size_t alignment) const noexcept {
  if (bytes > limit_) return {nullptr, 0, 0};  // also prevents overflow below
  alignment = std::max(alignment, unit_);
  const std::size_t size = round_up_to_power(bytes, unit_);
  const auto found_alignment = static_cast<std::uint32_t>(alignment);
  Span* span = find_in_bins(size, alignment);
  if (span == &nil_) {
    const std::size_t offset = round_up_to_power(height_, alignment);
    if (offset <= limit_ && size <= limit_ - offset) return {nullptr, offset, size, found_alignment};
    span = find_anywhere(size, alignment);
    if (span == nullptr) return {nullptr, 0, 0};
  }
  return {span, round_up_to_power(span->offset, alignment), size, found_alignment};
}

/// The span to use, or nil_.
Tlsf::Span* Tlsf::find_in_bins(std::size_t size, std::size_t alignment) const noexcept {
  const std::size_t bin = bin_of(size);
  Span* best = nullptr;
  int steps = 0;
  for (Span* span = span_of(bins_[bin]); span != &nil_ && steps < walk_limit; span = span->linked(), ++steps) {
    const bool fits = round_up_to_power(span->offset, alignment) + size <= span->end();
    if (!fits || (best != nullptr && span->size >= best->size)) continue;
    best = span;
    if (best->size == size) break;  // none fits better
  }
  if (best != nullptr) return best;
  // Every span in a later bin than the one of size + alignment - unit fits, whatever its offset.
  return next_occupied(bin_of(size + alignment - unit_));
}

/// For the unit's alignment, to which every offset is aligned.
Tlsf::Span* Tlsf::find_in_bins(std::size_t size) const noexcept {
  const std::size_t bin = bin_of(size);
  Span* best = nullptr;
  std::size_t best_size = ~std::size_t{0};
  int steps = 0;
  for (Span* span = span_of(bins_[bin]); span != &nil_ && steps < walk_limit; span = span->linked(), ++steps) {
    if (span->size == size) return span;  // none fits better
    if (span->size < size || span->size >= best_size) continue;
    best = span;
    best_size = span->size;
  }
  return best != nullptr ? best : next_occupied(bin);
}

/// The lowest span that fits, or null: the last resort.
Tlsf::Span* Tlsf::find_anywhere(std::size_t size, std::size_t alignment) const noexcept {
  for (Span* span = below_.next; span != nullptr; span = span->next) {
    if (span->is_free && round_up_to_power(span->offset, alignment) + size <= span->end()) return span;
  }
  return nullptr;
}

Tlsf::Span* Tlsf::take(const Place& place) noexcept {
  Span* span = place.span;
  if (span == nullptr) {
    span = extend_top(place.end());
  } else {
    remove(span);
  }
  if (place.offset > span->offset) {
    insert(span_ahead(span, span->offset, place.offset - span->offset));
    span->size = span->end() - place.offset;
    span->offset = place.offset;
  }
  if (span->size > place.size) span = cut_front(span, place.size);
  span->is_free = false;
  span->alignment_power = static_cast<std::uint8_t>(std::countr_zero(place.alignment));
  return span;
}

Tlsf::Span* Tlsf::take_ready(std::size_t bytes, std::size_t ready_bytes) noexcept {
  if (bytes > limit_ || recycled_count_ < spans_per_take) return nullptr;
  const std::size_t size = round_up_to_power(bytes, unit_);
  Span* span = find_in_bins(size);
  if (span == &nil_) {
    if (size > ready_bytes - std::min(ready_bytes, height_)) return nullptr;
    span = extend_top(height_ + size);
  } else {
    if (span->offset + size > ready_bytes) return nullptr;
    remove(span);
    if (span->size > size) span = cut_front(span, size);
  }
  span->is_free = false;
  span->alignment_power = static_cast<std::uint8_t>(unit_bits_);
  return span;
}

/// A new span from the height to `end`.
Tlsf::Span* Tlsf::extend_top(std::size_t end) noexcept {
  Span* const span = new_span();
  span->offset = height_;
  span->size = end - height_;
  span->previous = last_;
  span->next = nullptr;
  last_->next = span;
  last_ = span;
  height_ = end;
  return span;
}

/// Cuts `size` bytes off the front of a free span that is in no bin. The rest goes into its bin.
Tlsf::Span* Tlsf::cut_front(Span* span, std::size_t size) noexcept {
  Span* const front = span_ahead(span, span->offset, size);
  span->offset += size;
  span->size -= size;
  insert(span);
  return front;
}

void Tlsf::free(Span* span) noexcept {
  assert(!span->is_free && "freed twice");
  if (Span* const before = span->previous; before->is_free) {
    remove(before);
    span->offset = before->offset;
    span->size += before->size;
    span->previous = before->previous;
    before->previous->next = span;
    recycle(before);
  }
  Span* const after = span->next;
  if (after == nullptr) {
    height_ = span->offset;
    last_ = span->previous;
    last_->next = nullptr;
    recycle(span);
    return;
  }
  if (after->is_free) {
    remove(after);
    span->size += after->size;
    unlink(after);
    recycle(after);
  }
  insert(span);
}

std::size_t Tlsf::slide_target(const Span* span, std::size_t floor) const noexcept {
  const Span* const hole = span->previous;
  if (!hole->is_free) return span->offset;
  return std::min(round_up_to_power(std::max(hole->offset, floor), span->alignment()), span->offset);
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
  const std::uint64_t words = occupied_words_ & ((std::uint64_t{1} << (word_count - 1)) - 1);
  if (words == 0) return 0;
  const auto word = static_cast<std::size_t>(std::bit_width(words) - 1);
  const auto bit = static_cast<std::size_t>(std::bit_width(occupied_[word]) - 1);
  std::size_t largest = 0;
  for (const Span* span = span_of(bins_[word * word_bits + bit]); span != &nil_; span = span->linked()) {
    largest = std::max(largest, span->size);
  }
  return largest;
}

std::uint64_t Tlsf::digest() const noexcept {
  std::uint64_t digest = 0;
  const auto add = [&digest](std::uint64_t number) {  // splitmix64's finalizer (Steele, Lea, Flood 2014)
    digest += number + 0x9E3779B97F4A7C15;
    digest = (digest ^ digest >> 30) * 0xBF58476D1CE4E5B9;
    digest = (digest ^ digest >> 27) * 0x94D049BB133111EB;
    digest ^= digest >> 31;
  };
  for (const Span* span = below_.next; span != nullptr; span = span->next) {
    add(span->offset);
    add(span->size);
    add(span->is_free ? 1 : 0);
  }
  for (std::size_t bin = 0; bin < bin_count; ++bin) {
    for (const Span* span = span_of(bins_[bin]); span != &nil_; span = span->linked()) add(span->offset);
  }
  return digest;
}

/// Puts a free span into its bin, in address order among the first walk_limit entries.
void Tlsf::insert(Span* span) noexcept {
  const std::size_t bin = bin_of(span->size);
  Span::Link* link = &bins_[bin];
  Span* after = span_of(*link);
  for (int steps = 0; after->offset < span->offset && steps < walk_limit; ++steps) {
    link = &after->link();
    after = span_of(*link);
  }
  span->is_free = true;
  span->bin = static_cast<std::uint16_t>(bin);
  span->link() = *link;
  span->set_linked_from(link);
  after->set_linked_from(&span->link());
  *link = reinterpret_cast<Span::Link>(span);
  occupied_[bin / word_bits] |= std::uint64_t{1} << bin % word_bits;
  occupied_words_ |= std::uint64_t{1} << bin / word_bits;
}

/// Takes a free span out of its bin.
void Tlsf::remove(Span* span) noexcept {
  *span->linked_from() = span->link();
  span->linked()->set_linked_from(span->linked_from());
  const std::size_t bin = span->bin;
  if (bins_[bin] != no_link()) return;
  std::uint64_t& bits = occupied_[bin / word_bits];
  bits &= ~(std::uint64_t{1} << bin % word_bits);
  occupied_words_ &= ~(std::uint64_t{bits == 0} << bin / word_bits);
}

/// A new span in the address list just ahead of `span`.
Tlsf::Span* Tlsf::span_ahead(Span* span, std::size_t offset, std::size_t size) noexcept {
  Span* const ahead = new_span();
  ahead->offset = offset;
  ahead->size = size;
  ahead->previous = span->previous;
  ahead->next = span;
  span->previous->next = ahead;
  span->previous = ahead;
  return ahead;
}

/// Takes a span out of the address list.
void Tlsf::unlink(Span* span) noexcept {
  span->previous->next = span->next;
  (span->next != nullptr ? span->next->previous : last_) = span->previous;
}

bool Tlsf::add_chunk() noexcept {
  auto chunk = std::unique_ptr<Chunk>(new (std::nothrow) Chunk);
  if (chunk == nullptr) return false;
  const std::size_t count = span_count_ + chunk->spans.size();
  if (count > recycled_room_) {
    const std::size_t room = std::max(count, 2 * recycled_room_);
    auto recycled = std::unique_ptr<Span*[]>(new (std::nothrow) Span*[room]);
    if (recycled == nullptr) return false;
    std::copy_n(recycled_.get(), recycled_count_, recycled.get());
    recycled_ = std::move(recycled);
    recycled_room_ = room;
  }
  span_count_ = count;
  for (std::size_t i = chunk->spans.size(); i-- > 0;) recycle(&chunk->spans[i]);
  chunk->next = chunks_;
  chunks_ = chunk.release();
  return true;
}

Tlsf::Span* Tlsf::new_span() noexcept { return recycled_[--recycled_count_]; }

void Tlsf::recycle(Span* span) noexcept { recycled_[recycled_count_++] = span; }

}  // namespace thimble::memory
