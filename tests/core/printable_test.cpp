// What a terminal is given of text of unknown origin.

#include <string>

#include <thimble/core/files/printable.h>

#include "support/catch.h"

using thimble::printable;

TEST_CASE("printable: text stays, what a terminal obeys is escaped", "[printable]") {
  CHECK(printable("plain, with 100 %") == "plain, with 100 %");
  CHECK(printable("\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80") == "\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80");
  CHECK(printable("\x1B[31mred\x07") == "\\x1b[31mred\\x07");
  CHECK(printable(std::string("a\0b", 3)) == "a\\x00b");
  CHECK(printable("a\nb\tc\r") == "a\\x0ab\\x09c\\x0d");
  CHECK(printable("a\nb\tc\r", "\n\t") == "a\nb\tc\\x0d");
  CHECK(printable("\x7F") == "\\x7f");
  CHECK(printable("\xC2\x9B"
                  "31m") == "\\xc2\\x9b31m");                      // U+009B begins a sequence as ESC [ does
  CHECK(printable("\x9B") == "\\x9b");                             // no UTF-8
  CHECK(printable("\xC3") == "\\xc3");                             // cut
  CHECK(printable("\xC0\xAF") == "\\xc0\\xaf");                    // longer than it need be
  CHECK(printable("\xED\xA0\x80") == "\\xed\\xa0\\x80");           // a surrogate
  CHECK(printable("\xF4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");  // above U+10FFFF
  CHECK(printable("\x1F\xC2\x9F") == "\\x1f\\xc2\\x9f");           // the last controls
  // The first and the last character of each length, and those beside the surrogates.
  for (const char* const text : {" ", "~", "\xC2\xA0", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                                 "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    CHECK(printable(text) == text);
  }
}
