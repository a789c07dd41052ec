#pragma once
// The tier of a device: where its tensors wait when they are offloaded.
//
//   cpu    a file on a disk                   memory/offload/file_tier.h
//   cuda   the host's pinned memory           memory/offload/pinned_tier.h
//   dry    that of the device it stands for

#include <memory>
#include <string>

#include <thimble/memory/offload/tier.h>

namespace thimble::memory {

struct TierOptions {
  std::string folder;                ///< of the cpu's file; empty: $TMPDIR, or /var/tmp. Not with a GPU
  std::uint64_t capacity_bytes = 0;  ///< bound of what the tier occupies; 0: what the disk or the host has
};

/// Throws ValueError for a folder where the tier is memory; FileError, DeviceError as the tiers do.
std::shared_ptr<Tier> make_tier(Device device, const TierOptions& options = {});

}  // namespace thimble::memory
