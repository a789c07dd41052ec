#pragma once
// Text of unknown origin on a terminal.

#include <string>
#include <string_view>

namespace thimble {

/// `text` as a terminal may have it: UTF-8 as it is, but control characters (escape sequences begin with one) and bytes
/// that are no UTF-8 as \xNN, those in `kept` excepted. quote() (core/files/bytes.h) is for names inside of a message.
std::string printable(std::string_view text, std::string_view kept = {});

}  // namespace thimble
