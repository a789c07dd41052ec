#pragma once
// Text of unknown origin on a terminal.

#include <cstddef>
#include <string>
#include <string_view>

namespace thimble {

/// Bytes of the UTF-8 character at the start of the non-empty `text`; 0 if it is invalid (RFC 3629).
std::size_t utf8_length(std::string_view text);

/// `text` made safe for a terminal: control characters (which begin escape sequences) and invalid UTF-8 become \xNN,
/// except the characters in `kept`. For names inside a message, use quote() (core/files/bytes.h).
std::string printable(std::string_view text, std::string_view kept = {});

}  // namespace thimble
