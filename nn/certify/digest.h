#pragma once
// 128 bits that stand for the bytes of a tensor: what runs are compared by, without keeping either.

#include <cstddef>
#include <cstdint>

#include <thimble/core/tensor/tensor.h>

namespace thimble::nn {

/// Equal for equal bytes; unequal ones share a digest with a probability of about 2^-128 where nobody has chosen them.
struct Digest {
  std::uint64_t low = 0, high = 0;
  friend bool operator==(const Digest&, const Digest&) = default;
};

/// A digest of bytes that come in pieces; where they are cut makes no difference. MurmurHash3_x64_128 (Appleby, 2011;
/// public domain), seed 0.
class DigestStream {
 public:
  void add(const void* from, std::size_t bytes) noexcept;
  Digest value() const noexcept;

 private:
  void mix(std::uint64_t first, std::uint64_t second) noexcept;

  std::uint64_t low_ = 0, high_ = 0;
  std::uint64_t bytes_ = 0;
  unsigned char rest_[16] = {};  // of a block that is not full; bytes_ % 16 of them
};

/// Of a tensor's elements in row-major order, whatever its strides, and of its scale. Of an undefined tensor, of one
/// without elements and of one on a dry device it is that of no bytes. Nothing is allocated on the tensor's device;
/// from a GPU the bytes come in pieces of a megabyte, and a tensor there must be dense (DeviceError).
Digest digest_of(const Tensor& t);

}  // namespace thimble::nn
