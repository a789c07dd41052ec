#pragma once
// A recipe for training in FP8, part of TensorOptions.

#include <string>

#include <thimble/core/ops/quant/fp8.h>

namespace thimble::nn {

/// The names are Transformer Engine's, whose history is 1024.
struct Fp8Recipe {
  Fp8Scaling kind = Fp8Scaling::delayed;
  int history = 16;     ///< past steps whose amax delayed scaling uses: 1 to fp8_history_max
  int margin = 0;       ///< scales are 2^margin larger than amax needs: 0 to fp8_margin_max; 0 for scales per block
  bool hybrid = true;   ///< E4M3 forward and E5M2 gradients; otherwise E4M3 everywhere
  bool strict = false;  ///< throw if a layer would fall back to a higher precision

  Fp8Format format() const noexcept { return {kind, DType::f8e4m3, hybrid ? DType::f8e5m2 : DType::f8e4m3, margin}; }
};

/// The effect of a recipe on a module's products.
struct Fp8Status {
  bool runs = false;          ///< they run in FP8
  std::string fallback = {};  ///< reason why they do not run in spite of a recipe
  std::string recipe = {};    ///< if they run, fp8_recipe_text of the format
  std::string products = {};  ///< if they run, fp8_products_text
};

}  // namespace thimble::nn
