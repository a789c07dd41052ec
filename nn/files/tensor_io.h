#pragma once
// Bytes on their way between a tensor and a file: what a tensor's bytes are not as the file has them passes through one
// buffer of a stated size, taken once per file; all else goes straight between the disk and the tensor's storage.

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/nn/files/safetensors.h>
#include <thimble/nn/layers/module.h>

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

// ---- Named tensors to and from safetensors files: what weights and checkpoints share. A dense tensor of the CPU needs
// no temporary: its bytes go between the file and its storage, in another layout or dtype through a staging of a stated
// size. One of a GPU passes through the CPU's resource in pieces.

/// Text that a file carries besides its tensors. Keys and values are UTF-8.
using Metadata = std::map<std::string, std::string>;

/// The shape that a tensor of shape `memory` has in a file: oihw turns (O, KH, KW, I) into (O, I, KH, KW).
Shape file_shape(const Shape& memory, FileLayout layout);

/// What was to be written holds a NaN or an infinity; the file stays as it was.
class NotFiniteError : public ValueError {
 public:
  using ValueError::ValueError;
};

/// Which numbers a file may hold.
enum class Numbers : std::uint8_t { any, finite };

/// Writes a file with these tensors, in the file's layout and their own dtypes; it appears whole or not at all. Throws
/// DeviceError (a tensor on a dry device has no values), DTypeError (a quantized tensor, whose scales are not in the
/// file), ValueError (a repeated name, text that is not UTF-8), NotFiniteError naming the tensor where
/// `numbers` says so, FileError.
void write_tensor_file(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata,
                       Numbers numbers = Numbers::any);

/// The same for tensors that are not here all at once: the file gets `here`, and those whose shapes and dtypes
/// `outline` has. `each(append)` calls append for every one of these, with its bytes.
void write_tensor_file(const std::string& path, const std::vector<NamedTensor>& here,
                       const std::vector<NamedTensor>& outline, const Metadata& metadata,
                       FunctionRef<void(FunctionRef<void(const NamedTensor&)>)> each, Numbers numbers = Numbers::any);

/// Whether a file's element type may differ from the tensor's when both are floating.
enum class Conversion : std::uint8_t { none, floating };

/// Throws ShapeError or DTypeError, naming the tensor and what both sides have, unless `entry` can be read into
/// `target`. `operation` begins the message.
void check_file_tensor(const std::string& operation, const SafetensorsEntry& entry, const NamedTensor& target,
                       Conversion conversion);

/// Reads what check_file_tensor() has passed into `target`, converted to its layout and dtype: nearest, ties to even,
/// from f32 directly. A target on a dry device is left alone. Throws FileError, OutOfMemory, DeviceError.
void read_file_tensor(const SafetensorsReader& file, const SafetensorsEntry& entry, const NamedTensor& target,
                      FileStaging& staging);

}  // namespace thimble::nn
