#include <thimble/core/files/crc32c.h>

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace thimble {
namespace {

static_assert(std::endian::native == std::endian::little, "eight bytes are taken as one number");

// tables[0] has the sums of one byte, tables[k] of a byte followed by k zeros ("slicing by 8").
using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78u : 0u);
    tables[0][i] = value;
  }
  for (std::size_t k = 1; k < tables.size(); ++k) {
    for (std::size_t i = 0; i < 256; ++i) {
      tables[k][i] = (tables[k - 1][i] >> 8) ^ tables[0][tables[k - 1][i] & 0xFF];
    }
  }
  return tables;
}
constexpr Tables tables = make_tables();

std::uint64_t load_eight(const std::byte* at) noexcept {
  std::uint64_t eight;
  std::memcpy(&eight, at, sizeof eight);
  return eight;
}

#if defined(__x86_64__)
bool has_instruction() noexcept { return __builtin_cpu_supports("sse4.2") != 0; }

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::span<const std::byte> bytes,
                                                               std::uint32_t crc) noexcept {
  std::uint64_t sum = ~crc;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) sum = _mm_crc32_u64(sum, load_eight(bytes.data()));
  auto narrow = static_cast<std::uint32_t>(sum);
  for (const std::byte b : bytes) narrow = _mm_crc32_u8(narrow, std::to_integer<unsigned char>(b));
  return ~narrow;
}
#elif defined(__ARM_FEATURE_CRC32)
bool has_instruction() noexcept { return true; }

std::uint32_t by_instruction(std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
  std::uint32_t sum = ~crc;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) sum = __crc32cd(sum, load_eight(bytes.data()));
  for (const std::byte b : bytes) sum = __crc32cb(sum, std::to_integer<std::uint8_t>(b));
  return ~sum;
}
#else
bool has_instruction() noexcept { return false; }

std::uint32_t by_instruction(std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
  return crc32c_by_tables(bytes, crc);
}
#endif

}  // namespace

std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
  crc = ~crc;
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    const std::uint64_t eight = load_eight(bytes.data()) ^ crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= tables[7 - i][(eight >> (8 * i)) & 0xFF];
  }
  for (const std::byte b : bytes) crc = (crc >> 8) ^ tables[0][(crc ^ std::to_integer<std::uint32_t>(b)) & 0xFF];
  return ~crc;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
  static const bool has_it = has_instruction();
  return has_it ? by_instruction(bytes, crc) : crc32c_by_tables(bytes, crc);
}

std::uint32_t crc32c(std::string_view text, std::uint32_t crc) noexcept {
  return crc32c(std::as_bytes(std::span(text.data(), text.size())), crc);
}

}  // namespace thimble
