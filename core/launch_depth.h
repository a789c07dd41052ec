#pragma once
// How many launches of this thread are inside of each other. For who asks at every allocation; others ask
// is_launching() (core/launch.h). constinit: no access goes through an initialisation check.

namespace thimble::launch_detail {

extern constinit thread_local int depth;

}  // namespace thimble::launch_detail
