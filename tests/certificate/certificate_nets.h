#pragma once
// The certified nets: one with convolutions, one transformer.

#include <functional>

#include <thimble/nn/layers/layers.h>
#include <thimble/nn/precision/precision.h>

#include "certificate.h"

namespace thimble::certificate {

struct NetOptions {
  bool is_tiny = false;          ///< for walks through every allocation; otherwise large enough for two threads
  std::int64_t samples = 0;      ///< of a micro-batch; defaults to 2 if tiny, else 10
  bool has_chunked_head = true;  ///< the transformer makes its logits in chunks of rows
  std::int64_t width = 0;        ///< of the transformer; defaults to 4 if tiny, else 32
  const nn::Precision* precision = nullptr;  ///< defaults to f32
  /// Replaces one linear layer of the transformer, "block1.down"; defaults to the layer.
  std::function<Tensor(const nn::Linear&, const Tensor&)> multiply = nullptr;
  /// Replace one batch norm and one dropout of the convolutional net; default to the right operators.
  std::function<Tensor(const nn::BatchNorm2d&, const Tensor&)> normalize = nullptr;
  std::function<Tensor(const Tensor&, double p)> drop = nullptr;
};

/// A stem, a block with a residual add, pooling, a block with fused batch norms and a strided convolution, a head with
/// cross entropy: batch norm in its three forms, both forms of dropout. SGD with momentum.
MakeNet conv_net(const NetOptions& options = {});

/// Embeddings, two blocks (tiled attention and a separate GELU; textbook attention and a GELU fused into the product),
/// layer norms, dropout in embeddings, attention and blocks, a head tied to the token table. AdamW.
MakeNet transformer(const NetOptions& options = {});

}  // namespace thimble::certificate
