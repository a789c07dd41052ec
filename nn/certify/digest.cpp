#include <thimble/nn/certify/digest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/parameter_store.h>

namespace thimble::nn {
namespace {

constexpr std::uint64_t c1 = 0x87C37B91114253D5ull, c2 = 0x4CF5AD432745937Full;
constexpr std::size_t block = 16;

constexpr std::uint64_t rotate(std::uint64_t x, int by) noexcept { return (x << by) | (x >> (64 - by)); }

constexpr std::uint64_t finish(std::uint64_t k) noexcept {
  k = (k ^ (k >> 33)) * 0xFF51AFD7ED558CCDull;
  k = (k ^ (k >> 33)) * 0xC4CEB9FE1A85EC53ull;
  return k ^ (k >> 33);
}

/// Elements of any layout, a part of them at a time.
void add_strided(const Tensor& t, const std::byte* at, DigestStream& digest) {
  const std::size_t size = size_of(t.dtype());
  std::array<std::byte, 4096> part;
  std::size_t used = 0;
  std::array<std::int64_t, max_rank> index{};
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < t.elements(); ++i) {
    std::memcpy(part.data() + used, at + offset * static_cast<std::int64_t>(size), size);
    used += size;
    if (used + size > part.size()) digest.add(part.data(), std::exchange(used, 0));
    for (int axis = t.rank() - 1; axis >= 0; --axis) {
      std::int64_t& here = index[static_cast<std::size_t>(axis)];
      offset += t.strides()[axis];
      if (++here < t.shape()[axis]) break;
      offset -= here * t.strides()[axis];
      here = 0;
    }
  }
  digest.add(part.data(), used);
}

/// What is on a GPU comes by way of the host's memory.
void add_downloaded(const Tensor& t, const std::byte* at, std::vector<std::byte>& part, DigestStream& digest) {
  for (std::size_t done = 0; done < t.bytes(); done += part.size()) {
    const std::size_t count = std::min(part.size(), t.bytes() - done);
    kernels::device_runtime(t.device()).download(part.data(), at + done, count);
    digest.add(part.data(), count);
  }
}

}  // namespace

void DigestStream::mix(std::uint64_t first, std::uint64_t second) noexcept {
  low_ ^= rotate(first * c1, 31) * c2;
  low_ = (rotate(low_, 27) + high_) * 5 + 0x52DCE729;
  high_ ^= rotate(second * c2, 33) * c1;
  high_ = (rotate(high_, 31) + low_) * 5 + 0x38495AB5;
}

void DigestStream::add(const void* from, std::size_t bytes) noexcept {
  const auto* at = static_cast<const unsigned char*>(from);
  const auto mix_block = [this](const unsigned char* words) {
    std::uint64_t two[2];
    std::memcpy(two, words, sizeof two);
    mix(two[0], two[1]);
  };
  const std::size_t before = bytes_ % block;
  bytes_ += bytes;
  if (before > 0) {
    const std::size_t taken = std::min(bytes, block - before);
    std::memcpy(rest_ + before, at, taken);
    at += taken, bytes -= taken;
    if (before + taken < block) return;
    mix_block(rest_);
  }
  for (; bytes >= block; at += block, bytes -= block) mix_block(at);
  if (bytes > 0) std::memcpy(rest_, at, bytes);
}

Digest DigestStream::value() const noexcept {
  std::uint64_t two[2] = {};
  std::memcpy(two, rest_, bytes_ % block);
  std::uint64_t low = low_ ^ (rotate(two[0] * c1, 31) * c2), high = high_ ^ (rotate(two[1] * c2, 33) * c1);
  low ^= bytes_, high ^= bytes_;
  low += high, high += low;
  low = finish(low), high = finish(high);
  low += high;
  return {low, high + low};
}

Digest digest_of(const Tensor& t) {
  DigestStream digest;
  if (t.defined() && t.elements() > 0) {
    if (t.device().is_cuda() && !t.device().is_dry && !t.is_contiguous()) {
      throw DeviceError("digest_of: " + describe(t) + " has gaps; expected a dense tensor on a GPU");
    }
    std::vector<std::byte> part(t.device().is_cuda() ? std::min<std::size_t>(t.bytes(), 1 << 20) : 0);
    fetch_parameters(t);
    launch(t.device(), [&](const Addresses& addresses) {
      const auto* const at = static_cast<const std::byte*>(addresses(t));
      if (t.device().is_cuda()) {
        add_downloaded(t, at, part, digest);
      } else if (t.is_contiguous()) {
        digest.add(at, t.bytes());
      } else {
        add_strided(t, at, digest);
      }
    });
  }
  if (t.scale()) {
    const Digest scale = digest_of(*t.scale());
    digest.add(&scale, sizeof scale);
  }
  return digest.value();
}

}  // namespace thimble::nn
