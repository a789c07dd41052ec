#pragma once
// Bytes on their way between a tensor and a file: what a tensor's bytes are not as the file has them passes through one
// buffer of a stated size, taken once per file; all else goes straight between the disk and the tensor's storage.

#include <cstddef>
#include <span>
#include <vector>

namespace thimble::nn {

/// Largest piece that is converted or put into another layout at a time, unless one filter or image has more.
inline constexpr std::size_t file_piece_bytes = std::size_t{256} << 10;
/// What reading or writing one file takes of the heap: a piece as the file has it, and one as the tensor does.
inline constexpr std::size_t file_staging_bytes = 2 * file_piece_bytes;

/// Two pieces, taken when they are first needed.
class FileStaging {
 public:
  /// The piece as the file has it, and as the tensor has it: file_piece_bytes, or more where `least_bytes` is more.
  /// Throws OutOfMemory.
  std::span<std::byte> of_file(std::size_t least_bytes = 0) { return room(of_file_, least_bytes); }
  std::span<std::byte> of_tensor(std::size_t least_bytes = 0) { return room(of_tensor_, least_bytes); }

 private:
  static std::span<std::byte> room(std::vector<std::byte>& piece, std::size_t least_bytes);
  std::vector<std::byte> of_file_, of_tensor_;
};

}  // namespace thimble::nn
