#pragma once
// The tier of a device, for its offloaded tensors.
//
//   cpu    a file on a disk                   memory/offload/file_tier.h
//   cuda   the host's pinned memory           memory/offload/pinned_tier.h
//   dry    as the device it represents

#include <memory>
#include <string>

#include <thimble/memory/offload/tier.h>

namespace thimble::memory {

struct TierOptions {
  std::string folder;                ///< of the cpu's file; defaults to $TMPDIR, or /var/tmp. Not with a GPU
  std::uint64_t capacity_bytes = 0;  ///< bound of the tier's bytes; defaults to the room of the disk or the host
};

/// Throws ValueError for a folder where the tier is memory; FileError, DeviceError as the tiers do.
std::shared_ptr<Tier> make_tier(Device device, const TierOptions& options = {});

}  // namespace thimble::memory
