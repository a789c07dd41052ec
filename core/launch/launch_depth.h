#pragma once
// Nesting depth of this thread's launches, for code that asks at every allocation; other code asks is_launching()
// (core/launch/launch.h). constinit: no access goes through an initialisation check.

namespace thimble::launch_detail {

extern constinit thread_local int depth;

}  // namespace thimble::launch_detail
