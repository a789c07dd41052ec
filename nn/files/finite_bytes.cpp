#include <thimble/nn/files/finite_bytes.h>

#include <cstdint>
#include <cstring>

namespace thimble {
namespace finite_bytes_detail {

// No element has all bits of `mask`: the exponent's, of which all are set in what is NaN or infinite.
template <class Bits>
bool none_has(Bits mask, std::span<const std::byte> bytes) noexcept {
  bool is_found = false;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(Bits)) {
    Bits element;
    std::memcpy(&element, bytes.data() + at, sizeof element);
    is_found |= (element & mask) == mask;
  }
  return !is_found;
}

}  // namespace finite_bytes_detail

bool all_finite(SafetensorsDType dtype, std::span<const std::byte> bytes) noexcept {
  using finite_bytes_detail::none_has;
  switch (dtype) {
    case SafetensorsDType::f64:
      return none_has(std::uint64_t{0x7FF0'0000'0000'0000}, bytes);
    case SafetensorsDType::f32:
      return none_has(std::uint32_t{0x7F80'0000}, bytes);
    case SafetensorsDType::bf16:
      return none_has(std::uint16_t{0x7F80}, bytes);
    case SafetensorsDType::f16:
      return none_has(std::uint16_t{0x7C00}, bytes);
    case SafetensorsDType::f8_e5m2:
      return none_has(std::uint8_t{0x7C}, bytes);
    case SafetensorsDType::f8_e4m3:
      return none_has(std::uint8_t{0x7F}, bytes);  // has no infinity
    default:
      return true;
  }
}

}  // namespace thimble
