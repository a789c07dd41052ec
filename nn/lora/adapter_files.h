#pragma once
// Adapters in the folders of PEFT (github.com/huggingface/peft): `adapter_config.json`, and `adapter_model.safetensors`
// with `base_model.model.<layer>.lora_A.weight` (r, I) and `.lora_B.weight` (O, r).

#include <string>
#include <vector>

#include <thimble/nn/lora/lora.h>

namespace thimble::nn {

struct AdapterFiles {
  /// What stands before the names of layers in the model of transformers: "transformer." for GPT-2. A folder that is
  /// read may have it or not.
  std::string prefix = {};
  std::string base = {};           ///< base_model_name_or_path: where the frozen weights are; empty: null
  std::string task = "CAUSAL_LM";  ///< task_type; empty: null
};

/// The two files of a folder.
std::string adapter_config_path(const std::string& folder);
std::string adapter_tensors_path(const std::string& folder);

/// Writes the adapters of a module into `folder`, which is made where it is not there. Each file appears whole or not
/// at all. Throws ValueError where there are none, or layers whose options differ, or of which some have (I, O) weights
/// and others (O, I) (PEFT has one key for all); NotFiniteError, DeviceError (dry), FileError.
void save_adapters(Module& module, const std::string& folder, const AdapterFiles& files = {});

/// Reads such a folder. A module without adapters is frozen and gets those of the folder (add_lora); one that has some
/// must have the same layers and options but for dropout. Everything is checked before anything changes; f16 and bf16
/// are converted. The layers are those of the tensors. target_modules, where it is given (names, last parts of names, a
/// regular expression without counts and back-references, "all-linear"), must mean these, and no other layer of the
/// module; exclude_modules and layers_to_transform leave out layers, as in PEFT. Throws FileError (no such folder, no
/// JSON, not safetensors), ValueError naming a key that asks for something else (another kind of adapter, rsLoRA, DoRA,
/// biases, ranks by layer, saved modules, a beginning that changes the base, as PiSSA's) or that is not known and has a
/// value, a layer that the module lacks or target_modules does not mean, half of an adapter; ShapeError, DTypeError.
void load_adapters(Module& module, const std::string& folder, const AdapterFiles& files = {});

/// What such a folder says of its adapters.
struct AdapterFolder {
  AdapterOptions options;
  std::vector<std::string> layers;  ///< their names in the model, sorted
};

/// Reads that alone. Throws FileError and ValueError as load_adapters does.
AdapterFolder read_adapter_folder(const std::string& folder, const AdapterFiles& files = {});

}  // namespace thimble::nn
