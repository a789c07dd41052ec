#include <thimble/nn/files/checkpoint.h>

#include <map>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/outputs.h>
#include <thimble/core/tensor/parameter_store.h>
#include <thimble/nn/files/cut_tensors.h>
#include <thimble/nn/files/tensor_io.h>
#include <thimble/nn/layers/fp8.h>

namespace thimble::nn {
namespace {

std::vector<FileTensor> model_tensors(const Module& module, const CutParameters& cuts, const std::string& prefix) {
  std::vector<FileTensor> list;
  for (const NamedTensor& p : checkpoint_parameters(module)) {
    list.push_back(cuts.of_parameter({p.name, p.tensor}, prefix));
  }
  for (const NamedTensor& b : module.buffers()) list.push_back({{prefix + b.name, b.tensor}, b.tensor});
  return list;
}

/// The tensors of a checkpoint.
class Contents {
 public:
  explicit Contents(const CheckpointParts& parts) : parts_(parts) {
    const bool is_numbered = parts.modules.size() > 1;
    for (std::size_t i = 0; i < parts.modules.size(); ++i) {
      const CutParameters cuts(*parts.modules[i]);
      if (is_numbered && !cuts.empty()) {
        throw ValueError("checkpoint: expected one module, or several with whole parameters, got " +
                         std::to_string(parts.modules.size()) + " with shards of parameters");
      }
      if (!is_numbered) cuts_ = cuts;
      const std::string prefix = is_numbered ? "model." + std::to_string(i) + "." : "model.";
      for (FileTensor& t : model_tensors(*parts.modules[i], cuts, prefix)) model_.push_back(std::move(t));
    }
  }
  const std::vector<FileTensor>& model() const noexcept { return model_; }
  /// The state `s` of optimizer i.
  FileTensor of_state(std::size_t i, const Named& s) const {
    FileTensor t = cuts_.of_state(s);
    constexpr std::string_view kind = "optimizer.";
    if (parts_.optimizers.size() > 1) t.whole.name.insert(kind.size(), std::to_string(i) + ".");
    return t;
  }
  /// Shapes and dtypes of the state, offloaded or not.
  std::vector<NamedTensor> state_outline() const {
    std::vector<FileTensor> list;
    for (std::size_t i = 0; i < parts_.optimizers.size(); ++i) {
      for (const Named& s : parts_.optimizers[i]->state_outline()) list.push_back(of_state(i, s));
    }
    return wholes_of(list);
  }
  void each_state(FunctionRef<void(const Named& own, const FileTensor& t)> visit) const {
    for (std::size_t i = 0; i < parts_.optimizers.size(); ++i) {
      parts_.optimizers[i]->each_state([&](std::span<const Named> own) {
        for (const Named& s : own) visit(s, of_state(i, s));
      });
    }
  }
  /// Assembles sharded tensors, parameter by parameter.
  void assemble(FunctionRef<void(const NamedTensor&)> append) const {
    Assembly assembly(append);
    for (const FileTensor& t : model_) {
      if (!t.shard) continue;
      fetch_parameters(t.here);
      assembly.put(t);
    }
    each_state([&](const Named&, const FileTensor& t) { assembly.put(t); });
  }

 private:
  const CheckpointParts& parts_;
  CutParameters cuts_;  // of the only module
  std::vector<FileTensor> model_;
};

/// A single module and optimizer. Casting const away is safe: saving and visiting change neither.
CheckpointParts parts_of(const Module& module, const optim::Optimizer& optimizer) {
  return {{const_cast<Module*>(&module)}, {const_cast<optim::Optimizer*>(&optimizer)}};
}

CheckpointInfo info_of(const CheckpointParts& parts, const RandomGenerator& generator, const Metadata& metadata,
                       const optim::GradScaler* scaler) {
  CheckpointInfo info = checkpoint_info(*parts.modules.front(), *parts.optimizers.front(), generator, metadata, scaler);
  for (std::size_t i = 1; i < parts.optimizers.size(); ++i) {
    const optim::Optimizer& other = *parts.optimizers[i];
    info.others.push_back({other.name(), other.step_count(), other.rate()});
  }
  return info;
}

/// The range of a file's tensor that `part` covers.
SafetensorsEntry part_of(const SafetensorsEntry& whole, const Named& part) {
  const std::size_t size = size_of(whole.dtype);
  SafetensorsEntry entry = whole;
  entry.crc32c.reset();  // check() has verified it
  entry.shape.assign(part.tensor.shape().begin(), part.tensor.shape().end());
  entry.begin += static_cast<std::uint64_t>(part.first_element) * size;
  entry.end = entry.begin + static_cast<std::uint64_t>(part.tensor.elements()) * size;
  return entry;
}

void check(const SafetensorsReader& file, const CheckpointInfo& info, const std::vector<NamedTensor>& targets,
           const std::vector<optim::Optimizer*>& optimizers, FileStaging& staging) {
  const std::string operation = "load_checkpoint: " + file.path();
  if (info.others.size() + 1 != optimizers.size()) {
    throw ValueError(operation + ": " + std::to_string(info.others.size() + 1) +
                     " optimizers in the file, training has " + std::to_string(optimizers.size()));
  }
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    const std::string& in_file = i == 0 ? info.optimizer : info.others[i - 1].optimizer;
    if (in_file == optimizers[i]->name()) continue;
    throw ValueError(operation + ": optimizer " + quote(in_file) + " in the file, training uses " +
                     quote(optimizers[i]->name()));
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

}  // namespace

std::vector<NamedTensor> checkpoint_parameters(const Module& module) {
  std::vector<NamedTensor> list = module.parameters();
  if (has_adapters(module)) std::erase_if(list, [](const NamedTensor& p) { return !p.tensor.requires_grad(); });
  return list;
}

void visit_state(const Module& module, const optim::Optimizer& optimizer) {
  const ParameterUse use;
  for (const NamedTensor& p : checkpoint_parameters(module)) fetch_parameters(p.tensor);
  optimizer.each_state([](std::span<const Named>) {});
}

void visit_save(const Module& module, const optim::Optimizer& optimizer) {
  const ParameterUse use;
  const CheckpointParts parts = parts_of(module, optimizer);
  const Contents contents(parts);
  for (const FileTensor& t : contents.model()) {
    if (!t.shard) fetch_parameters(t.here);
  }
  contents.assemble([](const NamedTensor&) {});
}

CheckpointInfo checkpoint_info(const Module& module, const optim::Optimizer& optimizer,
                               const RandomGenerator& generator, const Metadata& metadata,
                               const optim::GradScaler* scaler) {
  CheckpointInfo info{optimizer.name(), optimizer.step_count(), optimizer.rate(),        generator.seed(),
                      generator.step(), std::nullopt,           fp8_recipe_text(module), metadata};
  if (scaler != nullptr) info.scaler = scaler->state();
  return info;
}

void save_checkpoint(const std::string& path, const Module& module, const optim::Optimizer& optimizer,
                     const RandomGenerator& generator, const Metadata& metadata, const optim::GradScaler* scaler,
                     bool overwrites) {
  save_checkpoint(path, parts_of(module, optimizer), generator, metadata, scaler, overwrites);
}

void save_checkpoint(const std::string& path, const CheckpointParts& parts, const RandomGenerator& generator,
                     const Metadata& metadata, const optim::GradScaler* scaler, bool overwrites) {
  check_kind({"save_checkpoint", path, &file_kinds::checkpoint}, overwrites);
  const ParameterUse use;
  const Contents contents(parts);
  std::vector<NamedTensor> here, outlines = contents.state_outline();
  for (const NamedTensor& t : wholes_of(contents.model())) (t.tensor.storage() ? here : outlines).push_back(t);
  write_tensor_file(
      path, here, outlines, format_checkpoint_info(info_of(parts, generator, metadata, scaler)),
      [&](FunctionRef<void(const NamedTensor&)> append) { contents.assemble(append); }, Numbers::finite);
}

Metadata load_checkpoint(const std::string& path, Module& module, optim::Optimizer& optimizer,
                         RandomGenerator& generator, optim::GradScaler* scaler,
                         const std::vector<NamedTensor>& whole_state) {
  return load_checkpoint(path, CheckpointParts{{&module}, {&optimizer}}, generator, scaler, whole_state);
}

Metadata load_checkpoint(const std::string& path, const CheckpointParts& parts, RandomGenerator& generator,
                         optim::GradScaler* scaler, const std::vector<NamedTensor>& whole_state) {
  const ParameterUse use;
  const SafetensorsReader file(path);
  CheckpointInfo info = parse_checkpoint_info(file.header(), path);
  const Contents contents(parts);
  std::vector<NamedTensor> targets = wholes_of(contents.model());
  const std::vector<NamedTensor> state = whole_state.empty() ? contents.state_outline() : whole_state;
  targets.insert(targets.end(), state.begin(), state.end());
  FileStaging staging;
  check(file, info, targets, parts.optimizers, staging);
  check_fp8(path, info, *parts.modules.front());
  check_scaler(path, info, scaler);
  for (const FileTensor& t : contents.model()) read_file_tensor(file, file.entry(t.whole.name), t, staging);
  contents.each_state([&](const Named& s, const FileTensor& t) {
    const SafetensorsEntry& entry = file.entry(t.whole.name);
    const bool is_shard = s.is_part() && !t.shard;
    read_file_tensor(file, is_shard ? part_of(entry, s) : entry, t, staging);
  });
  if (scaler != nullptr) scaler->set_state(*info.scaler);
  for (std::size_t i = 0; i < parts.optimizers.size(); ++i) {
    parts.optimizers[i]->set_step_count(i == 0 ? info.step_count : info.others[i - 1].step_count);
    parts.optimizers[i]->set_rate(i == 0 ? info.rate : info.others[i - 1].rate);
  }
  generator = RandomGenerator(info.seed);
  generator.set_step(info.generator_step);
  return std::move(info.metadata);
}

}  // namespace thimble::nn
