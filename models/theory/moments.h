#pragma once
// The bytes of an optimizer's moments, in any format (optim/moments.h) or factored, from a model's sizes alone.
// What narrow parameters take besides, masters or compensations, is parameter_bytes(...).extra
// (models/theory/precision.h).

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <thimble/core/tensor/shape.h>
#include <thimble/models/model.h>
#include <thimble/optim/moments.h>

namespace thimble::models::theory {

/// Bytes of `moments` moments for parameters of these numbers of elements: 4 n for f32 and where n is below
/// format.smallest, else n + 4 ceil(n / 256) for u8 and 2 n for bf16. Throws ValueError for another dtype, and for
/// negative moments.
std::int64_t moment_bytes(std::span<const std::int64_t> elements, std::int64_t moments,
                          const optim::MomentFormat& format);

/// Bytes of Adafactor's state without a first moment: 4 (rows + columns) of a parameter that is a matrix (elements /
/// last axis, last axis) with more than one of both, else 4 per element.
std::int64_t factored_state_bytes(std::span<const Shape> parameters);

/// Shapes of each of a GPT's parameters: tables V h and s h; per layer two norms of 2 x h, 3 h^2 + 3 h, h^2 + h,
/// 4 h^2 + 4 h and 4 h^2 + h; the last norm. Throws ValueError as gpt_options does.
std::vector<Shape> gpt_parameter_shapes(std::string_view name, const ModelOptions& options = {});
/// And the elements of each.
std::vector<std::int64_t> gpt_parameter_elements(std::string_view name, const ModelOptions& options = {});

}  // namespace thimble::models::theory
