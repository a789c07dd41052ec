#pragma once
// Options and batches of models over images.

#include <string_view>

#include <thimble/models/model.h>

namespace thimble::models {

/// Images of at most 64 pixels enter through a 3x3 convolution of stride 1, larger ones through a 7x7 of stride 2.
constexpr bool has_small_stem(std::int64_t image) noexcept { return image <= 64; }

/// Throws ValueError if an option belongs to other models (vocabulary, sequence, heads, key_heads, hidden, window,
/// dropout, feed_forward, shares_kernels), or if the given image is smaller than `smallest`.
void require_image_options(std::string_view name, const ModelOptions& options, std::int64_t smallest);

/// Zeros booked as input: images (N, H, W, C) in `dtype`, targets (N) i64. Throws ValueError unless samples >= 1.
Batch empty_image_batch(const ModelOptions& options, std::int64_t samples, DType dtype, memory::Device device);

}  // namespace thimble::models
