#pragma once
// LoRA (Hu et al. 2021, arXiv:2106.09685): a module is frozen, and linear layers in it get low-rank adapters, which are
// trained. With frozen weights in NF4 (nn/quant/weight_only.h): QLoRA (Dettmers et al. 2023, arXiv:2305.14314).
//
//   nn::add_lora(net, {.rank = 16, .alpha = 32, .targets = {"q_proj", "v_proj"}});
//   optim::Adam adam(net.trainable(), {});                    // of the adapters alone
//   ...
//   nn::save_adapters(net, folder, {.base = "meta-llama/Llama-3.2-1B"});  // nn/lora/adapter_files.h
//   nn::merge_lora(net);                                      // or as a part of the weights
//
// Checkpoints (nn/files/checkpoint.h) of a module with adapters have trained parameters, buffers and state; the frozen
// parameters are in their original file.

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

/// A linear layer with an adapter: y = act(x W^T + bias + alpha / r (x A^T) B^T). A, "lora_A.weight" (r, I), begins
/// uniform in +-1/sqrt(I), B, "lora_B.weight" (O, r), at 0, so that nothing changes at first. Both are f32 (f64 beside
/// f64) for every weight, and are cast to the input's dtype in use.
class LoraLinear final : public Layer {
 public:
  /// Throws as check() does.
  LoraLinear(Linear& base, const AdapterOptions& options);
  /// Throws ValueError for options out of range, and for a layer already replaced: by one with an adapter, with a
  /// quantized weight, in FP8, in shards.
  static void check(const Linear& base, const AdapterOptions& options);

  Linear& base() const noexcept { return base_; }
  const AdapterOptions& options() const noexcept { return options_; }
  /// merge() adds the adapter's product to the weight, rounded to its dtype, and disables the adapter; unmerge()
  /// restores the weight up to that rounding. Not recorded. Throws ValueError if already merged, and for a coded
  /// weight, which would be rounded to its codes.
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
  /// Names of linear layers, or last parts of names; `*` matches any characters (nn/layers/module.h). Empty: all linear
  /// layers inside of blocks (TensorOptions::outside_blocks), as in QLoRA.
  std::vector<std::string> targets = {};
};

/// A linear layer under its dotted name, and its adapter, if it has one.
struct NamedLinear {
  std::string name;
  Linear* layer;
  LoraLinear* adapter;
};

/// The linear layers of a module, in the order of construction, without those whose parameters their owner names
/// (LinearOptions::prefix).
std::vector<NamedLinear> linear_layers(Module& module);

/// Freezes all parameters of the module, and puts a LoraLinear in the place of each target. Initial values come from
/// the current generator, by the layer's path. Returns the layers in the order of construction. Throws ValueError, with
/// nothing changed, for options out of range, a target that matches no linear layer (the message names some valid
/// ones), none at all, and a module that has adapters.
std::vector<NamedLinear> add_lora(Module& module, const LoraOptions& options);
/// The layers that have adapters.
std::vector<NamedLinear> adapted_layers(Module& module);

/// LoraLinear::merge() of all layers that have one, and unmerge(). Throw ValueError, with nothing changed, if there is
/// none, or if one of them cannot be (un)merged.
void merge_lora(Module& module);
void unmerge_lora(Module& module);

}  // namespace thimble::nn
