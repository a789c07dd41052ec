#include <thimble/memory/offload/tier.h>

#include <thimble/core/error.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/memory/offload/pinned_tier.h>

namespace thimble::memory {

std::shared_ptr<Tier> make_tier(Device device, const TierOptions& options) {
  if (device.is_cuda()) {
    if (!options.folder.empty()) {
      throw ValueError("tier: '" + options.folder + "' for " + to_string(device) +
                       ", whose tensors wait in the host's pinned memory; give no folder");
    }
    return std::make_shared<PinnedTier>(device, options.capacity_bytes);
  }
  FileTier::Options file;
  file.folder = options.folder;
  file.capacity_bytes = options.capacity_bytes;
  return std::make_shared<FileTier>(device, file);
}

}  // namespace thimble::memory
