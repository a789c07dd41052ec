#include <thimble/models/theory/moments.h>

#include <string>

#include <thimble/core/error.h>
#include <thimble/models/gpt/gpt.h>

namespace thimble::models::theory {

std::int64_t moment_bytes(std::span<const std::int64_t> elements, std::int64_t moments,
                          const optim::MomentFormat& format) {
  constexpr std::int64_t block = 256, of_scale = 4, full = 4;
  if (format.dtype != DType::f32 && format.dtype != DType::bf16 && format.dtype != DType::u8) {
    throw ValueError("moment_bytes: " + std::string(to_string(format.dtype)) + "; f32, bf16 and u8 are allowed");
  }
  if (moments < 0) {
    throw ValueError("moment_bytes: " + std::to_string(moments) + " moments of the optimizer; at least 0");
  }
  std::int64_t bytes = 0;
  for (const std::int64_t n : elements) {
    if (format.dtype == DType::f32 || n < format.smallest) {
      bytes += full * n;
    } else if (format.dtype == DType::bf16) {
      bytes += 2 * n;
    } else {
      bytes += n + of_scale * ((n + block - 1) / block);
    }
  }
  return moments * bytes;
}

std::int64_t factored_state_bytes(std::span<const Shape> parameters) {
  constexpr std::int64_t of_number = 4;
  std::int64_t numbers = 0;
  for (const Shape& shape : parameters) {
    const std::int64_t n = shape.elements(), columns = shape.rank() > 1 ? shape.back() : n;
    const std::int64_t rows = columns > 0 ? n / columns : 0;
    numbers += rows > 1 && columns > 1 ? rows + columns : n;
  }
  return of_number * numbers;
}

std::vector<Shape> gpt_parameter_shapes(std::string_view name, const ModelOptions& options) {
  const ModelOptions sizes = gpt_options(name, options);
  const std::int64_t h = sizes.width;
  std::vector<Shape> shapes{{sizes.vocabulary, h}, {sizes.sequence, h}};
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
    for (const Shape& shape : {Shape{h}, Shape{h}, Shape{h, 3 * h}, Shape{3 * h}, Shape{h, h}, Shape{h}, Shape{h},
                               Shape{h}, Shape{h, 4 * h}, Shape{4 * h}, Shape{4 * h, h}, Shape{h}}) {
      shapes.push_back(shape);
    }
  }
  shapes.insert(shapes.end(), {Shape{h}, Shape{h}});
  return shapes;
}

std::vector<std::int64_t> gpt_parameter_elements(std::string_view name, const ModelOptions& options) {
  std::vector<std::int64_t> elements;
  for (const Shape& shape : gpt_parameter_shapes(name, options)) elements.push_back(shape.elements());
  return elements;
}

}  // namespace thimble::models::theory
