#pragma once
// Options of the library as the flags of the program.

#include <string>
#include <string_view>

namespace thimble::bench {

/// A text of the library in the program's words: an option that it names in backticks is its flag here,
/// "`micro_batches`: auto" becomes "--micro-batches: auto".
std::string with_flags(std::string_view text);

}  // namespace thimble::bench
