// Pages of a GPU: CUDA virtual memory.
//
// Policy
// - The range is only addresses (cuMemAddressReserve). Each granule of 2 MiB is a separate allocation (cuMemCreate),
//   mapped at its address, because a mapping can only be released whole. Access is set once per commit.
// - The granule equals the dry run's, so that predictions hold; the driver's granule must divide it.
// - A refusal of the driver is a return value, and earlier mappings of the call are undone.
// - Moves and fills go to the compute stream, ordered with the kernels before and after. Decommitting pages waits for
//   the device first, counted (cuda/runtime/runtime.h), because a running kernel may still use them.
// - A remap gives the handles of whole granules other addresses: it waits for the device, unmaps the whole range, and
//   maps it again. If the driver refuses a mapping, the old one is restored; if it refuses that too, the device has
//   failed, and the next launch reports it.
// - A move over a distance shorter than a granule goes through one granule of the backing, which is committed at the
//   first such move and does not count among the arena's bytes.
// - Pairs of events around moves measure the device's time of moves; reading them on request does not wait. The time
//   excludes remaps, which occupy only the host.

#include <deque>
#include <vector>

#include <thimble/cuda/runtime/driver.h>
#include <thimble/cuda/runtime/runtime.h>
#include <thimble/memory/arena/backing.h>
#include <thimble/memory/arena/granules.h>

namespace thimble {
namespace cuda_backing_detail {

constexpr std::size_t granule_bytes = std::size_t{2} << 20;

class CudaBacking final : public memory::Backing {
 public:
  explicit CudaBacking(memory::Device device) : device_(device), driver_(gpu::driver()) {
    gpu::compute_stream(device_);  // makes the device's context, and checks that the device exists
    where_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    where_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    where_.location.id = device.index;
    std::size_t own = 0;
    const CUresult result = driver_.granularity(&own, &where_, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (result != CUDA_SUCCESS) {
      throw DeviceError(gpu::driver_failure(gpu::call_text("cuMemGetAllocationGranularity", device), result));
    }
    if (own == 0 || granule_bytes % own != 0) {
      throw DeviceError(to_string(device) + ": its pages are of " + std::to_string(own) +
                        " bytes; expected a divisor of " + std::to_string(granule_bytes));
    }
  }
  CudaBacking(const CudaBacking&) = delete;
  CudaBacking& operator=(const CudaBacking&) = delete;
  ~CudaBacking() override {
    if (base_ == 0) return;
    decommit(0, granules_.size() * granule_bytes);
    if (bounce_ != 0) unmap(base_ + range_bytes_, bounce_);
    for (const std::deque<Stretch>* list : {&under_way_, &spare_}) {
      for (const Stretch& stretch : *list) destroy(stretch);
    }
    driver_.free(base_, range_bytes_ + granule_bytes);
  }

  memory::Device device() const noexcept override { return device_; }
  std::size_t granule() const noexcept override { return granule_bytes; }
  std::size_t alignment() const noexcept override { return 512; }

  std::byte* reserve(std::size_t bytes) noexcept override {
    CUdeviceptr base = 0;  // one more granule for the bounce
    if (driver_.reserve(&base, bytes + granule_bytes, granule_bytes, 0, 0) != CUDA_SUCCESS) return nullptr;
    base_ = base;
    range_bytes_ = bytes;
    return reinterpret_cast<std::byte*>(base_);
  }

  std::errc commit(std::size_t offset, std::size_t bytes) noexcept override {
    const std::size_t first = offset / granule_bytes, last = (offset + bytes) / granule_bytes;
    try {
      if (granules_.size() < last) granules_.resize(last, 0);
    } catch (const std::bad_alloc&) {
      return std::errc::not_enough_memory;
    }
    for (std::size_t i = first; i < last; ++i) {
      const CUresult result = map(base_ + i * granule_bytes, granules_[i]);
      if (result == CUDA_SUCCESS) continue;
      for (std::size_t done = first; done < i; ++done) unmap(base_ + done * granule_bytes, granules_[done]);
      return errc_of(result);
    }
    const CUresult result = allow(base_ + offset, bytes);
    if (result == CUDA_SUCCESS) return {};
    for (std::size_t i = first; i < last; ++i) unmap(base_ + i * granule_bytes, granules_[i]);
    return errc_of(result);
  }

  std::string refusal_text(std::errc error) const override {
    if (refused_ == nullptr) return memory::Backing::refusal_text(error);
    return gpu::driver_failure(gpu::call_text(refused_, refused_bytes_, device_), refusal_);
  }

  void decommit(std::size_t offset, std::size_t bytes) noexcept override {
    try {
      gpu::synchronize(device_);
    } catch (const DeviceError&) {  // the next launch reports it
    }
    for (std::size_t i = offset / granule_bytes; i < (offset + bytes) / granule_bytes; ++i) {
      if (granules_[i] != 0) unmap(base_ + i * granule_bytes, granules_[i]);
    }
  }

  void move(std::size_t from, std::size_t to, std::size_t bytes, memory::Stream) noexcept override {
    const std::size_t distance = from > to ? from - to : to - from;
    if (distance == 0) return;
    begin_stretch();
    if (distance >= bytes) return copy(base_ + to, base_ + from, bytes);
    const bool is_direct = distance >= granule_bytes;
    if (!is_direct && !has_bounce()) {
      // Without a spare granule: moves pieces as short as the distance, which do not overlap.
      return move_in_pieces(from, to, bytes, distance, false);
    }
    move_in_pieces(from, to, bytes, is_direct ? distance : granule_bytes, !is_direct);
  }

  void begin_moves() noexcept override { is_timed_ = true; }
  void end_moves() noexcept override {
    end_stretch();
    is_timed_ = false;
  }
  memory::MoveTime move_time() noexcept override {
    if (under_way_.empty()) return {moved_ms_, 0};
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // so that a query does not end a capture
    cudaThreadExchangeStreamCaptureMode(&mode);
    while (!under_way_.empty()) {
      const Stretch& first = under_way_.front();
      const cudaError_t answer = cudaEventQuery(first.end);
      if (answer == cudaErrorNotReady) {
        cudaGetLastError();  // not an error
        break;
      }
      float ms = 0;
      if (answer == cudaSuccess && cudaEventElapsedTime(&ms, first.begin, first.end) == cudaSuccess) moved_ms_ += ms;
      reuse(first);
      under_way_.pop_front();
    }
    cudaThreadExchangeStreamCaptureMode(&mode);
    return {moved_ms_, under_way_.size()};
  }

  bool can_remap() const noexcept override { return true; }

  bool remap(std::size_t from, std::size_t to, std::size_t bytes) noexcept override {
    end_stretch();
    try {
      gpu::synchronize(device_);
    } catch (const DeviceError&) {
      return false;
    }
    const std::size_t first = to / granule_bytes, last = (from + bytes) / granule_bytes;
    const std::size_t source = from / granule_bytes, count = bytes / granule_bytes;
    unmap_all(first, last);
    memory::move_granules(granules_.begin(), source, first, count);
    if (map_all(first, last)) return true;
    unmap_all(first, last);
    memory::move_granules_back(granules_.begin(), source, first, count);
    map_all(first, last);
    return false;
  }

  void fill(std::size_t offset, std::size_t bytes, std::byte value, memory::Stream) noexcept override {
    gpu::report_later(
        cudaMemsetAsync(reinterpret_cast<void*>(base_ + offset), std::to_integer<int>(value), bytes, stream()));
  }

 private:
  /// Consecutive moves between two events.
  struct Stretch {
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  // If an event is refused, the moves still happen but are not timed.
  void begin_stretch() noexcept {
    if (!is_timed_ || open_.begin != nullptr) return;
    const cudaStream_t moves = stream();  // its device makes the events
    move_time();                          // frees some
    if (!spare_.empty()) {
      open_ = spare_.front();
      spare_.pop_front();
    } else if (cudaEventCreate(&open_.begin) != cudaSuccess || cudaEventCreate(&open_.end) != cudaSuccess) {
      cudaGetLastError();
      destroy(open_);
      open_ = {};
      return;
    }
    cudaEventRecord(open_.begin, moves);
  }
  void end_stretch() noexcept {
    if (open_.begin == nullptr) return;
    cudaEventRecord(open_.end, stream());
    try {
      under_way_.push_back(open_);
    } catch (const std::bad_alloc&) {
      destroy(open_);
    }
    open_ = {};
  }
  void reuse(const Stretch& stretch) noexcept {
    try {
      spare_.push_back(stretch);
    } catch (const std::bad_alloc&) {
      destroy(stretch);
    }
  }
  static void destroy(const Stretch& stretch) noexcept {
    if (stretch.begin != nullptr) cudaEventDestroy(stretch.begin);
    if (stretch.end != nullptr) cudaEventDestroy(stretch.end);
  }

  /// Whether the bounce is committed. The first short move commits it; after a refusal the next one tries again.
  bool has_bounce() noexcept {
    if (bounce_ != 0) return true;
    const CUdeviceptr at = base_ + range_bytes_;
    if (map(at, bounce_) != CUDA_SUCCESS) return false;
    if (allow(at, granule_bytes) == CUDA_SUCCESS) return true;
    unmap(at, bounce_);
    return false;
  }
  // Moves down in ascending order and up in descending order, so that no piece overwrites bytes yet to move.
  void move_in_pieces(std::size_t from, std::size_t to, std::size_t bytes, std::size_t piece, bool bounces) noexcept {
    const std::size_t pieces = (bytes + piece - 1) / piece;
    for (std::size_t i = 0; i < pieces; ++i) {
      const std::size_t at = (to < from ? i : pieces - 1 - i) * piece;
      const std::size_t count = bytes - at < piece ? bytes - at : piece;
      if (bounces) {
        copy(base_ + range_bytes_, base_ + from + at, count);
        copy(base_ + to + at, base_ + range_bytes_, count);
      } else {
        copy(base_ + to + at, base_ + from + at, count);
      }
    }
  }
  void copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) noexcept {
    gpu::report_later(cudaMemcpyAsync(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes,
                                      cudaMemcpyDeviceToDevice, stream()));
  }
  // The device existed when the backing was made; if it is gone, the next launch reports it.
  cudaStream_t stream() noexcept {
    try {
      return gpu::compute_stream(device_);
    } catch (const Error&) {
      gpu::report_later(cudaErrorInvalidDevice);
      return nullptr;
    }
  }

  CUresult map(CUdeviceptr at, CUmemGenericAllocationHandle& handle) noexcept {
    CUmemGenericAllocationHandle made = 0;
    CUresult result = driver_.create(&made, granule_bytes, &where_, 0);
    if (result != CUDA_SUCCESS) return note("cuMemCreate", granule_bytes, result);
    result = driver_.map(at, granule_bytes, 0, made, 0);
    if (result != CUDA_SUCCESS) {
      driver_.release(made);
      return note("cuMemMap", granule_bytes, result);
    }
    handle = made;
    return result;
  }
  void unmap(CUdeviceptr at, CUmemGenericAllocationHandle& handle) noexcept {
    driver_.unmap(at, granule_bytes);
    driver_.release(handle);
    handle = 0;
  }
  /// Puts granules [first, last) at the table's addresses.
  bool map_all(std::size_t first, std::size_t last) noexcept {
    for (std::size_t begin = first; begin < last;) {
      std::size_t end = begin;
      for (; end < last && granules_[end] != 0; ++end) {
        if (driver_.map(base_ + end * granule_bytes, granule_bytes, 0, granules_[end], 0) != CUDA_SUCCESS) return false;
      }
      const std::size_t bytes = (end - begin) * granule_bytes;
      if (bytes > 0 && allow(base_ + begin * granule_bytes, bytes) != CUDA_SUCCESS) return false;
      begin = end + 1;
    }
    return true;
  }
  void unmap_all(std::size_t first, std::size_t last) noexcept {
    for (std::size_t i = first; i < last; ++i) {
      if (granules_[i] != 0) driver_.unmap(base_ + i * granule_bytes, granule_bytes);
    }
  }
  CUresult allow(CUdeviceptr at, std::size_t bytes) noexcept {
    CUmemAccessDesc access{};
    access.location = where_.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return note("cuMemSetAccess", bytes, driver_.set_access(at, bytes, &access, 1));
  }
  /// Keeps a refusal for refusal_text().
  CUresult note(const char* call, std::size_t bytes, CUresult result) noexcept {
    if (result != CUDA_SUCCESS) refused_ = call, refused_bytes_ = bytes, refusal_ = result;
    return result;
  }
  static std::errc errc_of(CUresult result) noexcept {
    return result == CUDA_ERROR_OUT_OF_MEMORY ? std::errc::not_enough_memory : std::errc::io_error;
  }

  memory::Device device_;
  const gpu::Driver& driver_;
  CUmemAllocationProp where_{};
  CUdeviceptr base_ = 0;
  std::size_t range_bytes_ = 0;
  std::vector<CUmemGenericAllocationHandle> granules_;  // 0 without pages
  CUmemGenericAllocationHandle bounce_ = 0;
  bool is_timed_ = false;
  Stretch open_;                   // begun and not ended
  std::deque<Stretch> under_way_;  // in the order of the stream
  std::deque<Stretch> spare_;
  double moved_ms_ = 0;
  const char* refused_ = nullptr;  // the last refused call, its bytes and its result
  std::size_t refused_bytes_ = 0;
  CUresult refusal_ = CUDA_SUCCESS;
};

}  // namespace cuda_backing_detail

std::unique_ptr<memory::Backing> memory::make_cuda_backing(memory::Device device) {
  gpu::make_current(device);  // checks that it exists before any other call fails
  return std::make_unique<cuda_backing_detail::CudaBacking>(device);
}

}  // namespace thimble
