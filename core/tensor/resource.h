#pragma once
// The interface of all memory resources. Policies (ledger, limit, trace) are decorators that own their upstream by
// shared_ptr; the arena at the bottom owns the address range.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include <thimble/core/device.h>

namespace thimble {

/// An interned dotted module path (`gpt.block3.mlp.fc1`); 0 is the empty path. See core/tensor/context.h.
using PathId = std::uint32_t;

namespace memory {

/// The purpose of a block. Every block has exactly one category.
enum class Category : std::uint8_t {
  parameter,
  gradient,
  optimizer,
  activation,
  temporary,
  workspace,
  input,
  communication  ///< in transit between ranks: buckets, received data
};
inline constexpr std::size_t category_count = 8;
/// "parameter", "gradient", ...
std::string_view to_string(Category category) noexcept;

/// An execution queue of a device; the null stream on a CPU.
using Stream = void*;

/// One request for memory. `bytes` > 0; `alignment` is a power of two.
struct Request {
  std::size_t bytes = 0;
  std::size_t alignment = 64;
  Category category = Category::temporary;
  PathId path = 0;
  Stream stream = nullptr;
};

/// One allocation. Its resource owns it, and may move it unless a launch runs or it is pinned, so `address` is looked
/// up at each launch and never kept. On a dry device `address` is never dereferenced. The handle never moves.
struct Block {
  std::byte* address = nullptr;
  std::size_t bytes = 0;  ///< as requested
  Category category = Category::temporary;
  PathId path = 0;
  std::atomic<std::uint32_t> pins{0};  ///< above 0 the block must not move (Pin in core/launch/launch.h)
};

/// A source of blocks on one device. All calls are thread-safe. When `allocate` throws (OutOfMemory), nothing has
/// changed.
class Resource {
 public:
  virtual ~Resource() = default;

  virtual Block* allocate(const Request& request) = 0;
  virtual void deallocate(Block* block, Stream stream) noexcept = 0;
  /// Changes the category of a live block; no bytes move.
  virtual void relabel(Block* block, Category category) noexcept = 0;
  virtual Device device() const noexcept = 0;
};

}  // namespace memory

/// The default resource for tensors on `device`. Made at first use; throws DeviceError when the device does not exist.
/// Defined by memory/default_resource.cpp.
std::shared_ptr<memory::Resource> default_resource(memory::Device device);

}  // namespace thimble
