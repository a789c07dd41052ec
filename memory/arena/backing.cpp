// Host pages.
//
// Policy
// - The range is one private anonymous mapping, PROT_NONE and MAP_NORESERVE: it counts only against the address space.
//   mprotect to read-write counts against RLIMIT_DATA (and the commit limit under strict overcommit), so a limit makes
//   `commit` fail, not a later access.
// - Commit populates at once (MADV_POPULATE_WRITE): one kernel call instead of one fault per page, and resident bytes
//   equal committed bytes. On kernels before 5.14 it touches every page instead.
// - Before that it compares the request with the memory left in the machine and the control group: Linux would grant
//   it, then kill the process.
// - The first and last granule of the mapping are never committed, so no neighbouring mapping merges with the range
//   (its resident bytes stay separately readable) and a stray access next to it faults.

#include <thimble/memory/arena/backing.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include <thimble/memory/process/process.h>

namespace thimble::memory {
namespace {

constexpr std::size_t granule_bytes = std::size_t{2} << 20;

class CpuBacking final : public Backing {
 public:
  CpuBacking() = default;
  CpuBacking(const CpuBacking&) = delete;
  CpuBacking& operator=(const CpuBacking&) = delete;
  ~CpuBacking() override {
    if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
  }

  Device device() const noexcept override { return cpu; }
  std::size_t granule() const noexcept override { return granule_bytes; }
  std::size_t alignment() const noexcept override { return 64; }

  std::byte* reserve(std::size_t bytes) noexcept override {
    // A guard before, a guard after, and less than one granule for aligning the base.
    const std::size_t guarded_bytes = bytes + 3 * granule_bytes;
    if (guarded_bytes < bytes) return nullptr;
    void* mapping = mmap(nullptr, guarded_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return nullptr;
    mapping_ = mapping;
    mapping_bytes_ = guarded_bytes;
    const auto first = reinterpret_cast<std::uintptr_t>(mapping);
    const std::uintptr_t aligned = (first + granule_bytes - 1) & ~std::uintptr_t{granule_bytes - 1};
    base_ = static_cast<std::byte*>(mapping) + (aligned - first) + granule_bytes;
#ifdef MADV_HUGEPAGE
    madvise(base_, bytes, MADV_HUGEPAGE);  // only speed depends on it
#endif
    return base_;
  }

  std::errc commit(std::size_t offset, std::size_t bytes) noexcept override {
    if (bytes > process::available_bytes()) return std::errc::not_enough_memory;
    if (mprotect(base_ + offset, bytes, PROT_READ | PROT_WRITE) != 0) return static_cast<std::errc>(errno);
    const int error = populate(base_ + offset, bytes);
    if (error != 0) decommit(offset, bytes);
    return static_cast<std::errc>(error);
  }

  void decommit(std::size_t offset, std::size_t bytes) noexcept override {
    madvise(base_ + offset, bytes, MADV_DONTNEED);
    // Fails only when the kernel is out of mappings; the pages are gone even then.
    mprotect(base_ + offset, bytes, PROT_NONE);
  }

  void move(std::size_t from, std::size_t to, std::size_t bytes, Stream) noexcept override {
    std::memmove(base_ + to, base_ + from, bytes);
  }

  void fill(std::size_t offset, std::size_t bytes, std::byte value, Stream) noexcept override {
    std::memset(base_ + offset, std::to_integer<int>(value), bytes);
  }

 private:
  /// Returns 0 or an errno.
  static int populate(std::byte* first, std::size_t bytes) noexcept {
#ifdef MADV_POPULATE_WRITE
    for (;;) {
      if (madvise(first, bytes, MADV_POPULATE_WRITE) == 0) return 0;
      if (errno == EINTR || errno == EAGAIN) continue;
      if (errno != EINVAL) return errno;
      break;
    }
#endif
    const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    for (std::size_t at = 0; at < bytes; at += page_bytes) {
      *const_cast<volatile std::byte*>(first + at) = std::byte{0};
    }
    return 0;
  }

  void* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
  std::byte* base_ = nullptr;
};

}  // namespace

std::unique_ptr<Backing> make_cpu_backing() { return std::make_unique<CpuBacking>(); }

namespace {

class DryBacking final : public Backing {
 public:
  explicit DryBacking(Device of) : device_(dry(of)) {}

  Device device() const noexcept override { return device_; }
  std::size_t granule() const noexcept override { return std::size_t{2} << 20; }
  std::size_t alignment() const noexcept override { return device_.is_cuda() ? 512 : 64; }

  /// The first address may be any aligned non-null number.
  std::byte* reserve(std::size_t) noexcept override { return reinterpret_cast<std::byte*>(std::uintptr_t{granule()}); }
  std::errc commit(std::size_t, std::size_t) noexcept override { return {}; }
  void decommit(std::size_t, std::size_t) noexcept override {}
  void move(std::size_t, std::size_t, std::size_t, Stream) noexcept override {}
  bool can_remap() const noexcept override { return device_.is_cuda(); }
  bool remap(std::size_t, std::size_t, std::size_t) noexcept override { return device_.is_cuda(); }
  void fill(std::size_t, std::size_t, std::byte, Stream) noexcept override {}

 private:
  Device device_;
};

}  // namespace

std::unique_ptr<Backing> make_dry_backing(Device device) { return std::make_unique<DryBacking>(device); }

}  // namespace thimble::memory
