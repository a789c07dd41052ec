#pragma once
// Translates the library's options into the program's flags.

#include <string>
#include <string_view>

namespace thimble::bench {

/// Replaces options in backticks by their flags: "`micro_batches`: auto" becomes "--micro-batches: auto".
std::string with_flags(std::string_view text);

}  // namespace thimble::bench
