#include <thimble/core/ops/matmul/row_chunks.h>

#include <algorithm>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/numbers/integers.h>
#include <thimble/core/ops/reduction/loss_common.h>
#include <thimble/core/tensor/copy.h>

namespace thimble::ops {
namespace row_chunks_detail {

constexpr std::int64_t chunk_bytes = std::int64_t{16} << 20, fewest_rows = 128, fewest_rows_on_cuda = 2048,
                       most_chunks = 32;

}  // namespace row_chunks_detail

std::int64_t chunk_rows_of(std::int64_t rows, std::int64_t numbers, std::size_t element_bytes) {
  using namespace row_chunks_detail;
  const std::int64_t within = chunk_bytes / (numbers * static_cast<std::int64_t>(element_bytes));
  const std::int64_t enough = std::max({within, fewest_rows, ceil_div(rows, most_chunks)});
  return std::clamp<std::int64_t>(enough, 1, std::max<std::int64_t>(rows, 1));
}

std::int64_t chunk_rows_on(const char* operation, memory::Device device, std::int64_t asked, std::int64_t rows,
                           std::int64_t numbers, std::size_t element_bytes) {
  if (asked < 0) {
    throw ValueError(std::string(operation) + ": chunks of " + std::to_string(asked) +
                     " rows; expected at least 1, or 0 for automatic");
  }
  if (asked > 0) return std::min(asked, std::max<std::int64_t>(rows, 1));
  const std::int64_t suiting = chunk_rows_of(rows, numbers, element_bytes);
  return device.is_cuda() ? std::max(suiting, std::min(rows, row_chunks_detail::fewest_rows_on_cuda)) : suiting;
}

ChunkSum::ChunkSum(const Shape& shape, const Tensor& like, std::int64_t chunks) : dtype(like.dtype()) {
  sum = Tensor::empty(shape, chunks > 1 ? loss_detail::loss_dtype(dtype) : dtype, like.device());
  if (chunks == 0) fill(sum, 0);
}

Tensor ChunkSum::rounded() const { return sum.dtype() == dtype ? sum : to_dtype(sum, dtype); }

}  // namespace thimble::ops
