#pragma once
// The arena: one reserved address range of a device, cut into blocks.
//
// Policy
// - The range is reserved once; pages are committed in granules when the height rises, touched once, and kept until
//   trim(). So peak committed bytes are the arena's need, and a plan predicts them.
// - Offsets come from two-level segregated fit (memory/arena/tlsf.h) and depend only on the sequence of requests: a dry
//   arena and a real one with the same granule and alignment give the same offsets and figures.
// - The range stores no metadata. Block handles are stable; the address in them may change when blocks are slid
//   together.
// - Compaction (memory/arena/compact.h, memory/arena/arena.cpp): when a request finds no hole though the free
//   bytes suffice, or the backing refuses pages though there are some, blocks are slid towards offset 0: as few bytes
//   as make the hole. compact() slides all of them, and so does safe_point() where holes are too large a fraction.
//   Nothing moves while a launch runs, and a pinned block never does. A dry arena compacts at the same events, with the
//   same offsets and figures; it has no launches, no pins, and its pages are never refused.
// - If the backing can, compact() and safe_point() move a block by its pages: the whole granules in it are mapped at
//   their new address, and the ends are copied. The rule: the distance is a whole number of granules, and the block's
//   granules are Options::remap_from_bytes or more. Requests copy only, because a remap waits for the device. Offsets
//   of blocks do not depend on it.
// - allocate gives the strong guarantee: it finds a place and commits pages before it changes anything.
// - Streams: one compute stream uses an arena, so the order of calls is the order of use.
// - The arena outlives its blocks: each block's owner holds the arena by shared_ptr.
//
// Terms
//   requested   bytes as requested, summed over live blocks
//   allocated   the same rounded to the alignment: the bytes that live blocks occupy
//   height      end of the highest live block
//   committed   bytes with pages under them ("reserved" in the literature on allocators): a multiple of the granule
//   capacity    bound of height and committed bytes, in whole granules
//   holes       free bytes below the height; fragmentation is their fraction of it
//   safe point  a point where blocks may move, for example between two steps
//   poison      test mode: 0xFF (a NaN in every float type) is written to new and freed blocks

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <thimble/memory/arena/backing.h>
#include <thimble/memory/arena/compact.h>
#include <thimble/memory/arena/lock.h>
#include <thimble/memory/arena/tlsf.h>

namespace thimble {

class Arena final : public LockedResource {
 public:
  enum class Compaction : std::uint8_t {
    when_needed,             ///< instead of refusing a request
    never,                   ///< only compact() and safe_point()
    before_every_allocation  ///< all blocks, then each request: tests that no code keeps an address
  };

  struct Options {
    std::size_t capacity_bytes = 0;  ///< bound of committed bytes, rounded down to granules; defaults to reserve_bytes,
                                     ///< or 1 PiB
    /// Addresses to reserve; defaults to the capacity, or twice the machine's memory (on GPUs 1 TiB, dry 1 PiB). Halved
    /// while refused.
    std::size_t reserve_bytes = 0;
    bool poison = false;  ///< fill new and freed blocks, and the gap behind a moved one, with 0xFF
    Compaction compaction = Compaction::when_needed;
    double tolerated_fragmentation = 0.25;                 ///< safe_point() compacts above it
    std::size_t remap_from_bytes = std::size_t{16} << 20;  ///< in whole granules of a block; 0 always copies
  };

  /// Wall time. It is reported, and equal to any other: comparisons of figures ignore it.
  struct Elapsed {
    double ms = 0;
    friend bool operator==(const Elapsed&, const Elapsed&) { return true; }
  };

  struct Statistics {
    std::size_t requested_bytes = 0;
    std::size_t peak_requested_bytes = 0;
    std::size_t allocated_bytes = 0;
    std::size_t peak_allocated_bytes = 0;
    std::size_t height_bytes = 0;
    std::size_t peak_height_bytes = 0;
    std::size_t committed_bytes = 0;
    std::size_t peak_committed_bytes = 0;
    std::size_t live_blocks = 0;
    std::size_t capacity_bytes = 0;
    std::size_t largest_free_bytes = 0;  ///< the largest request that fits, pages permitting
    std::uint64_t allocation_count = 0;  ///< since construction, like the next two
    std::uint64_t commit_count = 0;      ///< calls that put pages under the range
    std::uint64_t decommit_count = 0;    ///< calls that gave pages back
    std::uint64_t compaction_count = 0;  ///< calls that moved a block; this and the next four since construction
    std::uint64_t moved_blocks = 0;
    std::uint64_t moved_bytes = 0;     ///< requested bytes of moved blocks
    std::uint64_t remapped_bytes = 0;  ///< of these, moved with their pages; the rest was copied
    Elapsed compaction_time;           ///< of the host: includes waits for launches and remaps, excludes copies of a
                                       ///< GPU
    MoveTime device_time;              ///< of a GPU: time of its finished copies
    double fragmentation = 0;          ///< 1 - allocated / height: the fraction of the height in holes
    double peak_fragmentation = 0;     ///< 1 - peak allocated / peak committed

    friend bool operator==(const Statistics&, const Statistics&) = default;
  };

  /// Reserves the range. Throws OutOfMemory when not even one granule of addresses is available.
  Arena(std::unique_ptr<Backing> backing, Options options);
  explicit Arena(std::unique_ptr<Backing> backing) : Arena(std::move(backing), Options{}) {}
  ~Arena() override;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  memory::Block* allocate(const Request& request) override;
  void deallocate(memory::Block* block, Stream stream) noexcept override;
  memory::Device device() const noexcept override { return backing_->device(); }

  Statistics statistics() const;

  /// A digest of the offsets of blocks and holes and of their order in the bins (Tlsf::digest). When two steps with the
  /// same requests leave the same digest, every further such step needs the bytes of the second.
  std::uint64_t layout_digest() const;

  /// The arena below a stack of policies; null without one.
  static const Arena* find(const memory::Resource& resource) noexcept;

  /// Sets every peak to the present value.
  void reset_peak();

  /// Gives back the granules that no live block touches. Returns their bytes.
  std::size_t trim();

  /// Slides all unpinned blocks together. Waits for the launches of other threads. Returns the bytes moved. Throws
  /// Error when called inside a launch.
  std::size_t compact();

  /// Blocks may move here: compacts where holes are more than Options::tolerated_fragmentation of the height, else does
  /// nothing. Returns the bytes moved. Throws Error when called inside a launch.
  std::size_t safe_point();

  /// While one lives no block moves, and a request that would need a move is refused: a launch graph holds addresses
  /// (core/launch/launch_graph.h).
  class Freeze {
   public:
    explicit Freeze(Arena& arena);
    ~Freeze();
    Freeze(const Freeze&) = delete;
    Freeze& operator=(const Freeze&) = delete;

   private:
    Arena& arena_;
  };

  /// Live blocks by address.
  struct LiveBlock {
    const memory::Block* block;
    std::size_t offset;
    std::size_t allocated_bytes;
  };
  std::vector<LiveBlock> blocks() const;

  /// First address and size of the reserved range, and the smallest unit of commit.
  const std::byte* base() const noexcept { return base_; }
  std::size_t reserved_bytes() const noexcept { return reserved_bytes_; }
  std::size_t granule() const noexcept { return pages_.granule; }

 private:
  /// Throws OutOfMemory (capacity reached, or pages refused; nothing has changed), ValueError (0 bytes, or an alignment
  /// that is not a power of two or above the granule), Error (called inside a launch).
  memory::Block* do_allocate(const Request& request) override;
  void do_deallocate(memory::Block* block, Stream stream) noexcept override;
  void do_relabel(memory::Block* block, Category category) noexcept override;

  static constexpr std::byte poison_value{0xFF};

  void reserve(const Options& options);
  void check(const Request& request) const;
  Tlsf::Span* take_span(const Request& request);
  std::errc commit(std::size_t begin, std::size_t end) noexcept;
  template <class Body>
  bool each_run(bool with_pages, std::size_t first, std::size_t last, Body&& body) const;
  std::size_t largest_free_bytes() const noexcept;
  double fragmentation() const noexcept;

  class Moving;
  std::size_t compact_locked();
  void slide_all(bool may_remap) noexcept;
  bool slide(Tlsf::Span* span, std::size_t floor, bool may_remap) noexcept;
  bool move_pages(const Tlsf::Span& span, std::size_t to) noexcept;
  Tlsf::Place slide_window(const CompactionWindow& window, const Request& request) noexcept;
  Tlsf::Place make_room(const Request& request);
  Tlsf::Place make_room_on_pages(const Request& request);
  std::string compaction_text() const;
  [[noreturn]] void refuse(const Request& request, const std::string& why) const;

  std::unique_ptr<Backing> backing_;
  std::byte* base_ = nullptr;
  std::size_t reserved_bytes_ = 0;
  bool poison_ = false;
  Compaction compaction_ = Compaction::when_needed;
  int freezes_ = 0;  // alive
  double tolerated_fragmentation_ = 0;
  std::size_t remap_from_bytes_ = 0;  // 0 disables it
  std::unique_ptr<Tlsf> spans_;

  PageMap pages_;
  Statistics now_;  // the counted fields; statistics() fills in the derived ones
};

}  // namespace thimble
