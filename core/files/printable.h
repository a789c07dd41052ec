#pragma once
// Text of unknown origin on a terminal.

#include <cstddef>
#include <string>
#include <string_view>

namespace thimble {

/// Bytes of the UTF-8 character that `text`, which is not empty, begins with; 0: it begins with none (RFC 3629).
std::size_t utf8_length(std::string_view text);

/// `text` as a terminal may have it: UTF-8 as it is, but control characters (escape sequences begin with one) and bytes
/// that are no UTF-8 as \xNN, those in `kept` excepted. quote() (core/files/bytes.h) is for names inside of a message.
std::string printable(std::string_view text, std::string_view kept = {});

}  // namespace thimble
