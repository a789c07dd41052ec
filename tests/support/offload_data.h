#pragma once
// Helpers of the tests of offloading: a folder on a disk, tensors of known bytes, a tier's counts.

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <thimble/core/ops/copy.h>
#include <thimble/memory/offload/file_tier.h>

#include "catch.h"
#include "skip.h"

namespace offload_test {

using namespace thimble;

using Bytes = std::vector<std::byte>;

// A folder on a disk; empty if this machine's temporary folders are all in memory, which skips the test case, and in CI
// fails it.
inline std::string disk_folder() {
  static const std::string folder = [] {
    for (const std::string& candidate : {std::filesystem::temp_directory_path().string(), std::string("/var/tmp"),
                                         std::filesystem::current_path().string()}) {
      try {
        const memory::DirectFile probe(candidate);
        return candidate;
      } catch (const FileError&) {
      }
    }
    return std::string();
  }();
  if (folder.empty()) {
    const std::string reason = "neither /tmp, /var/tmp nor the current folder is on a disk with direct I/O";
    if (thimble_test::is_ci()) FAIL("CI has no direct I/O: " << reason);
    thimble_test::skip(reason);
  }
  return folder;
}

inline memory::FileTier::Options options_at(const std::string& folder, std::size_t chunk = 16384, int workers = 2) {
  memory::FileTier::Options options;
  options.folder = folder;
  options.chunk_bytes = chunk;
  options.workers = workers;
  return options;
}

// Bytes that depend on their position and on `seed`; bools are 0 and 1.
inline Tensor pattern(const Shape& shape, DType dtype, std::uint32_t seed,
                      memory::Category category = memory::Category::temporary) {
  Tensor t = Tensor::empty(shape, dtype, cpu, category);
  if (t.elements() == 0) return t;
  const memory::WritePin pin(t);
  auto* const bytes = static_cast<unsigned char*>(pin.data());
  std::uint32_t state = seed * 2654435761u + 1;
  for (std::size_t i = 0; i < t.bytes(); ++i) {
    state = state * 1664525u + 1013904223u;
    bytes[i] = static_cast<unsigned char>(dtype == DType::boolean ? state >> 31 : state >> 24);
  }
  return t;
}

inline Bytes bytes_of(const Tensor& t) {
  Bytes bytes(t.bytes());
  const Tensor dense = contiguous(t);
  if (!bytes.empty()) std::memcpy(bytes.data(), memory::Pin(dense).data(), bytes.size());
  return bytes;
}

// The statistics without times.
inline std::vector<std::uint64_t> counts(const memory::TierStatistics& s) {
  return {s.writes, s.reads, s.bytes_written, s.bytes_read, s.live_bytes, s.committed_bytes};
}

}  // namespace offload_test
