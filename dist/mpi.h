#pragma once
// Ranks as processes started by a launcher of MPI: mpirun, mpiexec, srun.

#include <exception>
#include <functional>
#include <optional>
#include <string>

#include <thimble/dist/communicator.h>

namespace thimble::dist {

/// A launch as the environment describes it.
struct Launch {
  int ranks;
  std::string launcher;              ///< "mpirun of Open MPI"
  std::vector<std::string> modules;  ///< candidates for it, the likeliest first: "thimble_openmpi.so"
};

/// The launch that this process is a rank of; nullopt if it was started directly. Reads only the environment variables
/// that srun and the mpirun of Open MPI and MPICH set. Throws ValueError if one has no number.
std::optional<Launch> find_launch();

/// Runs body(communicator) over all processes of the launch, with MPI in this thread, then finalizes MPI. Call it at
/// most once per process. Returns when the bodies of all ranks have ended.
///
/// If the body throws, writes `rank 2 of 4: text` to standard error and ends all ranks with the status that `status_of`
/// gives the error, without returning. Throws DeviceError: no launch, no module for it (searched in the folder that the
/// variable THIMBLE_MODULES names; without it in the folders of the program and the library, and in lib/thimble of
/// their install folder), or MPI does not start.
void run_launched(
    const std::function<void(Communicator&)>& body,
    int (*status_of)(const std::exception_ptr&) = [](const std::exception_ptr&) { return 1; });

}  // namespace thimble::dist
