#pragma once
// LoRA (Hu et al. 2021, arXiv:2106.09685): freezes a module, and adds trained low-rank adapters to its linear layers.
// With frozen weights in NF4 (nn/quant/weight_only.h) it is QLoRA (Dettmers et al. 2023, arXiv:2305.14314).
//
//   nn::add_lora(net, {.rank = 16, .alpha = 32, .targets = {"q_proj", "v_proj"}});
//   optim::Adam adam(net.trainable(), {});                    // only the adapters
//   ...
//   nn::save_adapters(net, folder, {.base = "meta-llama/Llama-3.2-1B"});  // nn/lora/adapter_files.h
//   nn::merge_lora(net);                                      // adds the adapters to the weights
//
// Checkpoints (nn/files/checkpoint.h) of a module with adapters contain trained parameters, buffers and state; the
// frozen parameters stay in their original file.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/nn/layers/layers.h>

namespace thimble::nn {

/// A low-rank adapter of a linear layer (Hu et al. 2021, arXiv:2106.09685).
struct AdapterOptions {
  std::int64_t rank = 8;  ///< r
  double alpha = 8;       ///< the adapter's product is scaled by alpha / r
  double dropout = 0;     ///< of the adapter's input, while training
};

/// A linear layer with an adapter: y = act(x W^T + bias + alpha / r (x A^T) B^T). A, "lora_A.weight" (r, I), is
/// initialized uniformly in +-1/sqrt(I), and B, "lora_B.weight" (O, r), to 0, so the output is unchanged at first. Both
/// are f32 (f64 if the weight is f64), and are cast to the input's dtype in use.
class LoraLinear final : public Layer {
 public:
  /// Throws as check() does.
  LoraLinear(Linear& base, const AdapterOptions& options);
  /// Throws ValueError for options out of range, and for a layer that has an adapter, a quantized weight, FP8 or shards
  /// already.
  static void check(const Linear& base, const AdapterOptions& options);

  Linear& base() const noexcept { return base_; }
  const AdapterOptions& options() const noexcept { return options_; }
  /// merge() adds the adapter's product to the weight, rounded to its dtype, and disables the adapter; unmerge()
  /// restores the weight up to that rounding. Neither is recorded. merge() throws ValueError if already merged, and for
  /// a coded weight, which would round the sum to its codes.
  void merge();
  void unmerge();
  /// Throws as merge() does.
  void check_merge() const;
  bool is_merged() const noexcept { return is_merged_; }
  bool is_adapter() const noexcept override { return true; }
  std::string_view difference() const override { return is_merged_ ? "" : "has an adapter"; }
  Parameter lora_a, lora_b;

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  void add_to_weight(double sign);

  Linear& base_;
  AdapterOptions options_;
  bool is_merged_ = false;
};

struct LoraOptions : AdapterOptions {
  /// Names of linear layers, or last parts of names; `*` matches any characters (nn/layers/module.h). Defaults to all
  /// linear layers inside blocks (TensorOptions::outside_blocks), as in QLoRA.
  std::vector<std::string> targets = {};
};

/// A linear layer with its dotted name, and its adapter, if any.
struct NamedLinear {
  std::string name;
  Linear* layer;
  LoraLinear* adapter;
};

/// A module's linear layers in order of construction, except layers whose owner names their parameters
/// (LinearOptions::prefix).
std::vector<NamedLinear> linear_layers(Module& module);

/// Freezes all parameters of the module, and replaces each target by a LoraLinear. Initial values come from the current
/// generator, by the layer's path. Returns the layers in order of construction. Throws ValueError, with nothing
/// changed, for options out of range, a target that matches no linear layer (the message names some valid ones), no
/// linear layer at all, and a module that has adapters.
std::vector<NamedLinear> add_lora(Module& module, const LoraOptions& options);
/// The layers with adapters.
std::vector<NamedLinear> adapted_layers(Module& module);

/// Applies LoraLinear::merge(), or unmerge(), to all layers with adapters. Throw ValueError, with nothing changed, if
/// there is none, or if one of them cannot be (un)merged.
void merge_lora(Module& module);
void unmerge_lora(Module& module);

}  // namespace thimble::nn
