#pragma once
// Convolutions whose groups are single channels, in f32: sums over taps, in vectors of neighbouring channels, straight
// from the images. The bits equal the products that conv.h describes: the same chains of multiply-adds.

#include <cstddef>

#include <thimble/core/kernels/conv.h>

namespace thimble::kernels::depthwise {

/// Whether the functions below compute it: a filter for each channel, all in f32, no activation, at most 256 taps (a
/// chain of sums) and, in the weight's gradient, rows of at most 8 taps.
bool computes(const ConvForwardArgs& args) noexcept;
bool computes(const ConvInputGradArgs& args) noexcept;
bool computes(const ConvWeightGradArgs& args) noexcept;

/// Forward and input's gradient take the weights, turned to (taps, channels); the weight's gradient the same number of
/// sums twice.
std::size_t workspace_bytes(const ConvForwardArgs& args) noexcept;
std::size_t workspace_bytes(const ConvInputGradArgs& args) noexcept;
std::size_t workspace_bytes(const ConvWeightGradArgs& args) noexcept;

void compute(const ConvForwardArgs& args, void* workspace) noexcept;
void compute(const ConvInputGradArgs& args, void* workspace) noexcept;
void compute(const ConvWeightGradArgs& args, void* workspace) noexcept;

}  // namespace thimble::kernels::depthwise
