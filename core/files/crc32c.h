#pragma once
// CRC-32C: the checksum of files that are written here (nn/files/safetensors.h, nn/log/tensorboard.h).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace thimble {

/// CRC-32C (Castagnoli polynomial 0x1EDC6F41, reflected, initial and final value all ones; RFC 3720 appendix B.4):
/// "123456789" gives 0xE3069283. Every change within 32 bits in a row, and so every flipped bit, changes it. `crc` is
/// that of the bytes before these: a sum can be taken in pieces. By the processor's instruction where there is one.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0) noexcept;
std::uint32_t crc32c(std::string_view text, std::uint32_t crc = 0) noexcept;

/// The same by tables, on every machine: the oracle of the instruction.
std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t crc = 0) noexcept;

}  // namespace thimble
