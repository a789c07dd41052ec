#pragma once
// The nets that certificates are given for: one with convolutions, one transformer.

#include <functional>

#include <thimble/nn/layers/layers.h>
#include <thimble/nn/precision/precision.h>

#include "certificate.h"

namespace thimble::certificate {

struct NetOptions {
  bool is_tiny = false;                      ///< for walks through every allocation; else large enough for two threads
  std::int64_t samples = 0;                  ///< of a micro-batch; 0: 2 of a tiny net, else 10
  bool has_chunked_head = true;              ///< of the transformer: its logits are made in chunks of rows
  std::int64_t width = 0;                    ///< of the transformer; 0: 4 of a tiny net, else 32
  const nn::Precision* precision = nullptr;  ///< null: f32
  /// Takes the place of one linear layer of the transformer, "block1.down"; null: the layer itself.
  std::function<Tensor(const nn::Linear&, const Tensor&)> multiply = nullptr;
  /// Takes the place of one batch norm, and of one dropout, of the convolutional net; null: the right operator.
  std::function<Tensor(const nn::BatchNorm2d&, const Tensor&)> normalize = nullptr;
  std::function<Tensor(const Tensor&, double p)> drop = nullptr;
};

/// A stem, a block with a residual add, pooling, a block with fused batch norms and a strided convolution, a head with
/// cross entropy: batch norm in its three forms, dropout in both. SGD with momentum.
MakeNet conv_net(const NetOptions& options = {});

/// Embeddings, two blocks (tiled attention and a GELU of its own; the textbook's attention and a GELU fused into the
/// product), layer norms, dropout in embeddings, attention and blocks, a head tied to the token table. AdamW.
MakeNet transformer(const NetOptions& options = {});

}  // namespace thimble::certificate
