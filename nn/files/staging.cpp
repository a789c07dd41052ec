#include <thimble/nn/files/staging.h>

#include <algorithm>
#include <new>
#include <string>

#include <thimble/core/error.h>

namespace thimble::nn {

std::span<std::byte> FileStaging::room(std::vector<std::byte>& piece, std::size_t least_bytes) {
  const std::size_t bytes = std::max(file_piece_bytes, least_bytes);
  try {
    if (piece.size() < bytes) piece.resize(bytes);
  } catch (const std::bad_alloc&) {
    throw OutOfMemory("file: the heap has no " + std::to_string(bytes) + " bytes for a piece of a tensor",
                      {bytes, 0, 0, 0, 0});
  }
  return piece;
}

}  // namespace thimble::nn
