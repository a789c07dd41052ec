// CRC-32C: published values, a bit-by-bit loop, the tables and the instruction agree, in pieces and at any address.

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <thimble/core/files/crc32c.h>

#include "support/catch.h"

namespace {

using namespace thimble;

std::uint32_t bit_by_bit(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const std::byte b : bytes) {
    crc ^= std::to_integer<std::uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = crc % 2 != 0 ? crc / 2 ^ 0x82F63B78 : crc / 2;
  }
  return ~crc;
}

}  // namespace

TEST_CASE("crc32c: published values", "[crc32c]") {
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending += static_cast<char>(i);
  CHECK(crc32c("123456789") == 0xE3069283);
  CHECK(crc32c("") == 0);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AA);    // RFC 3720, B.4
  CHECK(crc32c(std::string(32, '\xFF')) == 0x62A8AB43);  // RFC 3720, B.4
  CHECK(crc32c(ascending) == 0x46DD794E);                // RFC 3720, B.4
}

TEST_CASE("crc32c: instruction, tables and a loop over bits agree, in pieces and at any address", "[crc32c]") {
  std::mt19937 random(1);
  std::vector<std::byte> bytes(3000);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() & 0xFF);
  const std::span<const std::byte> all(bytes);
  for (int i = 0; i < 500; ++i) {
    const std::size_t begin = random() % 16, count = i < 100 ? static_cast<std::size_t>(i) : random() % 2900;
    const auto part = all.subspan(begin, count);
    const std::uint32_t expected = bit_by_bit(part);
    CHECK(crc32c(part) == expected);
    CHECK(crc32c_by_tables(part) == expected);
    const std::size_t cut = count == 0 ? 0 : random() % count;
    CHECK(crc32c(part.subspan(cut), crc32c(part.first(cut))) == expected);
    CHECK(crc32c_by_tables(part.subspan(cut), crc32c(part.first(cut))) == expected);
  }
}
