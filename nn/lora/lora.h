#pragma once
// LoRA (Hu et al. 2021, arXiv:2106.09685): a module is frozen, and linear layers in it get low-rank adapters, which are
// trained. With frozen weights in NF4 (nn/quant/coded_store.h): QLoRA (Dettmers et al. 2023, arXiv:2305.14314).
//
//   nn::add_lora(net, {.rank = 16, .alpha = 32, .targets = {"q_proj", "v_proj"}});
//   optim::Adam adam(net.trainable(), {});                    // of the adapters alone
//   ...
//   nn::save_adapters(net, folder, {.base = "meta-llama/Llama-3.2-1B"});  // nn/lora/adapter_files.h
//   nn::merge_lora(net);                                      // or as a part of the weights
//
// Checkpoints (nn/files/checkpoint.h) of a module with adapters have what is trained, buffers and state; the frozen
// parameters are in the file that they came from.

#include <cstdint>
#include <string>
#include <vector>

#include <thimble/nn/layers/layers.h>

namespace thimble::nn {

struct LoraOptions : AdapterOptions {
  /// Names of linear layers, or last parts of names; `*` stands for any characters (nn/layers/name_pattern.h). Empty:
  /// all linear layers inside of blocks (TensorOptions::outside_blocks), as QLoRA has it.
  std::vector<std::string> targets = {};
};

/// A linear layer under its dotted name.
struct NamedLinear {
  std::string name;
  Linear* layer;
};

/// Those of a module, in the order of construction.
std::vector<NamedLinear> linear_layers(Module& module);

/// Freezes all parameters of the module, and gives the linear layers that are meant an adapter (Linear::add_adapter).
/// Initial values come from the current generator, by the layer's path. Returns the layers in the order of
/// construction. Throws ValueError, with nothing changed, for options out of range, a target that means no linear layer
/// (the message names some that there are), none at all, and a module that has adapters.
std::vector<NamedLinear> add_lora(Module& module, const LoraOptions& options);
/// The layers that have adapters.
std::vector<NamedLinear> adapted_layers(Module& module);
/// Whether there are any.
bool has_lora(const Module& module);

/// Linear::merge_adapter() of all layers that have one, and unmerge_adapter(). Throw ValueError, with nothing changed,
/// where there is none, or where one of them cannot be (un)merged.
void merge_lora(Module& module);
void unmerge_lora(Module& module);

}  // namespace thimble::nn
