#pragma once
// How a model is trained in FP8, as a TensorOptions carries it.

#include <string>

#include <thimble/core/ops/quant/fp8.h>

namespace thimble::nn {

/// The names are Transformer Engine's, whose history is 1024.
struct Fp8Recipe {
  Fp8Scaling kind = Fp8Scaling::delayed;
  int history = 16;     ///< steps whose amax delayed scaling looks back on: 1 to fp8_history_max
  int margin = 0;       ///< scales are 2^margin larger than amax asks for: 0 to fp8_margin_max; in blocks 0 alone
  bool hybrid = true;   ///< E4M3 forward, E5M2 gradients; false: E4M3 everywhere
  bool strict = false;  ///< a layer that would fall back to a higher precision is an error

  Fp8Format format() const noexcept { return {kind, DType::f8e4m3, hybrid ? DType::f8e5m2 : DType::f8e4m3, margin}; }
};

/// What a recipe made of a module's own products.
struct Fp8Status {
  bool runs = false;          ///< they run in FP8
  std::string fallback = {};  ///< why they do not though a recipe is for them; empty: they do, or none is
  std::string recipe = {};    ///< where they run: fp8_recipe_text of its format
  std::string products = {};  ///< where they run: of codes or of decoded values, and why
};

}  // namespace thimble::nn
