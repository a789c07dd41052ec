// Before the plan of a run: checks the options and opens the data.

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include <unistd.h>

#include <thimble/core/error.h>
#include <thimble/core/files/outputs.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/memory/stack.h>
#include <thimble/models/techniques/adapting.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/models/techniques/tiers.h>
#include <thimble/models/training/checkpoints.h>
#include <thimble/models/training/recipe.h>
#include <thimble/models/training/training.h>
#include <thimble/models/weights/follow_weights.h>
#include <thimble/nn/files/weights.h>
#include <thimble/nn/lora/adapter_files.h>
#include <thimble/nn/step/dry_scope.h>
#include <thimble/nn/trainer/checkpoint_keeper.h>

namespace thimble::models {
namespace {

// A sample's cache needs whole blocks. Files have whole tensors, which sharded state fits into only if it has a number
// per element.
void check_parts(const RunOptions& options, bool is_text) {
  const Setup& setup = options.setup;
  const bool has_stages = setup.layout.ranks > 1 && setup.layout.pp > 1;
  if (group_size(setup) == 1 && !has_stages) return;
  const std::string begin = (has_stages            ? "`pp`: " + std::to_string(setup.layout.pp)
                             : setup.layout.cp > 1 ? "`cp`: " + std::to_string(setup.layout.cp)
                                                   : "`tp`: " + std::to_string(setup.layout.tp)) +
                            " with ";
  const std::string whole = has_stages ? "`pp` 1" : setup.layout.cp > 1 ? "`cp` 1" : "`tp` 1";
  if (options.sample > 0) throw ValueError(begin + "`sample`; expected " + whole + ", or `sample` 0");
  if (has_stages && !setup.weights.empty()) {
    throw ValueError(begin + "`weights`: no rank has the whole model; expected `resume`, or `pp` 1");
  }
  if (setup.layout.tp == 1) return;
  if (options.save.empty() && options.resume.empty()) return;
  const std::string optimizer = optimizer_name(setup, is_text);
  const DType state = optimizer_state(setup, is_text);
  if (is_elementwise(optimizer) && state == DType::f32) return;
  throw ValueError(begin + (options.save.empty() ? "`resume`" : "`save`") + ": the state of " + optimizer +
                   (state == DType::f32 ? "" : " in " + std::string(to_string(state))) +
                   " is not cut as parameters are; expected sgd, momentum, adam or adamw, with `state` f32");
}

namespace fs = std::filesystem;

void require_writable(const char* option, const std::string& given, const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw ValueError(std::string(option) + ": '" + given + "': there is no folder '" + folder.string() + "'");
  }
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    throw ValueError(std::string(option) + ": '" + given + "': the folder '" + folder.string() + "' cannot be written");
  }
}

// A file to write: its folder must exist.
void check_file(const char* option, const std::string& path) {
  if (path.empty()) return;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    throw ValueError(std::string(option) + ": '" + path + "' is a folder; expected the name of a file");
  }
  const fs::path folder = fs::path(path).parent_path();
  require_writable(option, path, folder.empty() ? fs::path(".") : folder);
}

// A folder to make with its parents: the first that exists must be a writable folder.
void check_folder(const char* option, const std::string& path) {
  if (path.empty()) return;
  std::error_code error;
  fs::path existing = fs::absolute(path);
  while (!fs::exists(existing, error) && existing.has_relative_path()) existing = existing.parent_path();
  if (fs::exists(existing, error) && !fs::is_directory(existing, error)) {
    throw ValueError(std::string(option) + ": '" + path + "' is a file, or below one; expected a folder");
  }
  require_writable(option, path, existing);
}

/// Checks all files that the run writes.
void check_files(const RunOptions& options) {
  check_file("`save`", options.save);
  check_file("`save_weights`", options.save_weights);
  check_folder("`log`", options.log);
  check_folder("`save_adapters`", options.save_adapters);
  const std::string infix(options.keep > 1 ? nn::older_infix : "");
  std::vector<files::Output> outputs{{"`save`", options.save, &file_kinds::checkpoint, infix},
                                     {"`save_weights`", options.save_weights, &file_kinds::weights},
                                     {"`save_adapters`", options.save_adapters, &file_kinds::folder}};
  if (const std::string& folder = options.save_adapters; fs::is_directory(folder)) {
    outputs.push_back({"`save_adapters`", nn::adapter_config_path(folder), &file_kinds::adapters});
    outputs.push_back({"`save_adapters`", nn::adapter_tensors_path(folder), &file_kinds::weights});
  }
  outputs.insert(outputs.end(), options.other_outputs.begin(), options.other_outputs.end());
  std::vector<files::Input> inputs{{"`data`", options.data},
                                   {"`resume`", options.resume, "`save`"},
                                   {"`weights`", options.setup.weights},
                                   {"`adapters`", options.setup.lora.adapters},
                                   {"`tokenizer`", options.setup.tokenizer},
                                   {"`plan`", options.plan}};
  if (options.costs.measures) {
    outputs.push_back({"`times`", options.costs.times, &file_kinds::costs});
  } else {
    inputs.push_back({"`times`", options.costs.times});
  }
  outputs.push_back({"`log`", options.log, &file_kinds::folder});
  check_names(outputs);
  outputs.pop_back();  // a log's files have new names, so `overwrites` is not about them
  check_outputs(outputs, inputs, options.overwrites);
}

/// Checks the files that fine-tuning reads and writes.
void check_fine_tuning(RunOptions& options) {
  const bool has_adapters = options.setup.lora.rank > 0;
  if (!has_adapters && !options.save_adapters.empty()) {
    throw ValueError("`save_adapters`: there are none; expected `lora_rank` beside it");
  }
  if (has_adapters && !options.save_weights.empty()) {
    throw ValueError(
        "`save_weights`: the weights are frozen, and what is trained are adapters; expected `save_adapters`");
  }
  check_weights(options.setup);
  if (options.setup.weights.empty()) return;
  options.setup.weights_sum = nn::weights_sum(options.setup.weights);
}

/// Takes sizes and function that the options leave open from the files that the run begins with.
void follow_files(RunOptions& options) {
  Setup& setup = options.setup;
  if (!setup.weights.empty()) {
    follow_weights(setup.model, setup.sizes, read_weight_facts(setup.weights), WeightUse::training);
  }
  if (!options.resume.empty()) follow_checkpoint(setup.model, setup.sizes, read_weight_facts(options.resume, true));
}

/// Throws ValueError for an option that has no effect without another one.
void check_needs(const RunOptions& o) {
  const auto need = [](bool is_on, const char* option, bool is_met, const char* other) {
    if (is_on && !is_met) throw ValueError(std::string(option) + ": needs " + other);
  };
  const Setup& s = o.setup;
  const bool has_budget = o.budget_bytes > 0 || o.process_budget_bytes > 0, is_planned = has_budget || !o.plan.empty();
  constexpr const char* budget = "`budget_bytes` to plan for";
  need(o.costs.measures, "`measures`", has_budget, budget);
  need(!o.costs.times.empty(), "`times`", has_budget, budget);
  need(!o.costs.hardware.empty(), "`hardware`", has_budget || o.device.is_cuda(), budget);
  need(o.refusal_ms != nn::default_refusal_ms, "refusal_ms", has_budget, budget);
  need(o.is_strict, "`is_strict`", is_planned || o.captures_steps,
       "steps that follow a plan: `budget_bytes` or `plan`");
  need(o.save_every > 0, "`save_every`", !o.save.empty(), "`save`");
  need(o.keep > 1, "`keep`", !o.save.empty(), "`save`");
  need(o.min_rate > 0, "`min_rate`", o.schedule != "constant", "`schedule` cosine or step");
  if (const double rate = o.min_rate > 0 ? optimizer_numbers(s).rate : 0; o.min_rate > rate) {
    throw ValueError("`min_rate`: expected at most the `rate` " + format_real(rate) + ", got " +
                     format_real(o.min_rate));
  }
}

/// Throws ValueError for steps to capture that a CUDA graph cannot hold: on a cpu, with tiers, with coded weights.
void check_capture(const RunOptions& options) {
  if (!options.captures_steps) return;
  if (!options.device.is_cuda()) {
    throw ValueError("`captures_steps`: the " + to_string(options.device) +
                     " records no steps; expected `device` cuda");
  }
  refuse_uncaptured(options.setup, "`captures_steps`");
}

}  // namespace

Engine::Engine(RunOptions options) : options_(std::move(options)) {
  if (options_.steps < 1) throw ValueError("`steps`: " + std::to_string(options_.steps) + "; expected at least 1");
  check_needs(options_);
  rate_at(options_, 1, 0);
  check_tf32(options_.allows_tf32, options_.device);
  check_capture(options_);
  open();
}

/// Checks and completes the options, and opens the data. Its dry tensors are gone at its end, with the books that
/// counted them.
void Engine::open() {
  Setup& setup = options_.setup;
  const memory::Device on = dry(options_.device);
  const nn::DryScope scope(on);
  is_text_ = make_model(setup.model, {}, {on})->is_text();
  check_parts(options_, is_text_);
  follow_files(options_);
  optimizer_name(setup, is_text_);
  memory::make_resource(options_.device);  // throws if there is no such device
  if (options_.device.is_cuda() && options_.costs.hardware.empty()) {
    const std::vector<kernels::GpuFacts> gpus = kernels::device_runtime(options_.device).devices();
    options_.costs.gpu = gpus.at(options_.device.index).name;
  }
  const bool has_files = setup.layout.rank == 0;  // only rank 0 writes
  if (has_files) check_files(options_);
  {
    const auto chosen = make_model(setup.model, setup.sizes, tensor_options(setup, on));
    data_ = open_dataset(options_.data, *chosen, setup.model, setup.seed, setup.tokenizer);
  }
  data_->fit(setup.sizes);
  if (!setup.weights.empty()) check_tokens(read_weight_facts(setup.weights), *data_);
  check_techniques(setup, is_text_);
  check_fine_tuning(options_);
  RunOptions checked = options_;
  if (setup.micro_batches == auto_micro_batches) {
    if (options_.budget_bytes == 0 && options_.process_budget_bytes == 0) {
      throw ValueError("`micro_batches`: auto needs a `budget_bytes` to choose for; expected one, or a number");
    }
    checked.setup.micro_batches = 1;
  }
  // The data stay, so open them before anything that goes.
  const ModelOptions sizes = make_model(setup.model, setup.sizes, tensor_options(setup, on))->options();
  data_->set_share(share_of(setup));
  data_->open(sizes, setup.batch, setup.seed);
  Training training(checked, *data_, on);
  if (options_.sample > 0 && !training.can_sample()) {
    throw ValueError("`sample`: " + setup.model + " cannot write; the GPT and Llama families can");
  }
  if (!options_.resume.empty()) {
    first_step_ = check_resume(options_, *data_, training, &recipe_change_);
    if (!setup.weights.empty() && setup.lora.rank == 0) {
      throw ValueError("`weights`: not with `resume`, whose checkpoint has all parameters; leave out one of them");
    }
  }
  if (setup.layout.ranks > 1) traits_ = rank_traits(options_, *data_, training.model());
  if (!has_files) return;
  // With several ranks, the parameters' bytes may be away but their shapes are here; the other ranks' state adds up.
  std::uint64_t others_bytes = 0;
  if (training.parallel() != nullptr) {
    for (const auto& [name, of_one] : training.rank_files().whole) {
      for (const nn::NamedTensor& s : of_one) others_bytes += s.tensor.bytes();
    }
  }
  nn::check_keeping("`save`", {.path = options_.save, .keep = options_.keep, .overwrites = options_.overwrites},
                    options_.steps, options_.save_every,
                    others_bytes + nn::checkpoint_bytes(training.model(), training.optimizer()));
  if (!options_.save_weights.empty()) {
    nn::require_space("`save_weights`", options_.save_weights, nn::weights_file_bytes(training.model()),
                      nn::free_bytes_at(options_.save_weights));
  }
}

void Engine::require_alike(const std::vector<dist::Trait>& more) {
  is_compared_ = true;
  if (options_.setup.layout.ranks == 1 || options_.ranks == nullptr) return;
  std::vector<dist::Trait> traits = traits_;
  traits.insert(traits.end(), more.begin(), more.end());
  dist::require_alike(*options_.ranks, "train", traits);
}

}  // namespace thimble::models
