#pragma once
// Reads and writes a dense tensor's bytes, on any device.

#include <cstddef>
#include <cstring>
#include <vector>

#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble::testing {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(const Tensor& t) {
  Bytes bytes(t.bytes());
  if (bytes.empty()) return bytes;
  fetch_parameters(t);
  launch(t.device(), [&](const Addresses& at) {
    if (t.device().is_cuda()) {
      kernels::device_runtime(t.device()).download(bytes.data(), at(t), bytes.size());
    } else {
      std::memcpy(bytes.data(), at(t), bytes.size());
    }
  });
  return bytes;
}

/// Does nothing on a dry device.
inline void put_bytes(const Tensor& t, const void* from) {
  if (t.bytes() == 0) return;
  fetch_parameters(t);
  launch(t.device(), [&](const Addresses& at) {
    if (t.device().is_cuda()) {
      kernels::device_runtime(t.device()).upload(at(t), from, t.bytes());
    } else {
      std::memcpy(at(t), from, t.bytes());
    }
  });
}

}  // namespace thimble::testing
