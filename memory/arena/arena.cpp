#include <thimble/memory/arena/arena.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <new>

#include <thimble/core/error.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/process/process.h>
#include <thimble/memory/summary.h>
#include <thimble/memory/units.h>

namespace thimble::memory {
namespace {

constexpr std::size_t unbounded_bytes = std::size_t{1} << 50;  // a trillion parameters have 14 TiB of model state

// A process has 2^47 addresses for hundreds of arenas, so an unbounded host arena reserves only twice the machine's
// memory, more than it can ever fill.
std::size_t usual_reserve_bytes(Device device) {
  if (device.is_dry) return unbounded_bytes;
  const std::size_t most = std::size_t{1} << 40, memory = device == cpu ? process::physical_bytes() : 0;
  return memory == 0 ? most : std::min(most, 2 * memory);
}

double share_of_holes(std::size_t used, std::size_t of) {
  return of == 0 ? 0.0 : 1.0 - static_cast<double>(used) / static_cast<double>(of);
}

}  // namespace

Arena::Arena(std::unique_ptr<Backing> backing, Options options)
    : LockedResource(std::make_shared<ResourceLock>()),
      backing_(std::move(backing)),
      poison_(options.poison),
      compaction_(options.compaction),
      tolerated_fragmentation_(options.tolerated_fragmentation),
      remap_from_bytes_(backing_->can_remap() ? options.remap_from_bytes : 0) {
  pages_.granule = backing_->granule();
  reserve(options);
  // An unbounded arena has a dry arena's capacity on any machine; commit refuses pages beyond the reserved range.
  const bool is_unbounded = options.reserve_bytes == 0 && options.capacity_bytes == 0;
  std::size_t limit = is_unbounded ? unbounded_bytes : reserved_bytes_;
  if (options.capacity_bytes != 0) limit = std::min(limit, options.capacity_bytes & ~(pages_.granule - 1));
  now_.capacity_bytes = limit;
  spans_ = std::make_unique<Tlsf>(backing_->alignment(), limit);
}

void Arena::reserve(const Options& options) {
  std::size_t wanted = options.reserve_bytes;
  if (wanted == 0) wanted = options.capacity_bytes;
  if (wanted == 0) wanted = usual_reserve_bytes(device());
  wanted = std::max(wanted & ~(pages_.granule - 1), pages_.granule);
  for (std::size_t bytes = wanted; bytes >= pages_.granule; bytes = (bytes / 2) & ~(pages_.granule - 1)) {
    base_ = backing_->reserve(bytes);
    if (base_ == nullptr) continue;
    reserved_bytes_ = bytes;
    return;
  }
  throw OutOfMemory("out of memory on " + to_string(device()) +
                        ": the system refuses to reserve addresses, asked for " + exact_bytes(wanted) +
                        " down to one granule of " + exact_bytes(pages_.granule) +
                        "; a higher RLIMIT_AS (ulimit -v) would give them",
                    {.requested_bytes = pages_.granule});
}

Arena::~Arena() { assert(now_.live_blocks == 0 && "an arena outlives its blocks"); }

void Arena::check(const Request& request) const {
  if (request.bytes == 0) throw ValueError("arena: allocate of 0 bytes, expected at least 1");
  if (request.alignment == 0 || (request.alignment & (request.alignment - 1)) != 0 ||
      request.alignment > pages_.granule) {
    throw ValueError("arena: allocate with alignment " + std::to_string(request.alignment) +
                     ", expected a power of two up to " + std::to_string(pages_.granule));
  }
  if (is_launching())
    throw Error("arena: allocate inside a launch; an operator allocates all it needs before it launches");
}

Block* Arena::allocate(const Request& request) {
  const std::lock_guard hold(*lock());
  return do_allocate(request);
}

void Arena::deallocate(Block* block, Stream stream) noexcept {
  if (block == nullptr) return;
  const std::lock_guard hold(*lock());
  do_deallocate(block, stream);
}

Block* Arena::do_allocate(const Request& request) {
  const bool is_plain = request.bytes != 0 && request.alignment - 1 < spans_->unit() &&
                        (request.alignment & (request.alignment - 1)) == 0 && launch_detail::depth == 0 &&
                        compaction_ != Compaction::before_every_allocation;
  Tlsf::Span* span = is_plain ? spans_->take_ready(request.bytes, pages_.solid_bytes) : nullptr;
  if (span == nullptr) span = take_span(request);
  span->address = base_ + span->offset;
  span->bytes = request.bytes;
  span->category = request.category;
  span->path = request.path;
  now_.requested_bytes += request.bytes;
  now_.allocated_bytes += span->size;
  ++now_.live_blocks;
  ++now_.allocation_count;
  now_.peak_requested_bytes = std::max(now_.peak_requested_bytes, now_.requested_bytes);
  now_.peak_allocated_bytes = std::max(now_.peak_allocated_bytes, now_.allocated_bytes);
  now_.peak_height_bytes = std::max(now_.peak_height_bytes, spans_->height());
  if (poison_) backing_->fill(span->offset, span->size, poison_value, request.stream);
  return span;
}

/// The slow path of do_allocate: checks the request, commits pages and slides blocks if necessary. Throws the same
/// errors.
Tlsf::Span* Arena::take_span(const Request& request) {
  check(request);
  if (!spans_->ready()) refuse(request, "the host has no memory for the arena's own books");
  if (compaction_ == Compaction::before_every_allocation) compact_locked();
  Tlsf::Place place = spans_->find(request.bytes, request.alignment);
  if (!place.is_found()) place = make_room(request);
  if (!place.is_found()) refuse(request, "no free block is large enough within the capacity");
  if (place.end() > pages_.solid_bytes) {
    const std::errc error = commit(place.offset, place.end());
    if (error != std::errc{}) place = make_room_on_pages(request);
    if (!place.is_found()) refuse(request, "the system refuses more pages: " + backing_->refusal_text(error));
  }
  return spans_->take(place);
}

void Arena::do_deallocate(Block* block, Stream stream) noexcept {
  // Deadlock: the launch would wait for the lock, its holder may be moving blocks, and that waits for the launch.
  assert(!is_launching() && "nothing is freed inside of a launch");
  auto* const span = static_cast<Tlsf::Span*>(block);
  if (poison_) backing_->fill(span->offset, span->size, poison_value, stream);
  now_.requested_bytes -= span->bytes;
  now_.allocated_bytes -= span->size;
  --now_.live_blocks;
  spans_->free(span);
}

void Arena::do_relabel(Block* block, Category category) noexcept { block->category = category; }

/// Calls body(begin, end) in bytes for each maximal run of granules in [first, last) with pages (or without), until
/// body returns false. Returns false then, else true.
template <class Body>
bool Arena::each_run(bool with_pages, std::size_t first, std::size_t last, Body&& body) const {
  for (std::size_t at = first; at < last;) {
    std::size_t end = at;
    while (end < last && pages_.has_pages[end] == with_pages) ++end;
    if (end > at && !body(at * pages_.granule, end * pages_.granule)) return false;
    at = end + 1;
  }
  return true;
}

/// Puts pages under [begin, end) where there are none. On an error nothing has changed.
std::errc Arena::commit(std::size_t begin, std::size_t end) noexcept {
  const std::size_t first = begin / pages_.granule;
  const std::size_t last = (end + pages_.granule - 1) / pages_.granule;
  if (last * pages_.granule > reserved_bytes_) return std::errc::not_enough_memory;
  try {
    if (pages_.has_pages.size() < last) pages_.has_pages.resize(last, false);
  } catch (const std::bad_alloc&) {
    return std::errc::not_enough_memory;
  }
  std::errc error{};
  std::size_t done = first;  // this call committed the unmarked granules below it
  const bool is_complete = each_run(false, first, last, [&](std::size_t from, std::size_t to) {
    error = backing_->commit(from, to - from);
    if (error != std::errc{}) return false;
    now_.committed_bytes += to - from;
    ++now_.commit_count;
    done = to / pages_.granule;
    return true;
  });
  if (!is_complete) {
    each_run(false, first, done, [&](std::size_t from, std::size_t to) {
      backing_->decommit(from, to - from);
      now_.committed_bytes -= to - from;
      ++now_.decommit_count;
      return true;
    });
    return error;
  }
  for (std::size_t at = first; at < last; ++at) pages_.has_pages[at] = true;
  pages_.extend_solid();
  now_.peak_committed_bytes = std::max(now_.peak_committed_bytes, now_.committed_bytes);
  return {};
}

std::size_t Arena::trim() {
  const std::lock_guard guard(*lock());
  const std::size_t before = now_.committed_bytes;
  // Gives back the whole granules of [begin, end), which holds no live block.
  const auto give_back = [&](std::size_t begin, std::size_t end) {
    const std::size_t first = (begin + pages_.granule - 1) / pages_.granule;
    const std::size_t last = end / pages_.granule;
    each_run(true, first, last, [&](std::size_t from, std::size_t to) {
      backing_->decommit(from, to - from);
      now_.committed_bytes -= to - from;
      ++now_.decommit_count;
      pages_.solid_bytes = std::min(pages_.solid_bytes, from);
      return true;
    });
    for (std::size_t at = first; at < last; ++at) pages_.has_pages[at] = false;
  };
  for (const Tlsf::Span* span = spans_->first(); span != nullptr; span = span->next) {
    if (span->is_free) give_back(span->offset, span->end());
  }
  give_back(spans_->height(), pages_.has_pages.size() * pages_.granule);
  return before - now_.committed_bytes;
}

std::uint64_t Arena::layout_digest() const {
  const std::lock_guard guard(*lock());
  return spans_->digest();
}

const Arena* Arena::find(const Resource& resource) noexcept {
  const Resource* at = &resource;
  while (at != nullptr) {
    if (const auto* const arena = dynamic_cast<const Arena*>(at)) return arena;
    const auto* const decorator = dynamic_cast<const Decorator*>(at);
    at = decorator != nullptr ? &decorator->upstream() : nullptr;
  }
  return nullptr;
}

Arena::Statistics Arena::statistics() const {
  const std::lock_guard guard(*lock());
  Statistics all = now_;
  all.device_time = backing_->move_time();
  all.height_bytes = spans_->height();
  all.largest_free_bytes = largest_free_bytes();
  all.fragmentation = fragmentation();
  all.peak_fragmentation = share_of_holes(all.peak_allocated_bytes, all.peak_committed_bytes);
  return all;
}

void Arena::reset_peak() {
  const std::lock_guard guard(*lock());
  now_.peak_requested_bytes = now_.requested_bytes;
  now_.peak_allocated_bytes = now_.allocated_bytes;
  now_.peak_height_bytes = spans_->height();
  now_.peak_committed_bytes = now_.committed_bytes;
}

std::vector<Arena::LiveBlock> Arena::blocks() const {
  const std::lock_guard guard(*lock());
  std::vector<LiveBlock> placed;
  placed.reserve(now_.live_blocks);
  for (const Tlsf::Span* span = spans_->first(); span != nullptr; span = span->next) {
    if (!span->is_free) placed.push_back({span, span->offset, span->size});
  }
  return placed;
}

std::size_t Arena::largest_free_bytes() const noexcept {
  return std::max(spans_->largest_free_bytes(), spans_->limit() - spans_->height());
}

double Arena::fragmentation() const noexcept { return share_of_holes(now_.allocated_bytes, spans_->height()); }

void Arena::refuse(const Request& request, const std::string& why) const {
  char percent[16];
  std::snprintf(percent, sizeof percent, "%.1f %%", 100 * fragmentation());
  const std::string path(path_name(request.path));
  throw OutOfMemory("out of memory on " + to_string(device()) + ": requested " + exact_bytes(request.bytes) +
                        " with alignment " + std::to_string(request.alignment) + " as " +
                        std::string(to_string(request.category)) + (path.empty() ? "" : " of '" + path + "'") + ": " +
                        why + "; in use " + exact_bytes(now_.requested_bytes) + " in " +
                        std::to_string(now_.live_blocks) + " blocks, peak " + exact_bytes(now_.peak_requested_bytes) +
                        ", committed " + exact_bytes(now_.committed_bytes) + ", capacity " +
                        exact_bytes(now_.capacity_bytes) + ", largest free block " + exact_bytes(largest_free_bytes()) +
                        ", fragmentation " + percent + "; " + compaction_text(),
                    {.requested_bytes = request.bytes,
                     .in_use_bytes = now_.requested_bytes,
                     .peak_bytes = now_.peak_requested_bytes,
                     .capacity_bytes = now_.capacity_bytes,
                     .largest_free_bytes = largest_free_bytes()});
}

// ---- Compaction: slides blocks as memory/arena/compact.cpp plans it.

namespace {

void refuse_inside_launch(const char* what) {
  if (is_launching()) throw Error(std::string("arena: ") + what + " inside a launch, whose addresses would move");
}

}  // namespace

/// A scope of block moves: holds off launches, and counts a compaction if anything moved.
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
  refuse_inside_launch("compact");
  const std::lock_guard guard(*lock());
  return compact_locked();
}

std::size_t Arena::safe_point() {
  refuse_inside_launch("safe_point");
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

/// Slides one block down to `floor` or to the block below it. False, with nothing changed, when pages or spans are
/// refused.
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
    const std::size_t end = from + span->size;  // a remap may have left granules of the gap without pages
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

/// Remaps a block's whole granules down to `to` and copies its ends. False, with nothing moved, where the rule requires
/// a copy or pages are refused.
bool Arena::move_pages(const Tlsf::Span& span, std::size_t to) noexcept {
  const std::size_t from = span.offset, granule = pages_.granule;
  const PageMove move = page_move(from, to, span.size, granule);
  const std::size_t whole = move.count * granule;
  if (whole == 0 || whole < remap_from_bytes_) return false;
  const std::size_t begin = move.first * granule, target = begin - move.distance * granule, end = begin + whole;
  const std::size_t head = begin - from, rest = span.end() - end;
  // Pages for the copies. The head goes below the granules' new address, the rest to the granule above. Where the two
  // ranges overlap, the remap puts the first displaced pages there.
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

/// Slides the blocks of a window. Returns the request's place in the hole; no place if a slide is refused.
Tlsf::Place Arena::slide_window(const CompactionWindow& window, const Request& request) noexcept {
  Tlsf::Place none{nullptr, 0, 0};
  Tlsf::Span* hole = window.first;
  std::size_t begin = window.begin;
  // A slide may merge the free span behind the block with the next one, so follow the list from the moved block.
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

/// Slides blocks to make a place for a request that fits no free span. No place if sliding does not suffice.
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

/// make_room within the pages that exist already.
Tlsf::Place Arena::make_room_on_pages(const Request& request) {
  Tlsf::Place none{nullptr, 0, 0};
  const Moving moving(*this);
  const CompactionWindow window = cheapest_window(*spans_, &pages_, request.bytes, request.alignment);
  const bool may_slide = compaction_ != Compaction::never && freezes_ == 0;
  if (!window.is_found() || (!may_slide && window.blocks > 0)) return none;
  return slide_window(window, request);
}

/// The compactions so far, and the obstacles to further ones.
std::string Arena::compaction_text() const {
  std::size_t pinned_blocks = 0, pinned_bytes = 0;
  for (const Tlsf::Span* span = spans_->first(); span != nullptr; span = span->next) {
    if (span->is_free || !is_pinned(*span)) continue;
    ++pinned_blocks;
    pinned_bytes += span->bytes;
  }
  Statistics figures = now_;
  figures.device_time = backing_->move_time();
  std::string text = compaction_to_string(figures);
  if (compaction_ == Compaction::never) text += ", switched off for requests";
  if (freezes_ > 0) text += ", held back by a captured step";
  if (pinned_blocks > 0) {
    text += ", " + std::to_string(pinned_blocks) + " blocks of " + exact_bytes(pinned_bytes) + " are pinned";
  }
  return text;
}

}  // namespace thimble::memory
