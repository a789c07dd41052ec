#pragma once
// Transfers between tensors and files. Bytes that need another layout or dtype pass through a staging of
// file_staging_bytes per file; all others go directly between the disk and the tensor's storage.

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

/// Most bytes converted or transposed at a time, unless a single filter or image is larger.
inline constexpr std::size_t file_piece_bytes = std::size_t{256} << 10;
/// Heap bytes for reading or writing one file: a piece in the file's form and a piece in the tensor's.
inline constexpr std::size_t file_staging_bytes = 2 * file_piece_bytes;

/// Two buffers, allocated on first use.
class FileStaging {
 public:
  /// The buffers in the file's form and in the tensor's: the larger of file_piece_bytes and `least_bytes`. Throw
  /// OutOfMemory.
  std::span<std::byte> of_file(std::size_t least_bytes = 0) { return room(of_file_, least_bytes); }
  std::span<std::byte> of_tensor(std::size_t least_bytes = 0) { return room(of_tensor_, least_bytes); }

 private:
  static std::span<std::byte> room(std::vector<std::byte>& piece, std::size_t least_bytes);
  std::vector<std::byte> of_file_, of_tensor_;
};

// ---- Named tensors to and from safetensors files, shared by weights and checkpoints. A dense CPU tensor needs no
// temporary besides the staging. A GPU tensor passes through the CPU's resource in pieces.

/// Text in a file besides its tensors. Keys and values are UTF-8.
using Metadata = std::map<std::string, std::string>;

/// The file's shape of a tensor of shape `memory`: oihw turns (O, KH, KW, I) into (O, I, KH, KW).
Shape file_shape(const Shape& memory, FileLayout layout);

/// The data to write contain a NaN or an infinity. The file stays unchanged.
class NotFiniteError : public ValueError {
 public:
  using ValueError::ValueError;
};

/// The numbers that a file may hold.
enum class Numbers : std::uint8_t { any, finite };

/// Writes the tensors in the file's layout and their dtypes. The file appears whole or not at all. Throws DeviceError
/// (a tensor on a dry device has no values), DTypeError (a quantized tensor, whose scales would be lost), ValueError (a
/// repeated name, text that is not UTF-8), NotFiniteError naming the tensor if `numbers` is finite, FileError.
void write_tensor_file(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata,
                       Numbers numbers = Numbers::any);

/// Writes tensors that are never in memory all at once: `here`, and one tensor for each shape and dtype of `outline`.
/// `each(append)` calls append with the bytes of every tensor of the outline.
void write_tensor_file(const std::string& path, const std::vector<NamedTensor>& here,
                       const std::vector<NamedTensor>& outline, const Metadata& metadata,
                       FunctionRef<void(FunctionRef<void(const NamedTensor&)>)> each, Numbers numbers = Numbers::any);

/// Whether a file's element type may differ from the tensor's if both are floating.
enum class Conversion : std::uint8_t { none, floating };

/// Throws ShapeError or DTypeError, naming the tensor and both sides, unless `entry` can be read into `target`.
/// `operation` begins the message.
void check_file_tensor(const std::string& operation, const SafetensorsEntry& entry, const NamedTensor& target,
                       Conversion conversion);

/// Reads an entry that passed check_file_tensor() into `target` and converts layout and dtype: nearest, ties to even,
/// from f32 directly. A target on a dry device stays unchanged. Throws FileError, OutOfMemory, DeviceError.
void read_file_tensor(const SafetensorsReader& file, const SafetensorsEntry& entry, const NamedTensor& target,
                      FileStaging& staging);

// Ranges of training state. Loading rejects a file with other numbers before the first value changes.
//
//   tensor                                                         dtype   expected
//   fp8_amax                                                       f32     finite, >= 0
//   fp8_scale                                                      f32     0 (none yet), 2^-60 to 2^100
//   fp8_steps (core/ops/quant/fp8.h)                               i64     >= 0
//   first_moment_scale, second_moment_scale, momentum_scale        f32     finite, >= 0
//   second_moment, row_moment, column_moment                       float   finite, >= 0
//
// The name is the last dotted part. Tensors of other dtypes, fp8_scale not of shape (3), fp8_amax and fp8_steps not of
// shape (3, N), and moments outside "optimizer." are not checked.

/// Checks an entry that passed check_file_tensor() against the rule for `target`, if there is one: reads the values in
/// pieces through `room` and converts them to the target's dtype. Throws ValueError, naming the tensor, the index, its
/// value and the expected range. Skips targets on a dry device.
void check_state_numbers(const std::string& operation, const SafetensorsReader& file, const SafetensorsEntry& entry,
                         const NamedTensor& target, FileStaging& room);

}  // namespace thimble::nn
