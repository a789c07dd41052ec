#pragma once
// CRC-32C, the checksum of the project's files (nn/files/safetensors.h, nn/log/tensorboard.h).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace thimble {

/// CRC-32C (Castagnoli polynomial 0x1EDC6F41, reflected, initial and final value all ones; RFC 3720 appendix B.4):
/// "123456789" gives 0xE3069283. Detects every change within 32 consecutive bits. `crc` is the sum of the bytes before
/// these, so a long input can be summed in parts. Uses the processor's instruction if it has one.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0) noexcept;
std::uint32_t crc32c(std::string_view text, std::uint32_t crc = 0) noexcept;

/// crc32c by tables on every machine: the oracle for the instruction.
std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t crc = 0) noexcept;

}  // namespace thimble
