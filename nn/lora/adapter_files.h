#pragma once
// Adapters in the folders of PEFT (github.com/huggingface/peft): `adapter_config.json`, and `adapter_model.safetensors`
// with `base_model.model.<layer>.lora_A.weight` (r, I) and `.lora_B.weight` (O, r).

#include <string>
#include <vector>

#include <thimble/nn/lora/lora.h>

namespace thimble::nn {

struct AdapterFiles {
  /// Prefix of the names of layers in the model of transformers: "transformer." for GPT-2. A folder may have it or not.
  std::string prefix = {};
  std::string base = {};           ///< base_model_name_or_path: where the frozen weights are; empty: null
  std::string task = "CAUSAL_LM";  ///< task_type; empty: null
};

/// The two files of a folder.
std::string adapter_config_path(const std::string& folder);
std::string adapter_tensors_path(const std::string& folder);

/// Writes the adapters of a module into `folder`, which is made if needed. Each file appears whole or not at all.
/// Throws ValueError if there are none, or layers with different options, or some with (I, O) weights and others with
/// (O, I) (PEFT has one key for all); NotFiniteError, DeviceError (dry), FileError.
void save_adapters(Module& module, const std::string& folder, const AdapterFiles& files = {});

/// Reads such a folder. A module without adapters is frozen and gets those of the folder (add_lora); one with adapters
/// must have the same layers and options except dropout. Everything is checked before anything changes; f16 and bf16
/// are converted. The layers are those of the tensors. target_modules, if given (names, last parts of names, a regular
/// expression without counts and back-references, "all-linear"), must match these, and no other layer of the module;
/// exclude_modules and layers_to_transform leave layers out, as in PEFT. Throws FileError (no such folder, no JSON, not
/// safetensors), ValueError naming a key for an unsupported feature (another kind of adapter, rsLoRA, DoRA, biases,
/// ranks by layer, saved modules, initial values that change the base, as PiSSA's) or an unknown key with a value, a
/// layer that the module lacks or target_modules does not match, or a half of an adapter; ShapeError, DTypeError.
void load_adapters(Module& module, const std::string& folder, const AdapterFiles& files = {});

/// The adapters' settings in such a folder.
struct AdapterFolder {
  AdapterOptions options;
  std::vector<std::string> layers;  ///< their names in the model, sorted
};

/// Reads only these. Throws FileError and ValueError as load_adapters does.
AdapterFolder read_adapter_folder(const std::string& folder, const AdapterFiles& files = {});

}  // namespace thimble::nn
