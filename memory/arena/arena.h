#pragma once
// The arena: one reserved address range of a device, cut into blocks.
//
// Policy
// - The range is reserved once. Pages are committed in granules when the height rises, touched at once, and kept until
//   trim(), so peak committed bytes are the arena's need, and a plan predicts them.
// - Offsets come from two-level segregated fit (memory/arena/tlsf.h) and depend only on the sequence of requests: a dry
//   arena and a real one with the same granule and alignment give the same offsets and figures.
// - The range stores no metadata. Block handles are stable; compaction changes the address in them.
// - Compaction (memory/arena/compact.h, memory/arena/arena.cpp): when no hole fits a request though the free bytes
//   suffice, or the backing refuses more pages, the arena slides blocks towards offset 0, as few bytes as make the
//   hole. compact() slides all blocks, and so does safe_point() when holes exceed the tolerated fraction. Nothing moves
//   while a launch runs, and pinned blocks never move. A dry arena compacts at the same events, with the same offsets
//   and figures; it has no launches, no pinned tensors, and its pages are never refused.
// - If the backing can, compact() and safe_point() remap a block instead of copying it: its whole granules are mapped
//   at their new address, and only its ends are copied. The rule: the distance is a whole number of granules, and the
//   block's granules have Options::remap_from_bytes or more. Requests only copy, because a remap waits for the device.
//   Offsets of blocks do not depend on it.
// - allocate gives the strong guarantee: it finds a place and commits pages before it changes anything.
// - Streams: one compute stream uses an arena, so the order of calls is the order of use.
// - The arena outlives its blocks: each block's owner holds the arena by shared_ptr.
//
// Terms
//   requested   bytes as requested, summed over live blocks
//   allocated   bytes that live blocks occupy: requested ones, rounded up to the alignment
//   height      end of the highest live block
//   committed   bytes with pages under them ("reserved" in the literature on allocators): a multiple of the granule
//   capacity    limit of height and committed bytes, in whole granules
//   holes       free bytes below the height; fragmentation is their fraction of the height
//   safe point  a moment at which blocks may move, for example between two steps
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

namespace thimble::memory {

class Arena final : public LockedResource {
 public:
  enum class Compaction : std::uint8_t {
    when_needed,             ///< instead of refusing a request
    never,                   ///< only compact() and safe_point()
    before_every_allocation  ///< slides all blocks: tests that no code keeps an address
  };

  struct Options {
    std::size_t capacity_bytes = 0;  ///< rounded down to granules; defaults to reserve_bytes, or 1 PiB
    /// Addresses to reserve; defaults to the capacity, or twice the machine's memory (on GPUs 1 TiB, dry 1 PiB). Halved
    /// until the system grants it.
    std::size_t reserve_bytes = 0;
    bool poison = false;  ///< fill new and freed blocks, and the gap behind a moved one, with 0xFF
    Compaction compaction = Compaction::when_needed;
    double tolerated_fragmentation = 0.25;                 ///< safe_point() compacts above it
    std::size_t remap_from_bytes = std::size_t{16} << 20;  ///< remaps blocks with so much in whole granules; 0 never
  };

  /// Wall time. All times compare equal, so comparisons of statistics ignore them.
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
    std::uint64_t allocation_count = 0;  ///< this and the other counts and times: since construction
    std::uint64_t commit_count = 0;      ///< calls that put pages under the range
    std::uint64_t decommit_count = 0;    ///< calls that gave pages back
    std::uint64_t compaction_count = 0;  ///< calls that moved a block
    std::uint64_t moved_blocks = 0;
    std::uint64_t moved_bytes = 0;     ///< requested bytes of moved blocks
    std::uint64_t remapped_bytes = 0;  ///< of these, remapped; the rest was copied
    Elapsed compaction_time;           ///< on the host: with waits for launches and remaps, without a GPU's copies
    MoveTime device_time;              ///< of a GPU's finished copies
    double fragmentation = 0;          ///< 1 - allocated / height
    double peak_fragmentation = 0;     ///< 1 - peak allocated / peak committed

    friend bool operator==(const Statistics&, const Statistics&) = default;
  };

  /// Reserves the range. Throws OutOfMemory when not even one granule of addresses is available.
  Arena(std::unique_ptr<Backing> backing, Options options);
  explicit Arena(std::unique_ptr<Backing> backing) : Arena(std::move(backing), Options{}) {}
  ~Arena() override;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Block* allocate(const Request& request) override;
  void deallocate(Block* block, Stream stream) noexcept override;
  Device device() const noexcept override { return backing_->device(); }

  Statistics statistics() const;

  /// A digest of the offsets of blocks and holes and of their order in the bins (Tlsf::digest). When two equal steps
  /// leave equal digests, every further such step needs the second one's bytes.
  std::uint64_t layout_digest() const;

  /// The arena below a stack of policies; null without one.
  static const Arena* find(const Resource& resource) noexcept;

  /// Sets every peak to the current value.
  void reset_peak();

  /// Gives back the granules that no live block touches. Returns their bytes.
  std::size_t trim();

  /// Slides all unpinned blocks together. Waits for the launches of other threads. Returns the bytes moved. Throws
  /// Error when called inside a launch.
  std::size_t compact();

  /// Compacts if holes are more than Options::tolerated_fragmentation of the height. Returns the bytes moved. Throws
  /// Error when called inside a launch.
  std::size_t safe_point();

  /// While one lives no block moves, and a request that needs a move is refused: a launch graph holds addresses
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
    const Block* block;
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
  Block* do_allocate(const Request& request) override;
  void do_deallocate(Block* block, Stream stream) noexcept override;
  void do_relabel(Block* block, Category category) noexcept override;

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
  int freezes_ = 0;  // live ones
  double tolerated_fragmentation_ = 0;
  std::size_t remap_from_bytes_ = 0;  // 0 disables it
  std::unique_ptr<Tlsf> spans_;

  PageMap pages_;
  Statistics now_;  // the counted fields; statistics() fills in the derived ones
};

}  // namespace thimble::memory
