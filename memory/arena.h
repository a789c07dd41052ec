#pragma once
// The arena: one reserved address range of a device, cut into blocks.
//
// Policy
// - The range is reserved once; pages are committed in granules when the height rises, touched once, and kept until
//   trim(). So peak committed bytes are what the arena had to have, and they are what a plan predicts.
// - Offsets come from two-level segregated fit (memory/tlsf.h) and depend on the sequence of requests alone: a dry
// arena
//   and a real one with the same granule and alignment give the same offsets and figures.
// - Nothing about a block is stored in the range. Block handles are stable; the address in them may change when blocks
//   are slid together.
// - allocate gives the strong guarantee: a place is found, pages are committed, and only then is anything changed.
// - Streams: one compute stream uses an arena, so the order of calls is the order of use.
// - The arena outlives its blocks: whoever holds one holds the arena by shared_ptr.
//
// Terms
//   requested   bytes asked for, summed over live blocks
//   allocated   the same with rounding to the alignment: what live blocks occupy
//   height      end of the highest live block
//   committed   bytes with pages under them ("reserved" in the literature on allocators): a multiple of the granule
//   capacity    bound of height and committed bytes, in whole granules
//   poison      test mode: 0xFF (a NaN in every float type) is written to new and freed blocks

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <thimble/memory/backing.h>
#include <thimble/memory/lock.h>
#include <thimble/memory/tlsf.h>

namespace thimble {

class Arena final : public LockedResource {
 public:
  struct Options {
    std::size_t capacity_bytes = 0;  ///< bound of committed bytes, rounded down to granules; 0: as much as is reserved
    std::size_t reserve_bytes = 0;   ///< addresses to reserve; 0: the capacity, or 1 TiB. Halved while refused
    bool poison = false;             ///< fill new and freed blocks with 0xFF
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
    std::size_t largest_free_bytes = 0;  ///< the largest request that can be served, pages permitting
    std::uint64_t allocation_count = 0;  ///< since construction, as are the two below
    std::uint64_t commit_count = 0;      ///< calls that put pages under the range
    std::uint64_t decommit_count = 0;    ///< calls that gave pages back
    double fragmentation = 0;            ///< 1 - allocated / height: the share of the height that is holes
    double peak_fragmentation = 0;       ///< 1 - peak allocated / peak committed

    friend bool operator==(const Statistics&, const Statistics&) = default;
  };

  /// Reserves the range. Throws DeviceError when not even one granule of addresses can be had.
  Arena(std::unique_ptr<Backing> backing, Options options);
  explicit Arena(std::unique_ptr<Backing> backing) : Arena(std::move(backing), Options{}) {}
  ~Arena() override;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  Device device() const noexcept override { return backing_->device(); }

  Statistics statistics() const;

  /// Sets every peak to the present value.
  void reset_peak();

  /// Gives back the granules that no live block touches. Returns their bytes.
  std::size_t trim();

  /// Live blocks by address.
  struct Placed {
    const Block* block;
    std::size_t offset;
    std::size_t allocated_bytes;
  };
  std::vector<Placed> blocks() const;

  /// First address and size of the reserved range, and the smallest unit of commit.
  const std::byte* base() const noexcept { return base_; }
  std::size_t reserved_bytes() const noexcept { return reserved_bytes_; }
  std::size_t granule() const noexcept { return granule_; }

 private:
  /// Throws OutOfMemory (capacity reached, or pages refused; nothing has changed), ValueError (0 bytes, or an alignment
  /// that is no power of two or above the granule), Error (called inside a launch).
  Block* do_allocate(const Request& request) override;
  void do_deallocate(Block* block, Stream stream) noexcept override;
  void do_relabel(Block* block, Category category) noexcept override;

  static constexpr std::byte poison_value{0xFF};

  void reserve(const Options& options);
  void check(const Request& request) const;
  std::errc commit(std::size_t begin, std::size_t end) noexcept;
  template <class Body>
  bool each_run(bool with_pages, std::size_t first, std::size_t last, Body&& body) const;
  std::size_t largest_free_bytes() const noexcept;
  [[noreturn]] void refuse(const Request& request, const std::string& why) const;

  std::unique_ptr<Backing> backing_;
  std::byte* base_ = nullptr;
  std::size_t reserved_bytes_ = 0;
  std::size_t granule_ = 0;
  bool poison_ = false;
  std::unique_ptr<Tlsf> spans_;

  std::vector<bool> has_pages_;  // per granule, up to the highest ever committed
  std::size_t solid_bytes_ = 0;  // everything below has pages
  Statistics now_;               // the counted fields; the derived ones are filled in by statistics()
};

}  // namespace thimble
