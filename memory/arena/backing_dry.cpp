#include <cstdint>

#include <thimble/memory/arena/backing.h>

namespace thimble {
namespace backing_dry_detail {

class DryBacking final : public Backing {
 public:
  explicit DryBacking(memory::Device of) : device_(dry(of)) {}

  memory::Device device() const noexcept override { return device_; }
  std::size_t granule() const noexcept override { return std::size_t{2} << 20; }
  std::size_t alignment() const noexcept override { return device_.is_cuda() ? 512 : 64; }

  /// Any aligned non-null number serves as first address.
  std::byte* reserve(std::size_t) noexcept override { return reinterpret_cast<std::byte*>(std::uintptr_t{granule()}); }
  std::errc commit(std::size_t, std::size_t) noexcept override { return {}; }
  void decommit(std::size_t, std::size_t) noexcept override {}
  void move(std::size_t, std::size_t, std::size_t, Stream) noexcept override {}
  bool can_remap() const noexcept override { return device_.is_cuda(); }
  bool remap(std::size_t, std::size_t, std::size_t) noexcept override { return device_.is_cuda(); }
  void fill(std::size_t, std::size_t, std::byte, Stream) noexcept override {}

 private:
  memory::Device device_;
};

}  // namespace backing_dry_detail

std::unique_ptr<Backing> make_dry_backing(memory::Device device) {
  return std::make_unique<backing_dry_detail::DryBacking>(device);
}

}  // namespace thimble
