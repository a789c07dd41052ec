#include "support/catch.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/memory/units.h>

namespace {

// The message of the ValueError for `text`.
std::string refusal(const std::string& text) {
  try {
    thimble::parse_size(text);
  } catch (const thimble::ValueError& error) {
    return error.what();
  }
  return "no ValueError";
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("units: bytes are written in the largest binary unit", "[units]") {
  struct Row {
    std::int64_t bytes;
    const char* text;
  };
  constexpr std::int64_t gib = std::int64_t{1} << 30;
  const std::vector<Row> rows = {
      {0, "0 B"},
      {1, "1 B"},
      {1023, "1023 B"},
      {1024, "1.00 KiB"},
      {1536, "1.50 KiB"},
      {-1536, "-1.50 KiB"},
      {1024 * 1024 - 1, "1.00 MiB"},  // 1023.999 KiB rounds into the next unit
      {1024 * 1024 - 6, "1023.99 KiB"},
      {84'303'872, "80.40 MiB"},
      {5'358'000'000, "4.99 GiB"},
      {15'820'000'000, "14.73 GiB"},
      {gib, "1.00 GiB"},
      {gib + gib / 100, "1.01 GiB"},
      {(std::int64_t{1} << 40) * 3, "3.00 TiB"},
      {(std::int64_t{1} << 50) * 7 + (std::int64_t{1} << 49), "7.50 PiB"},
      {(std::int64_t{1} << 60) + (std::int64_t{1} << 59), "1.50 EiB"},
      {std::numeric_limits<std::int64_t>::max(), "8.00 EiB"},
      {std::numeric_limits<std::int64_t>::min(), "-8.00 EiB"},
  };
  for (const Row& row : rows) {
    INFO(row.bytes);
    CHECK(thimble::format_bytes(row.bytes) == row.text);
  }
}

TEST_CASE("units: digits are grouped in threes", "[units]") {
  struct Row {
    std::int64_t value;
    const char* text;
  };
  const std::vector<Row> rows = {{0, "0"},
                                 {999, "999"},
                                 {-999, "-999"},
                                 {1000, "1,000"},
                                 {-1000, "-1,000"},
                                 {123456, "123,456"},
                                 {15'820'000'000, "15,820,000,000"},
                                 {std::numeric_limits<std::int64_t>::min(), "-9,223,372,036,854,775,808"}};
  for (const Row& row : rows) CHECK(thimble::format_grouped(row.value) == row.text);
}

TEST_CASE("units: a size is read exactly", "[units]") {
  struct Row {
    const char* text;
    std::int64_t bytes;
  };
  const std::vector<Row> rows = {
      {"0", 0},
      {"1073741824", 1073741824},
      {"007", 7},
      {"512B", 512},
      {"512MiB", 512LL << 20},
      {"512 MiB", 512LL << 20},
      {"512mib", 512LL << 20},
      {"2KB", 2000},
      {"2KiB", 2048},
      {"3TB", 3'000'000'000'000},
      {"1TiB", 1LL << 40},
      {"4.99GB", 4'990'000'000},
      {"4.99GiB", 5'357'971'701},                   // 5,357,971,701.76
      {"0.1KiB", 102},                              // 102.4
      {"0.999999999999999999999999999999KB", 999},  // never rounded up
      {"1.0000000000000000000000000000000000000KB", 1000},
      {"0.001KB", 1},
      {"9223372036854775807", std::numeric_limits<std::int64_t>::max()},
      {"8388607.9999TiB", 9'223'372'036'744'824'645},  // (2^23 - 0.0001) 2^40 = ...645.2224
  };
  for (const Row& row : rows) {
    INFO(row.text);
    CHECK(thimble::parse_size(row.text) == row.bytes);
  }
}

TEST_CASE("units: what is not a size is refused by name", "[units]") {
  struct Row {
    std::string text;
    const char* why;
  };
  const std::vector<Row> rows = {
      {"", "is empty"},
      {"-1", "is negative"},
      {"-4GiB", "is negative"},
      {"+4GiB", "not a number of bytes"},
      {"nan", "not a number of bytes"},
      {"inf", "not a number of bytes"},
      {"GiB", "not a number of bytes"},
      {".5GiB", "not a number of bytes"},
      {"5.GiB", "not a number of bytes"},
      {"0x10", "no known unit"},
      {"1e9", "no known unit"},
      {"4Gib/s", "no known unit"},
      {"4G", "no known unit"},
      {"1,000", "no known unit"},
      {"1.2.3GB", "no known unit"},
      {"4  GiB", "no known unit"},
      {"4GiB ", "no known unit"},
      {"4 ", "ends with a space"},
      {" 4", "not a number of bytes"},
      {"1.5", "a fraction of a byte"},
      {"1.5B", "a fraction of a byte"},
      {"9223372036854775808", "more than 2^63 - 1"},
      {"8388608TiB", "more than 2^63 - 1"},
      {"99999999999999999999999TB", "more than 2^63 - 1"},
  };
  for (const Row& row : rows) {
    INFO(row.text);
    const std::string message = refusal(row.text);
    INFO(message);
    CHECK(holds(message, row.why));
    CHECK(holds(message, "\"" + row.text + "\""));
    CHECK(holds(message, "512MiB or 4.99GB"));
  }
  // The message stays one short line for any input.
  CHECK(holds(refusal("4\n\x1b[31mGiB"), "\"4??[31mGiB\""));
  CHECK(holds(refusal(std::string(1000, '7')), std::string(40, '7') + "...\""));
  CHECK(holds(refusal(std::string(40, '7')), std::string(40, '7') + "\""));
}
