#pragma once
// Two-level segregated fit over a range of offsets (Masmano, Ripoll, Crespo, Real: "TLSF: a new dynamic memory
// allocator for real-time systems", ECRTS 2004), with all metadata outside the range.
//
// Policy
// - Constant time: two bitmaps find the bin, and a search examines at most `walk_limit` entries of it. Only a request
//   that would otherwise be refused examines every free span.
// - Good fit: takes the smallest span in the request's bin that fits, else the first span of the next occupied bin.
// - Low height: bins are (nearly) in address order, and the lowest address wins among equals. The top grows only when
//   no free span fits. Free bytes at the top are not a span: the height sinks below them.
// - Coalescing is immediate: no two free spans are neighbours.
// - Deterministic: offsets depend only on the sequence of requests, never on addresses or time.
// - Spans come from chunks and are recycled, so a steady state calls no allocator. They never move, so a Block is a
//   stable handle. `first()` and `Span::next` list them by address, as sliding requires.
// - A span is one cache line: a free span keeps its links in fields that only live spans use.
// - Few unpredictable branches: taking a span out of its bin has one, finding the next occupied bin none. A list ends
//   at a dummy span that can be read and written (`nil_`), not at a null pointer.
// - `find` changes nothing and `take` cannot fail: between them the arena commits pages and may give up. `take_ready`
//   does both for a request that needs no pages, as all requests of a steady state.
//
// Terms
//   unit     granularity of offsets and sizes, in bytes
//   span     a section of the range, live or free; a live span is the caller's Block
//   bin      a list of free spans of one size class: 32 classes per power of two, exact below 64 units
//   height   end of the highest live span; 0 without one
//   limit    largest height
//
// Example, with units of 64 bytes
//   take 100, 200, 64   A [0, 128), B [128, 384), C [384, 448): each extends the top
//   free B              [128, 384) is 4 units and goes to bin 4
//   take 130            3 units: bin 3 is empty, bin 4 has one. [128, 320) is live, [320, 384) goes to bin 1
//   free C              C was the top: with [320, 384) below it the height sinks to 320, and no free span is left

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <thimble/core/tensor/resource.h>

namespace thimble::memory {

class Tlsf {
 public:
  /// A cache line on common ABIs; the first three members use the padding of Block.
  struct alignas(64) Span : Block {
    std::uint16_t bin = 0;             // of a free span
    std::uint8_t alignment_power = 0;  // of a live span's offset
    bool is_free = false;
    std::size_t offset = 0;
    std::size_t size = 0;      // bytes, a multiple of the unit
    Span* previous = nullptr;  // neighbours by address
    Span* next = nullptr;

    std::size_t end() const noexcept { return offset + size; }
    std::size_t alignment() const noexcept { return std::size_t{1} << alignment_power; }

   private:
    // Links of a free span: to the next one in its bin, and to the link that points here.
    friend class Tlsf;
    using Link = std::byte*;
    Link& link() noexcept { return address; }
    Span* linked() const noexcept { return reinterpret_cast<Span*>(address); }
    Link* linked_from() const noexcept { return reinterpret_cast<Link*>(Block::bytes); }
    void set_linked_from(Link* link) noexcept { Block::bytes = reinterpret_cast<std::uintptr_t>(link); }
  };

  /// The place of a request.
  struct Place {
    Span* span;          // the free span to cut; null extends the top
    std::size_t offset;  // aligned
    std::size_t size;    // bytes, a multiple of the unit; 0 means no place
    std::uint32_t alignment = 1;

    bool is_found() const noexcept { return size != 0; }
    std::size_t end() const noexcept { return offset + size; }
  };

  /// `unit_bytes` is a power of two; `limit_bytes` is rounded down to units.
  Tlsf(std::size_t unit_bytes, std::size_t limit_bytes);

  ~Tlsf();
  Tlsf(const Tlsf&) = delete;
  Tlsf& operator=(const Tlsf&) = delete;

  /// Prepares the spans that one `take` may need. False when the host has no memory for them.
  bool ready() noexcept { return recycled_count_ >= spans_per_take || add_chunk(); }

  /// find and take of `bytes` > 0 at the unit's alignment. Null, with nothing changed, if they need a new chunk of
  /// spans or a place that ends above `ready_bytes`.
  Span* take_ready(std::size_t bytes, std::size_t ready_bytes) noexcept;

  /// Finds a place for `bytes` > 0 at a multiple of `alignment` (a power of two). Changes nothing.
  Place find(std::size_t bytes, std::size_t alignment) const noexcept;

  /// Makes the place a live span. find() and then ready() have succeeded since the last change.
  Span* take(const Place& place) noexcept;

  void free(Span* span) noexcept;

  /// The lowest aligned offset, not below `floor`, that a live span can slide to in the free span just below it.
  /// Without such a span, its current offset.
  std::size_t slide_target(const Span* span, std::size_t floor) const noexcept;

  /// Slides a live span down to `offset`, its slide_target; the free bytes move above it. ready() has succeeded since
  /// the last change.
  void slide(Span* span, std::size_t offset) noexcept;

  std::size_t unit() const noexcept { return unit_; }
  std::size_t height() const noexcept { return height_; }
  std::size_t limit() const noexcept { return limit_; }

  /// Size of the largest free span below the height. Walks one bin.
  std::size_t largest_free_bytes() const noexcept;

  /// A digest of everything that determines the places of later requests: the spans by address and the order in each
  /// bin. States that place some request differently have different digests (collisions: 1 in 2^64).
  std::uint64_t digest() const noexcept;

  /// The span with the lowest address; follow `next`.
  const Span* first() const noexcept { return below_.next; }
  Span* first() noexcept { return below_.next; }

 private:
  static constexpr int second_level_bits = 5;
  static constexpr std::size_t bins_per_level = std::size_t{1} << second_level_bits;
  static constexpr std::size_t bin_count = bins_per_level * (64 - second_level_bits + 1);
  static constexpr std::size_t word_bits = 64;
  static constexpr std::size_t word_count = bin_count / word_bits + 1;  // the last has the bit for "no bin"
  static constexpr int walk_limit = 8;
  static constexpr std::size_t spans_per_take = 3;  // free ahead, live, free behind

  struct Chunk {
    Chunk* next;
    std::array<Span, 256> spans;
  };

  static Span* span_of(Span::Link link) noexcept { return reinterpret_cast<Span*>(link); }
  Span::Link no_link() noexcept { return reinterpret_cast<Span::Link>(&nil_); }
  std::size_t bin_of(std::size_t size) const noexcept;
  Span* next_occupied(std::size_t bin) const noexcept;
  Span* find_in_bins(std::size_t size, std::size_t alignment) const noexcept;
  Span* find_in_bins(std::size_t size) const noexcept;
  Span* find_anywhere(std::size_t size, std::size_t alignment) const noexcept;

  Span* extend_top(std::size_t end) noexcept;
  Span* cut_front(Span* span, std::size_t size) noexcept;
  void insert(Span* span) noexcept;
  void remove(Span* span) noexcept;
  Span* span_ahead(Span* span, std::size_t offset, std::size_t size) noexcept;
  void unlink(Span* span) noexcept;

  bool add_chunk() noexcept;
  Span* new_span() noexcept;
  void recycle(Span* span) noexcept;

  std::size_t unit_;
  int unit_bits_;
  std::size_t limit_;
  std::size_t height_ = 0;
  Span below_;            // ahead of the span with the lowest address; never free
  Span* last_ = &below_;  // the span with the highest address

  // A bitmap of words over a bitmap of bins; a set bit marks an occupied entry. One more bin, always marked, leads to
  // nil_, so that every search ends.
  std::uint64_t occupied_words_ = std::uint64_t{1} << (word_count - 1);
  std::array<std::uint64_t, word_count> occupied_{};
  std::array<Span::Link, bin_count + 1> bins_;  // head of each bin's list
  Span nil_;                                    // ends every bin's list; its offset is above all others

  Chunk* chunks_ = nullptr;
  std::size_t span_count_ = 0;
  std::unique_ptr<Span*[]> recycled_;  // recycled_count_ unused spans; has room for all spans
  std::size_t recycled_count_ = 0;
  std::size_t recycled_room_ = 0;
};

}  // namespace thimble::memory
