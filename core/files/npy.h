#pragma once
// NumPy's .npy files, format versions 1.0, 2.0 and 3.0 (numpy.lib.format): the magic "\x93NUMPY", two version bytes,
// the header's length (u16 in 1.0, else u32), a Python dict ending in a newline, then the elements, row-major.
//
// Element types: '<f8' '<f4' '<f2' '<i8' '<i4' '|i1' '|u1' '|b1' for f64 f32 f16 i64 i32 i8 u8 bool. One-byte types may
// have '<', '>' or '=' for '|', as cnpy writes them. '<u2' is read as i32 and '<u4' as i64, which hold their values.
// Sizes may end in L, as Python 2 wrote them. The format has no bf16 and fp8; convert to f32 first.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <thimble/core/dtype.h>
#include <thimble/core/tensor/tensor.h>

namespace thimble {

/// The parsed header of a .npy file.
struct NpyHeader {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  ///< at most max_rank sizes; empty for a scalar
  std::uint64_t data_offset = 0;    ///< of the elements in the file
  std::uint64_t data_bytes = 0;     ///< of the elements in `dtype`
  std::uint64_t file_bytes = 0;     ///< of the elements in the file; half of data_bytes for unsigned types
  bool is_unsigned = false;         ///< '<u2' or '<u4', read as i32 or i64
};

/// A whole array in memory; elements are row-major and little-endian.
struct NpyArray {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};

/// Reads the header from the first bytes of a file of `file_bytes` bytes (`start` may be the whole file). Throws
/// FileError naming `path`, the byte and the reason: not a .npy file, a header cut short or longer than 65,536 bytes, a
/// dict with missing, repeated or unknown keys, an unsupported element type (all big-endian ones are), column-major
/// (fortran_order) data of more than one axis, a negative, overflowing or too long shape, a file size that does not fit
/// the shape.
NpyHeader parse_npy_header(std::span<const std::byte> start, std::uint64_t file_bytes, const std::string& path);

/// Reads an array from the bytes of a whole file. Throws as parse_npy_header, and for a bool that is neither 0 nor 1.
NpyArray parse_npy(std::span<const std::byte> file, const std::string& path);

/// Reads the header of a file. Throws as parse_npy_header.
NpyHeader read_npy_header(const std::string& path);

/// Reads the elements of a file into `out` (header.data_bytes bytes, else ShapeError). Throws FileError for a bool that
/// is neither 0 nor 1.
void read_npy_data(const std::string& path, const NpyHeader& header, std::span<std::byte> out);

/// Reads a file whole. Throws as parse_npy.
NpyArray read_npy(const std::string& path);

/// The bytes before the elements, a multiple of 64, exactly as NumPy 2 writes them (version 1.0). Throws DTypeError for
/// bf16 and fp8, ShapeError for negative or too many sizes.
std::string npy_header(DType dtype, std::span<const std::int64_t> shape);

/// Writes an array of row-major, little-endian elements, atomically. Throws DTypeError and ShapeError as npy_header,
/// ShapeError when the size of `data` does not fit the shape, FileError.
void write_npy(const std::string& path, DType dtype, std::span<const std::int64_t> shape,
               std::span<const std::byte> data);

/// Loads an array as a dense tensor of the same dtype and shape. On a dry device only the header is read. Throws
/// FileError as read_npy() does, OutOfMemory, DeviceError.
Tensor load_npy(const std::string& path, memory::Device device = cpu,
                memory::Category category = memory::Category::input);

/// Writes a tensor of any strides, row-major and atomically. Throws DTypeError for bf16 and fp8 (convert to f32) and
/// for quantized tensors, whose scales the format cannot hold; DeviceError on a dry device; FileError.
void save_npy(const std::string& path, const Tensor& t);

}  // namespace thimble
