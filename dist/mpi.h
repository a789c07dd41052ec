#pragma once
// Ranks as processes started by a launcher of MPI: mpirun, mpiexec, srun.

#include <exception>
#include <functional>
#include <optional>
#include <string>

#include <thimble/dist/communicator.h>

namespace thimble::dist {

/// The environment's facts about a launch.
struct Launch {
  int ranks;
  std::string launcher;              ///< "mpirun of Open MPI"
  std::vector<std::string> modules;  ///< candidates for it, the likeliest first: "thimble_openmpi.so"
};

/// The launch that this process is a rank of; nullopt when it was started directly. Reads only the environment
/// variables that mpirun of Open MPI and of MPICH and srun set.
std::optional<Launch> find_launch();

/// Runs body(communicator) over all processes of the launch, with MPI in this thread, and ends MPI after it. Call it
/// once in the life of a process. It returns when the bodies of all ranks have ended.
///
/// If the body throws, `rank 2 of 4: text` goes to standard error and all ranks are ended, with the status that
/// `status_of` gives the error: this does not return. Throws DeviceError: no launch, no module for it (searched beside
/// the program and the library, in lib/thimble of their install folder, and in the folder that the variable
/// THIMBLE_MODULES names), or MPI does not start.
void run_launched(
    const std::function<void(Communicator&)>& body,
    int (*status_of)(const std::exception_ptr&) = [](const std::exception_ptr&) { return 1; });

}  // namespace thimble::dist
