// Of a setup: its precision policy, and what of the policy's recipe it changes.

#include <thimble/core/error.h>
#include <thimble/memory/units.h>
#include <thimble/models/training/setup.h>

namespace thimble::models {
namespace setup_precision_detail {

std::string scale_text(const std::optional<optim::GradScalerOptions>& scaling) {
  if (!scaling) return {};
  return scaling->is_dynamic ? "dynamic" : format_real(scaling->scale);
}

std::string interval_text(const std::optional<optim::GradScalerOptions>& scaling) {
  return scaling && scaling->is_dynamic ? std::to_string(scaling->interval) : std::string();
}

std::optional<optim::GradScalerOptions> scaling_of_policy(const Setup& setup) {
  if (setup.precision.empty() || !nn::precision(setup.precision).scales_loss) return std::nullopt;
  return optim::GradScalerOptions{};
}

std::optional<nn::Fp8Recipe> recipe_of_policy(const Setup& setup) {
  return setup.precision.empty() ? std::nullopt : nn::precision(setup.precision).fp8;
}

std::int64_t within(const char* option, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return value;
  throw ValueError(std::string(option) + ": " + std::to_string(value) + "; allowed are " + std::to_string(low) +
                   " to " + std::to_string(high));
}

/// The policy's recipe with what the setup changes.
nn::Fp8Recipe changed(nn::Fp8Recipe recipe, const Setup& setup) {
  const std::string policy = "`precision` " + setup.precision;
  if (setup.fp8_history) {
    if (recipe.kind != Fp8Scaling::delayed) {
      throw ValueError("`fp8_history`: " + std::to_string(*setup.fp8_history) + " is for delayed scaling, not for " +
                       policy + ", whose scales look back on no step; `precision` fp8 is allowed");
    }
    recipe.history = static_cast<int>(within("`fp8_history`", *setup.fp8_history, 1, fp8_history_max));
  }
  if (setup.fp8_margin) {
    if (recipe.kind == Fp8Scaling::block && *setup.fp8_margin != 0) {
      throw ValueError("`fp8_margin`: " + std::to_string(*setup.fp8_margin) + " is not for the blocks of " + policy +
                       "; 0 is allowed, and others with fp8, fp8-current");
    }
    recipe.margin = static_cast<int>(within("`fp8_margin`", *setup.fp8_margin, 0, fp8_margin_max));
  }
  if (setup.fp8_hybrid) recipe.hybrid = *setup.fp8_hybrid;
  recipe.strict = setup.fp8_strict;
  return recipe;
}

}  // namespace setup_precision_detail

void set_precision(Setup& setup, const std::string& name) {
  setup.dtype = nn::precision(name).parameters;
  setup.precision = name;
}

nn::TensorOptions tensor_options(const Setup& setup, memory::Device device) {
  using namespace setup_precision_detail;
  const char* const option = setup.fp8_strict    ? "`fp8_strict`"
                             : setup.fp8_history ? "`fp8_history`"
                             : setup.fp8_margin  ? "`fp8_margin`"
                             : setup.fp8_hybrid  ? "`fp8_hybrid`"
                                                 : nullptr;
  if (option != nullptr && !recipe_of_policy(setup)) {
    throw ValueError(std::string(option) + ": there is no FP8 " +
                     (setup.precision.empty() ? "without `precision`" : "under `precision` " + setup.precision) +
                     "; allowed with fp8, fp8-current, fp8-block");
  }
  if (setup.precision.empty()) return {device, setup.dtype};
  const nn::Precision& policy = nn::precision(setup.precision);
  if (policy.parameters != setup.dtype) {
    const std::string dtype(to_string(setup.dtype));
    throw ValueError((setup.base.empty() ? "`dtype`: " + dtype : "`base`: " + setup.base + " of " + dtype) +
                     " contradicts `precision` " + setup.precision + ", whose parameters are " +
                     std::string(to_string(policy.parameters)) + "; without `dtype`, or with that one, it is allowed");
  }
  nn::TensorOptions on = policy.on(device);
  if (on.fp8) on.fp8 = changed(*on.fp8, setup);
  return on;
}

std::optional<nn::Fp8Layers> fp8_layers(const Setup& setup, memory::Device device) {
  const nn::TensorOptions on = tensor_options(setup, dry(device));
  if (!on.fp8) return std::nullopt;
  return nn::fp8_layers(*make_model(setup.model, setup.sizes, on));
}

bool may_chunk_head(const Setup& setup) {
  if (team_size(setup) > 1) return false;
  const nn::TensorOptions on = tensor_options(setup, cpu);
  return (setup.precision.empty() && !loss_scaling(setup)) || on.compute.value_or(on.dtype) != DType::f16;
}

std::optional<optim::GradScalerOptions> loss_scaling(const Setup& setup) {
  std::optional<optim::GradScalerOptions> options =
      setup.loss_scale ? setup.loss_scale : setup_precision_detail::scaling_of_policy(setup);
  if (!setup.loss_scale_interval) return options;
  if (!options || !options->is_dynamic) {
    throw ValueError("`loss_scale_interval`: " + std::to_string(*setup.loss_scale_interval) +
                     " is for a dynamic scale, " +
                     (options ? "not for " + loss_scale_option(setup) : "and the loss is not scaled") +
                     "; allowed with `loss_scale` dynamic, `precision` O1, `precision` O2");
  }
  options->interval = *setup.loss_scale_interval;
  return options;
}

std::string loss_scale_option(const Setup& setup) {
  if (!setup.loss_scale) return "`precision` " + setup.precision;
  return "`loss_scale` " + setup_precision_detail::scale_text(setup.loss_scale);
}

std::unique_ptr<optim::GradScaler> make_scaler(const Setup& setup) {
  const auto options = loss_scaling(setup);
  return options ? std::make_unique<optim::GradScaler>(*options) : nullptr;
}

std::string precision_text(const Setup& setup, bool is_inference) {
  const auto scaling = is_inference ? std::nullopt : loss_scaling(setup);
  std::string text = setup.precision;
  if (text.empty() && (scaling || setup.dtype != DType::f32)) text = "all " + std::string(to_string(setup.dtype));
  if (!scaling) return text;
  const std::string scale = format_real(scaling->scale);
  return text + ", " + (scaling->is_dynamic ? "dynamic loss scale from " : "loss scale ") + scale;
}

std::string precision_warning(const Setup& setup) {
  if (size_of(setup.dtype) > 1) return {};
  return "`dtype` " + std::string(to_string(setup.dtype)) +
         ": parameters, activations and gradients are all in 8 bits without scales, and updates are rounded to them; "
         "`precision` fp8 has FP8 products with scales, and parameters in bf16";
}

std::vector<RecipeText> recipe_texts(const Setup& setup) {
  using namespace setup_precision_detail;
  const auto scaling = loss_scaling(setup), usual_scaling = scaling_of_policy(setup);
  const std::string usual_interval = std::to_string(optim::GradScalerOptions{}.interval);
  const std::string interval = interval_text(scaling);
  std::vector<RecipeText> list{
      {"loss_scale", "`loss_scale`", scale_text(scaling), scale_text(usual_scaling)},
      {"loss_scale_interval", "`loss_scale_interval`", interval.empty() ? usual_interval : interval, usual_interval}};
  const auto usual = recipe_of_policy(setup);
  if (!usual) return list;
  const nn::Fp8Recipe recipe = changed(*usual, setup);
  const auto on_off = [](bool on) { return std::string(on ? "on" : "off"); };
  list.push_back({"fp8_history", "`fp8_history`", std::to_string(recipe.history), std::to_string(usual->history)});
  list.push_back({"fp8_margin", "`fp8_margin`", std::to_string(recipe.margin), std::to_string(usual->margin)});
  list.push_back({"fp8_hybrid", "`fp8_hybrid`", on_off(recipe.hybrid), on_off(usual->hybrid)});
  return list;
}

}  // namespace thimble::models
