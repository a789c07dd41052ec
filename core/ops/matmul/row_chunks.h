#pragma once
// Products over chunks of rows, with one chunk's inner results alive at a time: the rows of a chunk, and sums over
// chunks.

#include <cstddef>
#include <cstdint>

#include <thimble/core/tensor/tensor.h>

namespace thimble::ops {

/// Rows of a chunk whose inner results take `numbers` elements for each row: as many as fit in 16 MiB, at least 128,
/// because the products read their whole weights once per chunk, and at least a 32nd of all, so that the requests of a
/// step do not grow with its rows; at most `rows`, at least 1.
std::int64_t chunk_rows_of(std::int64_t rows, std::int64_t numbers, std::size_t element_bytes);

/// The same for a device: on CUDA at least 2,048, because products of few rows do not fill it. `asked` > 0: that many.
/// Throws ValueError, naming `operation`, for asked < 0.
std::int64_t chunk_rows_on(const char* operation, memory::Device device, std::int64_t asked, std::int64_t rows,
                           std::int64_t numbers, std::size_t element_bytes);

/// A sum over chunks; in f32 for narrow dtypes with several chunks.
struct ChunkSum {
  Tensor sum;
  DType dtype;

  /// Zeros without chunks, undefined values otherwise.
  ChunkSum(const Shape& shape, const Tensor& like, std::int64_t chunks);
  /// The sum in the operands' dtype, rounded once.
  Tensor rounded() const;
};

}  // namespace thimble::ops
