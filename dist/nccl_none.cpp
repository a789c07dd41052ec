// Replaces nccl.cpp in a build without CUDA or NCCL's header.

#include <thimble/dist/nccl.h>

namespace thimble::dist {

std::unique_ptr<Communicator> make_nccl(Communicator&, memory::Device device) {
  throw DeviceError(to_string(device) + ": this build has no NCCL; ranks are threads, or processes under MPI");
}

}  // namespace thimble::dist
