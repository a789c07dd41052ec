#include "backing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <thimble/memory/arena/granules.h>

namespace thimble::emulated {
namespace backing_detail {

constexpr std::size_t granule_bytes = std::size_t{2} << 20;
constexpr std::size_t no_pages = ~std::size_t{0};
std::atomic<std::size_t> committed_bytes{0};  // of all ranges

class FileBacking final : public memory::Backing {
 public:
  explicit FileBacking(memory::Device device)
      : device_(device), file_(memfd_create("thimble-emulated-device", MFD_CLOEXEC)) {}
  FileBacking(const FileBacking&) = delete;
  FileBacking& operator=(const FileBacking&) = delete;
  ~FileBacking() override {
    for (std::size_t place : places_) committed_bytes -= place != no_pages ? granule_bytes : 0;
    if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
    if (file_ >= 0) close(file_);
  }

  memory::Device device() const noexcept override { return device_; }
  std::size_t granule() const noexcept override { return granule_bytes; }
  std::size_t alignment() const noexcept override { return 512; }

  std::byte* reserve(std::size_t bytes) noexcept override {
    const std::size_t all = bytes + granule_bytes;
    void* const mapping = file_ < 0 ? MAP_FAILED : map_nothing(nullptr, all, 0);
    if (mapping == MAP_FAILED) return nullptr;
    mapping_ = mapping;
    mapping_bytes_ = all;
    const auto first = reinterpret_cast<std::uintptr_t>(mapping);
    base_ = static_cast<std::byte*>(mapping) + (granule_bytes - first % granule_bytes) % granule_bytes;
    return base_;
  }

  std::errc commit(std::size_t offset, std::size_t bytes) noexcept override {
    const std::size_t first = offset / granule_bytes, last = (offset + bytes) / granule_bytes;
    if (places_.size() < last) places_.resize(last, no_pages);
    for (std::size_t i = first; i < last; ++i) {
      if (free_.empty()) {
        if (ftruncate(file_, static_cast<off_t>((file_granules_ + 1) * granule_bytes)) != 0) {
          decommit(offset, (i - first) * granule_bytes);
          return static_cast<std::errc>(errno);
        }
        free_.push_back(file_granules_++);
      }
      places_[i] = free_.back();
      free_.pop_back();
      committed_bytes += granule_bytes;
    }
    if (map(first, last)) return {};
    decommit(offset, bytes);
    return std::errc::not_enough_memory;
  }

  void decommit(std::size_t offset, std::size_t bytes) noexcept override {
    count_wait();
    for (std::size_t i = offset / granule_bytes; i < (offset + bytes) / granule_bytes; ++i) {
      if (places_[i] == no_pages) continue;
      fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(places_[i] * granule_bytes),
                static_cast<off_t>(granule_bytes));
      free_.push_back(places_[i]);
      places_[i] = no_pages;
      committed_bytes -= granule_bytes;
    }
    map(offset / granule_bytes, (offset + bytes) / granule_bytes);
  }

  void move(std::size_t from, std::size_t to, std::size_t bytes, memory::Stream) noexcept override {
    const auto start = std::chrono::steady_clock::now();
    std::memmove(base_ + to, base_ + from, bytes);
    if (!is_timed_) return;
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    waits_at_move_ = count_of_waits();
    unknown_ms_ += elapsed.count();
  }

  // A move's time is known after the next wait for the device.
  void begin_moves() noexcept override { is_timed_ = true; }
  void end_moves() noexcept override { is_timed_ = false; }
  memory::MoveTime move_time() noexcept override {
    if (count_of_waits() > waits_at_move_) known_ms_ += std::exchange(unknown_ms_, 0);
    return {known_ms_, unknown_ms_ > 0 ? std::size_t{1} : 0};
  }

  bool can_remap() const noexcept override { return true; }

  bool remap(std::size_t from, std::size_t to, std::size_t bytes) noexcept override {
    count_wait();
    const std::size_t source = from / granule_bytes, target = to / granule_bytes, count = bytes / granule_bytes;
    memory::move_granules(places_.begin(), source, target, count);
    if (map(target, source + count)) return true;
    memory::move_granules_back(places_.begin(), source, target, count);
    map(target, source + count);
    return false;
  }

  void fill(std::size_t offset, std::size_t bytes, std::byte value, memory::Stream) noexcept override {
    std::memset(base_ + offset, std::to_integer<int>(value), bytes);
  }

 private:
  static void* map_nothing(void* at, std::size_t bytes, int flags) {
    return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  }

  /// Maps the addresses of granules [first, last) to the table's pages, with one call per contiguous range.
  bool map(std::size_t first, std::size_t last) noexcept {
    for (std::size_t begin = first; begin < last;) {
      const bool is_hole = places_[begin] == no_pages;
      std::size_t end = begin + 1;
      while (end < last && places_[end] == (is_hole ? no_pages : places_[begin] + (end - begin))) ++end;
      void* const at = base_ + begin * granule_bytes;
      const std::size_t bytes = (end - begin) * granule_bytes;
      void* const got = is_hole ? map_nothing(at, bytes, MAP_FIXED)
                                : mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_,
                                       static_cast<off_t>(places_[begin] * granule_bytes));
      if (got == MAP_FAILED) return false;
      begin = end;
    }
    return true;
  }

  memory::Device device_;
  int file_;
  void* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
  std::byte* base_ = nullptr;
  std::vector<std::size_t> places_;  // of each granule in the file, or no_pages
  std::vector<std::size_t> free_;    // unused granules of the file
  std::size_t file_granules_ = 0;
  bool is_timed_ = false;
  std::uint64_t waits_at_move_ = 0;
  double known_ms_ = 0, unknown_ms_ = 0;
};

}  // namespace backing_detail

std::unique_ptr<memory::Backing> make_backing(memory::Device device) {
  return std::make_unique<backing_detail::FileBacking>(device);
}

kernels::DeviceMemory memory(memory::Device) {
  constexpr std::size_t mib = std::size_t{1} << 20, total = 8192 * mib, context = 256 * mib, libraries = 64 * mib;
  return {total, total - context - libraries - backing_detail::committed_bytes.load(), context, libraries};
}

}  // namespace thimble::emulated
