#pragma once
// Transfers between a tensor and a file: bytes that need another layout or dtype pass through one buffer of a stated
// size, taken once per file; all others go directly between the disk and the tensor's storage.

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
/// Heap bytes for reading or writing one file: a piece in the file's form, and one in the tensor's.
inline constexpr std::size_t file_staging_bytes = 2 * file_piece_bytes;

/// Two pieces, taken when they are first needed.
class FileStaging {
 public:
  /// The piece in the file's form, and in the tensor's: file_piece_bytes, or `least_bytes` if that is more. Throws
  /// OutOfMemory.
  std::span<std::byte> of_file(std::size_t least_bytes = 0) { return room(of_file_, least_bytes); }
  std::span<std::byte> of_tensor(std::size_t least_bytes = 0) { return room(of_tensor_, least_bytes); }

 private:
  static std::span<std::byte> room(std::vector<std::byte>& piece, std::size_t least_bytes);
  std::vector<std::byte> of_file_, of_tensor_;
};

// ---- Named tensors to and from safetensors files, shared by weights and checkpoints. A dense tensor of the CPU needs
// no temporary: its bytes go between the file and its storage, in another layout or dtype through a staging of a stated
// size. One of a GPU passes through the CPU's resource in pieces.

/// Text in a file besides its tensors. Keys and values are UTF-8.
using Metadata = std::map<std::string, std::string>;

/// The shape that a tensor of shape `memory` has in a file: oihw turns (O, KH, KW, I) into (O, I, KH, KW).
Shape file_shape(const Shape& memory, FileLayout layout);

/// The data to write contain a NaN or an infinity; the file stays unchanged.
class NotFiniteError : public ValueError {
 public:
  using ValueError::ValueError;
};

/// Which numbers a file may hold.
enum class Numbers : std::uint8_t { any, finite };

/// Writes a file with these tensors, in the file's layout and their own dtypes; it appears whole or not at all. Throws
/// DeviceError (a tensor on a dry device has no values), DTypeError (a quantized tensor, whose scales are not in the
/// file), ValueError (a repeated name, text that is not UTF-8), NotFiniteError naming the tensor if `numbers` asks for
/// it, FileError.
void write_tensor_file(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata,
                       Numbers numbers = Numbers::any);

/// The same for tensors that are never all here at once: the file gets `here`, and those with the shapes and dtypes of
/// `outline`. `each(append)` calls append for each of these, with its bytes.
void write_tensor_file(const std::string& path, const std::vector<NamedTensor>& here,
                       const std::vector<NamedTensor>& outline, const Metadata& metadata,
                       FunctionRef<void(FunctionRef<void(const NamedTensor&)>)> each, Numbers numbers = Numbers::any);

/// Whether a file's element type may differ from the tensor's if both are floating.
enum class Conversion : std::uint8_t { none, floating };

/// Throws ShapeError or DTypeError, naming the tensor and both sides, unless `entry` can be read into `target`.
/// `operation` begins the message.
void check_file_tensor(const std::string& operation, const SafetensorsEntry& entry, const NamedTensor& target,
                       Conversion conversion);

/// Reads an entry that check_file_tensor() has passed into `target`, converted to its layout and dtype: nearest, ties
/// to even, from f32 directly. A target on a dry device stays unchanged. Throws FileError, OutOfMemory, DeviceError.
void read_file_tensor(const SafetensorsReader& file, const SafetensorsEntry& entry, const NamedTensor& target,
                      FileStaging& staging);

// Numbers that training state cannot have, although shape and dtype are right: a file with them is refused before the
// first value changes.
//
//   tensor                                                         dtype   allowed
//   fp8_amax                                                       f32     finite, >= 0
//   fp8_scale                                                      f32     0 (none yet), 2^-60 to 2^100
//   fp8_steps (core/ops/quant/fp8.h)                               i64     >= 0
//   first_moment_scale, second_moment_scale, momentum_scale        f32     finite, >= 0
//   second_moment, row_moment, column_moment                       float   finite, >= 0
//
// The name is the last dotted part. Tensors of another dtype are not checked, nor those of FP8's names whose first size
// is not 3, nor moments that are not under "optimizer.".

/// If there is a rule for `target`, which check_file_tensor() has passed, reads the values in pieces through `room`, as
/// they would be in its dtype. Throws ValueError, naming the tensor, the index, its value and the allowed ones. Targets
/// on a dry device get no values and are skipped.
void check_state_numbers(const std::string& operation, const SafetensorsReader& file, const SafetensorsEntry& entry,
                         const NamedTensor& target, FileStaging& room);

}  // namespace thimble::nn
