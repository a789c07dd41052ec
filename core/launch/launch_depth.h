#pragma once
// Nesting depth of this thread's launches, for code that reads it at every allocation; other code calls is_launching()
// (core/launch/launch.h). constinit avoids an initialisation check at each access.

namespace thimble::launch_detail {

extern constinit thread_local int depth;

}  // namespace thimble::launch_detail
