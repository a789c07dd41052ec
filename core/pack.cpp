#include <thimble/core/pack.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include <thimble/core/convert.h>
#include <thimble/core/copy.h>
#include <thimble/core/error.h>
#include <thimble/core/launch.h>
#include <thimble/core/parallel.h>

namespace thimble {
namespace pack_detail {

constexpr std::int64_t block = 1024;        // values that are converted at once
constexpr std::int64_t grain = 16 * block;  // of a thread

bool is_scaled(DType dtype) noexcept { return dtype == DType::f8e4m3 || dtype == DType::f8e5m2; }
float largest(DType dtype) noexcept { return dtype == DType::f8e4m3 ? 448.0f : 57344.0f; }

void require_cpu(const Tensor& t) {
  if (t.device().is_cpu()) return;
  throw DeviceError("pack: " + describe(t) + "; scaled dtypes are packed on the cpu alone");
}

// Calls f(values, begin, count) for all blocks of a dense tensor.
template <class F>
void for_each_block(const void* data, DType dtype, std::int64_t n, F&& f) {
  const auto* const bytes = static_cast<const std::byte*>(data);
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    std::array<float, block> values;
    for (; begin < end; begin += block) {
      const std::int64_t count = std::min(block, end - begin);
      load_f32(bytes + begin * size, dtype, 1, values.data(), count);
      f(std::span(values).first(static_cast<std::size_t>(count)), begin);
    }
  });
}

float scale_of(const void* data, DType dtype, std::int64_t n, DType to) {
  std::atomic<std::uint32_t> amax{0};  // bits of a float >= 0: they are in order
  for_each_block(data, dtype, n, [&](std::span<float> values, std::int64_t) {
    float most = 0;
    for (const float v : values) most = std::isfinite(v) ? std::max(most, std::fabs(v)) : most;
    const auto bits = std::bit_cast<std::uint32_t>(most);
    for (std::uint32_t now = amax.load(); now < bits && !amax.compare_exchange_weak(now, bits);) continue;
  });
  const float scale = std::bit_cast<float>(amax.load()) / largest(to);
  return scale > std::numeric_limits<float>::min() ? scale : std::numeric_limits<float>::min();
}

// to[i] = op(from[i]) in f32, both dense.
template <class F>
void transform(const Addresses& at, const Tensor& from, const Tensor& to, F&& op) {
  auto* const target = at.as<std::byte>(to);
  const auto size = static_cast<std::int64_t>(size_of(to.dtype()));
  for_each_block(at(from), from.dtype(), from.elements(), [&](std::span<float> values, std::int64_t begin) {
    for (float& v : values) v = op(v);
    store_f32(values.data(), target + begin * size, to.dtype(), 1, static_cast<std::int64_t>(values.size()),
              Fp8Overflow::saturate);
  });
}

}  // namespace pack_detail

bool can_pack(DType from, DType to) noexcept {
  return is_floating(from) && is_floating(to) && size_of(to) < size_of(from);
}

Tensor pack(const Tensor& t, DType dtype) {
  if (!can_pack(t.dtype(), dtype)) {
    throw DTypeError("pack: " + describe(t) + " to " + std::string(to_string(dtype)) +
                     "; allowed is a narrower floating dtype");
  }
  if (!pack_detail::is_scaled(dtype)) return to_dtype(t, dtype);
  pack_detail::require_cpu(t);
  const Tensor dense = contiguous(t);
  Tensor packed = Tensor::empty(t.shape(), dtype, t.device());
  const Tensor scale = Tensor::empty({1}, DType::f32, t.device());
  launch(t.device(), [&](const Addresses& at) {
    const float s = pack_detail::scale_of(at(dense), dense.dtype(), dense.elements(), dtype);
    *at.as<float>(scale) = s;
    pack_detail::transform(at, dense, packed, [s](float v) { return v / s; });
  });
  packed.set_scale(scale);
  return packed;
}

Tensor unpack(const Tensor& packed, DType dtype) {
  if (!packed.scale()) return to_dtype(packed, dtype);
  pack_detail::require_cpu(packed);
  Tensor t = Tensor::empty(packed.shape(), dtype, packed.device());
  launch(packed.device(), [&](const Addresses& at) {
    const float s = *at.as<float>(*packed.scale());
    pack_detail::transform(at, packed, t, [s](float v) { return v * s; });
  });
  return t;
}

}  // namespace thimble
