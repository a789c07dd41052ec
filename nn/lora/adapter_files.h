#pragma once
// Reads and writes adapters in PEFT's folders (github.com/huggingface/peft): `adapter_config.json`, and
// `adapter_model.safetensors` with `base_model.model.<layer>.lora_A.weight` (r, I) and `.lora_B.weight` (O, r).

#include <string>
#include <vector>

#include <thimble/nn/lora/lora.h>

namespace thimble::nn {

struct AdapterFiles {
  /// Prefix of layer names in transformers' model: "transformer." for GPT-2. Optional in folders that are read.
  std::string prefix = {};
  std::string base = {};           ///< base_model_name_or_path, the source of the frozen weights; empty writes null
  std::string task = "CAUSAL_LM";  ///< task_type; empty writes null
};

/// The paths of a folder's two files.
std::string adapter_config_path(const std::string& folder);
std::string adapter_tensors_path(const std::string& folder);

/// Writes a module's adapters into `folder`, which it makes if needed. Each file is written atomically. Throws
/// ValueError without adapters, and for layers with different options or with both (I, O) and (O, I) weights (PEFT has
/// one key for all); NotFiniteError, DeviceError (dry), FileError.
void save_adapters(Module& module, const std::string& folder, const AdapterFiles& files = {});

/// Reads adapters from a folder. Freezes a module without adapters and adds the folder's (add_lora); a module with
/// adapters must have the same layers and options except dropout. Checks everything before it changes anything;
/// converts f16 and bf16. The tensors determine the layers. target_modules, if given (names, last parts of names, a
/// regular expression without counts and back-references, "all-linear"), must match these, and no other layer of the
/// module; exclude_modules and layers_to_transform leave layers out, as in PEFT. Throws FileError (no such folder, no
/// JSON, not safetensors); ValueError naming a key for an unsupported feature (another kind of adapter, rsLoRA, DoRA,
/// biases, ranks by layer, saved modules, initial values that change the base, as PiSSA's) or an unknown key with a
/// value, a layer that the module lacks or target_modules does not match, or half an adapter; ShapeError, DTypeError.
void load_adapters(Module& module, const std::string& folder, const AdapterFiles& files = {});

/// The adapters' settings in such a folder.
struct AdapterFolder {
  AdapterOptions options;
  std::vector<std::string> layers;  ///< names in the model, sorted
};

/// Reads only the settings. Throws FileError and ValueError as load_adapters does.
AdapterFolder read_adapter_folder(const std::string& folder, const AdapterFiles& files = {});

}  // namespace thimble::nn
