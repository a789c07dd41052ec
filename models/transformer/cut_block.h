#pragma once
// Transformer blocks whose work is cut into parts: heads of attention, columns of the feed-forward layer (Shoeybi et
// al. 2019, arXiv:1909.08053, section 3). Norms, biases behind a sum of parts, and all that lies outside of blocks are
// whole on every rank.
//
//   attention     c_attn  cut by outputs, whole heads     c_proj  cut by inputs
//   feed forward  c_fc    cut by outputs                  c_proj  cut by inputs
//
// Part p of a linear layer is a module of its own, "attn.c_attn.1". A layer in one part is an nn::Linear as any other.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <thimble/models/model.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::models {

/// The parts of a linear layer that this rank has, in their order.
struct CutLinear {
  std::vector<nn::Linear*> parts;
  nn::Parameter bias;  ///< of a layer that is cut by inputs: added behind the sum; undefined in one part
};

class CutBlock : public nn::Layer {
 protected:
  /// The block is cut as `sizes.team` says. Throws ValueError unless its parts divide heads, heads of keys and, where
  /// layers are cut, the width inside of the feed-forward layer, and for what is not done in parts: feed-forward layers
  /// in tiles, products in FP8, coded weights.
  CutBlock(const ModelOptions& sizes, const nn::TensorOptions& on);

  /// (in) -> (out / parts) each; where several tensors lie side by side in the output, `stretches` of one size, a part
  /// has a part of each. The whole's weight is drawn at `drawn_at` and named NAME_weight; none: where a module of
  /// that name draws its own, NAME.weight.
  CutLinear cut_outputs(const std::string& name, std::int64_t in, std::int64_t out, const nn::TensorOptions& on,
                        const nn::LinearOptions& options, std::int64_t stretches = 1,
                        std::optional<RandomSite> drawn_at = {});
  /// (in / parts) -> (out) each.
  CutLinear cut_inputs(const std::string& name, std::int64_t in, std::int64_t out, const nn::TensorOptions& on,
                       const nn::LinearOptions& options);

  /// What drops inner results of this rank's parts: `name`, or a module for each part.
  std::vector<nn::Dropout*> cut_dropout(const std::string& name, double probability, bool is_textbook);

  /// The sum over all parts of term_of(p, x), where p counts this rank's, and a bias, which may be undefined. term_of
  /// takes x over, so that x goes as soon as it is read.
  Tensor sum_of_parts(Tensor x, const Tensor& bias, FunctionRef<Tensor(std::size_t p, Tensor x)> term_of);
  /// layer(x), where layers are whole and the sequence is cut token by token (models/transformer/sequence_parts.h).
  Tensor product(nn::Linear& layer, Tensor x) const;
  bool is_cut() const noexcept { return team_.cuts_layers(); }
  /// What a part draws random numbers and allocates under.
  std::string part_name(const char* name, std::size_t p) const;

  dist::Team team_;
  std::optional<DType> compute_;

 private:
  CutLinear cut(const std::string& name, std::int64_t in, std::int64_t out, const nn::TensorOptions& on,
                nn::LinearOptions options, nn::LinearPart part, std::optional<RandomSite> drawn_at);
};

/// Of each of these parameters of a model the number of the layer that it is a part of; -1: it is whole.
std::vector<int> part_layers(const Model& model, const std::vector<nn::Named>& parameters);

}  // namespace thimble::models
