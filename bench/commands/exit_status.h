#pragma once

namespace thimble::bench {

/// The exit status of a command that did its work but could not write all that it has to say: standard output, or the
/// curves of --log. bench/main.cpp lists the others.
inline constexpr int output_lost_status = 6;

}  // namespace thimble::bench
