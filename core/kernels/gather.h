#pragma once
// The gather kernel family: reading indexed elements and rows, and adding gradients back in a fixed order.

#include <cstdint>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>
#include <thimble/core/shape.h>

namespace thimble::kernels {

/// The first index, in row-major order, that is out of range, or position -1. Elements at bad indices are neither read
/// nor written.
struct BadIndex {
  std::int64_t position = -1;  ///< of the result
  std::int64_t value = 0;
};

/// out[p] = table[ids[p]] for rows of `columns` elements. For a shard of a table of `all` rows, from row `first` on:
/// out[p] = table[ids[p] - first], and 0 where another shard has the row.
struct EmbeddingArgs {
  std::int64_t rows = 0, columns = 0, positions = 0;
  std::int64_t first = 0, all = 0;
  DType dtype = DType::f32;  ///< of table and out
  const void* table = nullptr;
  const void* ids = nullptr;
  DType ids_dtype = DType::i64;  ///< i32 or i64
  void* out = nullptr;
};

/// dtable[r] = sum of dy[p] over the positions p with ids[p] == r, ascending, in f64 over blocks of `embedding_block`
/// rows, each in the compute type. Rows without an id are 0. All ids are in range. Row r of a shard has id first + r.
struct EmbeddingGradArgs {
  std::int64_t rows = 0, columns = 0, positions = 0;
  std::int64_t first = 0;
  DType dtype = DType::f32;  ///< of dy and dtable
  const void* dy = nullptr;
  const void* ids = nullptr;
  DType ids_dtype = DType::i64;
  void* dtable = nullptr;
  std::int64_t* order = nullptr;  ///< workspace, embedding_order_elements(rows, positions)
};
inline constexpr std::int64_t embedding_block = 128;
constexpr std::int64_t embedding_order_elements(std::int64_t rows, std::int64_t positions) noexcept {
  return rows + 1 + positions;
}

/// Lines along one axis: out[line, j] = x[line, index[line, j]]. `lines` is the shape of the lines. Strides are in
/// elements, with 0 where index repeats. out is dense.
struct GatherArgs {
  Shape lines, x_strides, index_strides, out_strides;     ///< strides from line to line
  std::int64_t x_length = 0;                              ///< elements of a line of x
  std::int64_t out_length = 0;                            ///< elements of a line of index and out
  std::int64_t x_step = 0, index_step = 0, out_step = 0;  ///< from element to element of a line
  DType dtype = DType::f32;                               ///< of x and out; in scatter_add, of out
  void* x = nullptr;  ///< read; in scatter_add written, in the compute type of dtype
  const void* index = nullptr;
  DType index_dtype = DType::i64;  ///< i32 or i64
  void* out = nullptr;             ///< written; in scatter_add read
  void* room = nullptr;            ///< workspace on the CPU, gather_room_elements(...) like x's
};
std::int64_t gather_room_elements(const GatherArgs& args, std::size_t element_bytes) noexcept;

struct GatherKernels {
  BadIndex (*embedding)(const EmbeddingArgs&) = nullptr;
  void (*embedding_backward)(const EmbeddingGradArgs&) = nullptr;
  BadIndex (*gather)(const GatherArgs&) = nullptr;
  /// x[line, index[line, j]] += out[line, j] for ascending j.
  BadIndex (*scatter_add)(const GatherArgs&) = nullptr;
};

extern const GatherKernels gather_cpu;
extern const GatherKernels* const gather_cuda;  ///< null in a build without CUDA

/// Throws DeviceError when this build has no kernels for the device.
const GatherKernels& gather_kernels(memory::Device device);

}  // namespace thimble::kernels
