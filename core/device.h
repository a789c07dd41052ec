#pragma once
// Where a tensor's bytes live and where its kernels run.

#include <cstdint>
#include <string>
#include <string_view>

namespace thimble {

enum class DeviceKind : std::uint8_t { cpu, cuda };

namespace memory {

/// `cpu`, `cuda:N`, `dry(cpu)`, `dry(cuda)`. A *dry* device runs the very same code, allocations included, and launches
/// no kernel: it has no data, so reading a value there throws DeviceError.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  std::uint8_t index = 0;
  bool is_dry = false;

  friend constexpr bool operator==(const Device&, const Device&) = default;
  constexpr bool is_cpu() const noexcept { return kind == DeviceKind::cpu; }
  constexpr bool is_cuda() const noexcept { return kind == DeviceKind::cuda; }
};

inline constexpr Device cpu{};
inline constexpr Device cuda(std::uint8_t index = 0) { return {DeviceKind::cuda, index, false}; }
inline constexpr Device dry(Device of) { return {of.kind, of.index, true}; }

/// "cpu", "cuda:1", "dry(cpu)".
std::string to_string(Device device);

}  // namespace memory

using memory::cpu;
using memory::cuda;
using memory::dry;
using memory::to_string;

/// The inverse of to_string; "cuda" means "cuda:0". Throws ValueError, naming the expected forms.
memory::Device parse_device(std::string_view text);

}  // namespace thimble
