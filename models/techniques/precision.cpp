// Dtypes of parameters, activations and products, the FP8 recipe, and the loss scale (docs/precision.md).

#include <algorithm>

#include <thimble/core/error.h>
#include <thimble/models/techniques/technique.h>

namespace thimble::models {
namespace {

std::optional<nn::Fp8Recipe> recipe_of_policy(const Setup& setup) {
  return setup.precision.policy.empty() ? std::nullopt : nn::precision(setup.precision.policy).fp8;
}

std::int64_t within(const char* option, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return value;
  throw ValueError(std::string(option) + ": " + std::to_string(value) + "; expected " + std::to_string(low) + " to " +
                   std::to_string(high));
}

/// The policy's recipe with the setup's changes.
nn::Fp8Recipe changed(nn::Fp8Recipe recipe, const Setup& setup) {
  const std::string policy = "`precision` " + setup.precision.policy;
  if (setup.precision.fp8_history) {
    if (recipe.kind != Fp8Scaling::delayed) {
      throw ValueError("`fp8_history`: " + std::to_string(*setup.precision.fp8_history) +
                       " is for delayed scaling, not for " + policy +
                       ", whose scales look back on no step; expected `precision` fp8");
    }
    recipe.history = static_cast<int>(within("`fp8_history`", *setup.precision.fp8_history, 1, fp8_history_max));
  }
  if (setup.precision.fp8_margin) {
    if (recipe.kind == Fp8Scaling::block && *setup.precision.fp8_margin != 0) {
      throw ValueError("`fp8_margin`: " + std::to_string(*setup.precision.fp8_margin) + " is not for the blocks of " +
                       policy + "; expected 0, or `precision` fp8 or fp8-current");
    }
    recipe.margin = static_cast<int>(within("`fp8_margin`", *setup.precision.fp8_margin, 0, fp8_margin_max));
  }
  if (setup.precision.fp8_hybrid) recipe.hybrid = *setup.precision.fp8_hybrid;
  recipe.strict = setup.precision.fp8_strict;
  return recipe;
}

std::string policy_names() {
  std::string names;
  for (const nn::Precision& p : nn::precisions()) names += (names.empty() ? "" : ", ") + std::string(p.name);
  return names;
}

void set_policy(Setup& setup, const std::string& name, const std::string& text) {
  const auto is_asked = [&](const nn::Precision& p) { return text == p.name; };
  if (std::ranges::none_of(nn::precisions(), is_asked)) refuse_value(name, "one of " + policy_names(), text);
  set_precision(setup, text);
}

using Scaling = std::optional<optim::GradScalerOptions>;

std::string scale_text(const Scaling& scaling) {
  if (!scaling) return {};
  return scaling->is_dynamic ? "dynamic" : format_real(scaling->scale);
}

std::string interval_text(const Scaling& scaling) {
  const bool is_dynamic = scaling && scaling->is_dynamic;
  return std::to_string(is_dynamic ? scaling->interval : optim::GradScalerOptions{}.interval);
}

Scaling of_policy(const Setup& setup) {
  if (setup.precision.policy.empty() || !nn::precision(setup.precision.policy).scales_loss) return std::nullopt;
  return optim::GradScalerOptions{};
}

void set_scale(Setup& setup, const std::string& name, const std::string& text) {
  optim::GradScalerOptions options;
  if (text != "dynamic") {
    options.scale = parse_number(name, text, options.least, options.most, " or dynamic");
    options.is_dynamic = false;
  }
  setup.precision.loss_scale = options;
}

std::optional<Saved> saved_scale(const Setup& setup, const Model&) {
  return Saved{scale_text(loss_scaling(setup)), scale_text(of_policy(setup))};
}
std::optional<Saved> saved_interval(const Setup& setup, const Model&) {
  return Saved{interval_text(loss_scaling(setup)), interval_text(std::nullopt)};
}
template <auto Member>
std::optional<Saved> saved_recipe(const Setup& setup, const Model&) {
  const auto usual = recipe_of_policy(setup);
  if (!usual) return std::nullopt;  // no FP8
  return Saved{fields::in_words(changed(*usual, setup).*Member), fields::in_words((*usual).*Member)};
}

/// An option of the FP8 recipe.
Technique of_fp8(const Flag& flag, const Identity& identity) {
  return {.flag = flag, .detail_of = "precision", .is_about_training = false, .identity = identity};
}

}  // namespace

std::span<const Technique> of_precision() {
  using Recipe = nn::Fp8Recipe;
  static const std::string help = "Mixed precision: " + policy_names() + " (off: all in --dtype)";
  static const Technique list[] = {
      {.flag = {"dtype",
                "--dtype D",
                "Dtype of parameters and activations: f64, f32, f16, bf16, f8e4m3, f8e5m2 (f32)",
                {[](Setup& s, const std::string& name, const std::string& text) {
                   s.precision.dtype = parse_dtype_of(name, text, "f64, f32, f16, bf16, f8e4m3, f8e5m2");
                 },
                 fields::value_of<&PrecisionSetup::dtype>},
                "",
                FlagSet::dtypes},
       .example = {"bf16"},
       .is_about_training = false,
       .identity = {OnRanks::alike}},
      {.flag = {"precision",
                "--precision P",
                help,
                {set_policy, fields::value_of<&PrecisionSetup::policy>},
                "everyday",
                FlagSet::dtypes},
       .example = {"O2"},
       .is_about_training = false,
       .identity = {OnRanks::free, OnResume::same, "precision"},
       .document = {"16-bit parameters and activations, 8-bit inputs of linear layers ([precision](precision.md))",
                    "those of the policy, whatever is switched on besides"}},
      of_fp8({"fp8_strict", "--fp8-strict", "FP8: refuse layers that fall back to a higher precision",
              fields::toggle<&PrecisionSetup::fp8_strict>},
             {}),
      of_fp8({"fp8_history", "--fp8-history N", "With --precision fp8: steps of amax history per scale (16)",
              fields::number<&PrecisionSetup::fp8_history, 1, 1024>},
             {OnRanks::free, OnResume::same, "fp8_history", saved_recipe<&Recipe::history>}),
      of_fp8({"fp8_margin", "--fp8-margin N",
              "With --precision fp8 or fp8-current: scales are 2^N larger than amax needs (0)",
              fields::number<&PrecisionSetup::fp8_margin, 0, 16>},
             {OnRanks::free, OnResume::same, "fp8_margin", saved_recipe<&Recipe::margin>}),
      of_fp8({"fp8_hybrid", "--fp8-hybrid S", "FP8: gradients in E5M2 (on) or E4M3 (off) (on; fp8-block: off)",
              fields::toggle<&PrecisionSetup::fp8_hybrid>},
             {OnRanks::free, OnResume::same, "fp8_hybrid", saved_recipe<&Recipe::hybrid>}),
      {.flag = {"loss_scale",
                "--loss-scale dynamic|X",
                "dynamic, or a fixed scale from 1 to 2^24 (dynamic for O1 and O2, else none)",
                {set_scale, [](const Setup& s) { return scale_text(s.precision.loss_scale); }}},
       .example = {"dynamic"},
       .identity = {OnRanks::free, OnResume::same, "loss_scale", saved_scale}},
      {.flag = {"loss_scale_interval", "--loss-scale-interval N",
                "Finite steps in a row after which a dynamic scale doubles (2000)",
                fields::number<&PrecisionSetup::loss_scale_interval, 1, std::numeric_limits<std::int32_t>::max()>},
       .detail_of = "loss_scale",
       .identity = {OnRanks::free, OnResume::same, "loss_scale_interval", saved_interval}}};
  return list;
}

void set_precision(Setup& setup, const std::string& name) {
  setup.precision.dtype = nn::precision(name).parameters;
  setup.precision.policy = name;
}

nn::TensorOptions tensor_options(const Setup& setup, memory::Device device) {
  const char* const option = setup.precision.fp8_strict    ? "`fp8_strict`"
                             : setup.precision.fp8_history ? "`fp8_history`"
                             : setup.precision.fp8_margin  ? "`fp8_margin`"
                             : setup.precision.fp8_hybrid  ? "`fp8_hybrid`"
                                                           : nullptr;
  if (option != nullptr && !recipe_of_policy(setup)) {
    throw ValueError(
        std::string(option) + ": there is no FP8 " +
        (setup.precision.policy.empty() ? "without `precision`" : "under `precision` " + setup.precision.policy) +
        "; expected fp8, fp8-current or fp8-block");
  }
  if (setup.precision.policy.empty()) return {device, setup.precision.dtype};
  const nn::Precision& policy = nn::precision(setup.precision.policy);
  if (policy.parameters != setup.precision.dtype) {
    const std::string dtype(to_string(setup.precision.dtype));
    throw ValueError((setup.lora.base.empty() ? "`dtype`: " + dtype : "`base`: " + setup.lora.base + " of " + dtype) +
                     " contradicts `precision` " + setup.precision.policy + ", whose parameters are " +
                     std::string(to_string(policy.parameters)) + "; expected that one, or no `dtype`");
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
  if (group_size(setup) > 1) return false;
  const nn::TensorOptions on = tensor_options(setup, cpu);
  return (setup.precision.policy.empty() && !loss_scaling(setup)) || on.compute.value_or(on.dtype) != DType::f16;
}

std::string precision_text(const Setup& setup, bool is_inference) {
  const auto scaling = is_inference ? std::nullopt : loss_scaling(setup);
  std::string text = setup.precision.policy;
  if (text.empty() && (scaling || setup.precision.dtype != DType::f32))
    text = "all " + std::string(to_string(setup.precision.dtype));
  if (!scaling) return text;
  const std::string scale = format_real(scaling->scale);
  return text + ", " + (scaling->is_dynamic ? "dynamic loss scale from " : "loss scale ") + scale;
}

std::string precision_warning(const Setup& setup) {
  if (size_of(setup.precision.dtype) > 1) return {};
  return "`dtype` " + std::string(to_string(setup.precision.dtype)) +
         ": parameters, activations and gradients are all in 8 bits without scales, and updates are rounded to them; "
         "`precision` fp8 has FP8 products with scales, and parameters in bf16";
}

std::optional<optim::GradScalerOptions> loss_scaling(const Setup& setup) {
  std::optional<optim::GradScalerOptions> options =
      setup.precision.loss_scale ? setup.precision.loss_scale : of_policy(setup);
  if (!setup.precision.loss_scale_interval) return options;
  if (!options || !options->is_dynamic) {
    throw ValueError("`loss_scale_interval`: " + std::to_string(*setup.precision.loss_scale_interval) +
                     " is for a dynamic scale, " +
                     (options ? "not for " + loss_scale_option(setup) : "and the loss is not scaled") +
                     "; expected `loss_scale` dynamic, or `precision` O1 or O2");
  }
  options->interval = *setup.precision.loss_scale_interval;
  return options;
}

std::string loss_scale_option(const Setup& setup) {
  return technique(setup.precision.loss_scale ? "loss_scale" : "precision").said(setup);
}

std::unique_ptr<optim::GradScaler> make_scaler(const Setup& setup) {
  const auto options = loss_scaling(setup);
  return options ? std::make_unique<optim::GradScaler>(*options) : nullptr;
}

}  // namespace thimble::models
