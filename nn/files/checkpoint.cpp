#include <thimble/nn/files/checkpoint.h>

#include <map>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/outputs.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/nn/files/cut_tensors.h>
#include <thimble/nn/files/state_numbers.h>
#include <thimble/nn/lora/lora.h>
#include <thimble/nn/precision/fp8.h>

namespace thimble::nn {
namespace checkpoint_detail {

std::vector<FileTensor> model_tensors(const Module& module, const CutParameters& cuts) {
  std::vector<FileTensor> list;
  for (const NamedTensor& p : checkpoint_parameters(module)) {
    list.push_back(cuts.of_parameter({p.name, p.tensor}, "model."));
  }
  for (const NamedTensor& b : module.buffers()) list.push_back({{"model." + b.name, b.tensor}, b.tensor});
  return list;
}

/// The part of a tensor of the file that is this tensor.
SafetensorsEntry part_of(const SafetensorsEntry& whole, const Named& part) {
  const std::size_t size = size_of(whole.dtype);
  SafetensorsEntry entry = whole;
  entry.crc32c.reset();  // check() has seen to it
  entry.shape.assign(part.tensor.shape().begin(), part.tensor.shape().end());
  entry.begin += static_cast<std::uint64_t>(part.first_element) * size;
  entry.end = entry.begin + static_cast<std::uint64_t>(part.tensor.elements()) * size;
  return entry;
}

/// Shapes and dtypes of the state, here or away.
std::vector<NamedTensor> state_outline(const optim::Optimizer& optimizer, const CutParameters& cuts) {
  std::vector<FileTensor> list;
  for (const Named& s : optimizer.state_outline()) list.push_back(cuts.of_state(s));
  return wholes_of(list);
}

/// What is not whole here comes together, parameter by parameter.
void assemble(const std::vector<FileTensor>& model, const optim::Optimizer& optimizer, const CutParameters& cuts,
              FunctionRef<void(const NamedTensor&)> append) {
  Assembly assembly(append);
  for (const FileTensor& t : model) {
    if (!t.part) continue;
    fetch_parameters(t.here);
    assembly.put(t);
  }
  optimizer.each_state([&](std::span<const Named> state) {
    for (const Named& s : state) assembly.put(cuts.of_state(s));
  });
}

void check(const SafetensorsReader& file, const CheckpointInfo& info, const std::vector<NamedTensor>& targets,
           const optim::Optimizer& optimizer, FileStaging& staging) {
  const std::string operation = "load_checkpoint: " + file.path();
  if (info.optimizer != optimizer.name()) {
    throw ValueError(operation + ": optimizer " + quote(info.optimizer) + " in the file, training uses " +
                     quote(optimizer.name()));
  }
  std::map<std::string, const NamedTensor*> by_name;
  for (const NamedTensor& target : targets) by_name.emplace(target.name, &target);
  for (const NamedTensor& target : targets) {
    const SafetensorsEntry* entry = file.header().find(target.name);
    if (!entry) throw ValueError(operation + ": the file lacks " + quote(target.name));
    check_file_tensor(operation, *entry, target, Conversion::none);
  }
  for (const SafetensorsEntry& entry : file.header().tensors) file.verify(entry);
  for (const NamedTensor& target : targets) {
    check_state_numbers(operation, file, file.entry(target.name), target, staging);
  }
  for (const SafetensorsEntry& entry : file.header().tensors) {
    if (by_name.count(entry.name) == 0) {
      throw ValueError(operation + ": neither model nor optimizer has " + quote(entry.name));
    }
  }
}

void check_fp8(const std::string& path, const CheckpointInfo& info, const Module& module) {
  const std::string own = fp8_recipe_text(module);
  if (info.fp8.empty() || info.fp8 == own) return;
  throw ValueError("load_checkpoint: " + path + ": the recipe for FP8 is " + quote(info.fp8) +
                   " in the file; the model's is " + quote(own));
}

void check_scaler(const std::string& path, const CheckpointInfo& info, const optim::GradScaler* scaler) {
  const std::string start = "load_checkpoint: " + path + ": ";
  if (info.scaler.has_value() != (scaler != nullptr)) {
    throw ValueError(start + "the loss was " + (info.scaler ? "scaled" : "not scaled") + " in the file; training " +
                     (scaler != nullptr ? "scales it" : "does not"));
  }
  if (scaler == nullptr) return;
  optim::GradScaler probe(scaler->options());
  probe.set_state(*info.scaler);
}

}  // namespace checkpoint_detail

std::vector<NamedTensor> checkpoint_parameters(const Module& module) {
  std::vector<NamedTensor> list = module.parameters();
  if (has_lora(module)) std::erase_if(list, [](const NamedTensor& p) { return !p.tensor.requires_grad(); });
  return list;
}

void visit_state(const Module& module, const optim::Optimizer& optimizer) {
  const ParameterUse use;
  for (const NamedTensor& p : checkpoint_parameters(module)) fetch_parameters(p.tensor);
  optimizer.each_state([](std::span<const Named>) {});
}

void visit_save(const Module& module, const optim::Optimizer& optimizer) {
  const ParameterUse use;
  const CutParameters cuts(module);
  const std::vector<FileTensor> model = checkpoint_detail::model_tensors(module, cuts);
  for (const FileTensor& t : model) {
    if (!t.part) fetch_parameters(t.here);
  }
  checkpoint_detail::assemble(model, optimizer, cuts, [](const NamedTensor&) {});
}

CheckpointInfo checkpoint_info(const Module& module, const optim::Optimizer& optimizer, const Generator& generator,
                               const Metadata& metadata, const optim::GradScaler* scaler) {
  CheckpointInfo info{optimizer.name(), optimizer.step_count(), optimizer.rate(),        generator.seed(),
                      generator.step(), std::nullopt,           fp8_recipe_text(module), metadata};
  if (scaler != nullptr) info.scaler = scaler->state();
  return info;
}

void save_checkpoint(const std::string& path, const Module& module, const optim::Optimizer& optimizer,
                     const Generator& generator, const Metadata& metadata, const optim::GradScaler* scaler,
                     bool overwrites) {
  check_kind({"save_checkpoint", path, &file_kinds::checkpoint}, overwrites);
  const ParameterUse use;
  const CutParameters cuts(module);
  const std::vector<FileTensor> model = checkpoint_detail::model_tensors(module, cuts);
  std::vector<NamedTensor> here, outlines = checkpoint_detail::state_outline(optimizer, cuts);
  for (const NamedTensor& t : wholes_of(model)) (t.tensor.storage() ? here : outlines).push_back(t);
  write_tensor_file(
      path, here, outlines, format_checkpoint_info(checkpoint_info(module, optimizer, generator, metadata, scaler)),
      [&](FunctionRef<void(const NamedTensor&)> append) {
        checkpoint_detail::assemble(model, optimizer, cuts, append);
      },
      Numbers::finite);
}

Metadata load_checkpoint(const std::string& path, Module& module, optim::Optimizer& optimizer, Generator& generator,
                         optim::GradScaler* scaler, const std::vector<NamedTensor>& whole_state) {
  const ParameterUse use;
  const SafetensorsReader file(path);
  CheckpointInfo info = parse_checkpoint_info(file.header(), path);
  const CutParameters cuts(module);
  const std::vector<FileTensor> model = checkpoint_detail::model_tensors(module, cuts);
  std::vector<NamedTensor> targets = wholes_of(model);
  std::vector<NamedTensor> state = checkpoint_detail::state_outline(optimizer, cuts);
  if (!whole_state.empty()) state = whole_state;
  targets.insert(targets.end(), state.begin(), state.end());
  FileStaging staging;
  checkpoint_detail::check(file, info, targets, optimizer, staging);
  checkpoint_detail::check_fp8(path, info, module);
  checkpoint_detail::check_scaler(path, info, scaler);
  for (const FileTensor& t : model) read_file_tensor(file, file.entry(t.whole.name), t, staging);
  optimizer.each_state([&](std::span<const Named> own) {
    for (const Named& s : own) {
      const FileTensor t = cuts.of_state(s);
      const SafetensorsEntry& entry = file.entry(t.whole.name);
      const bool is_shard = s.is_part() && !t.part;
      read_file_tensor(file, is_shard ? checkpoint_detail::part_of(entry, s) : entry, t, staging);
    }
  });
  if (scaler != nullptr) scaler->set_state(*info.scaler);
  optimizer.set_step_count(info.step_count);
  optimizer.set_rate(info.rate);
  generator = Generator(info.seed);
  generator.set_step(info.generator_step);
  return std::move(info.metadata);
}

}  // namespace thimble::nn
