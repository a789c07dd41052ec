#include <thimble/nn/layers/fp8.h>

#include <cctype>
#include <map>
#include <set>

#include <thimble/autograd/functions/quant.h>
#include <thimble/core/error.h>
#include <thimble/core/ops/quant/fp8_linear.h>
#include <thimble/nn/layers/layers.h>

namespace thimble::nn {
namespace {

void check(const Fp8Recipe& recipe) {
  const bool is_block = recipe.kind == Fp8Scaling::block;
  if (recipe.margin < 0 || recipe.margin > (is_block ? 0 : fp8_margin_max)) {
    throw ValueError("fp8: margin " + std::to_string(recipe.margin) + "; expected " +
                     (is_block ? "0 with scales of blocks" : "0 to " + std::to_string(fp8_margin_max)));
  }
}

// "gpt.h.0.mlp" -> "gpt.h.*.mlp"
std::string kind_of(const std::string& path) {
  std::string kind;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (std::isdigit(static_cast<unsigned char>(path[i])) == 0) {
      kind += path[i];
    } else if (kind.empty() || kind.back() != '*') {
      kind += '*';
    }
  }
  return kind;
}

}  // namespace

std::string why_not_fp8(std::int64_t in, std::int64_t out) {
  if (in % fp8_multiple == 0 && out % fp8_multiple == 0) return {};
  return std::to_string(in) + " to " + std::to_string(out) + " features, and both must be multiples of " +
         std::to_string(fp8_multiple);
}

std::string fp8_products_text(memory::Device device, const Fp8Format& format) {
  if (!device.is_cuda()) return "of bf16 values, in which FP8 ones are exact";
  if (format.scaling != Fp8Scaling::block) return "of codes: y, dx, dW";
  const std::string why = why_no_fp8_blocks(device);
  if (!why.empty()) return "of bf16 values: " + why;
  if (!fp8_blocks_on_units(device, {8, 16, 16, format.forward, format.forward, DType::bf16})) {
    return "of bf16 values: E5M2 codes are not multiplied with each other";
  }
  return "of codes: y and dx, of rows in multiples of 8; of bf16 values: dW, whose sum is over rows with their own "
         "scales";
}

std::string fp8_recipe_text(const Fp8Format& format) {
  const char* const kind = format.scaling == Fp8Scaling::delayed   ? "delayed"
                           : format.scaling == Fp8Scaling::current ? "current"
                                                                   : "block";
  return std::string(kind) + ", " + std::string(to_string(format.forward)) + " forward, " +
         std::string(to_string(format.gradient)) + " gradients, margin " + std::to_string(format.margin);
}

std::string fp8_recipe_text(const Module& model) {
  std::set<std::string> seen;
  std::string text;
  model.for_each_module([&](const Module& module) {
    const std::string recipe = module.fp8_status().recipe;
    if (!recipe.empty() && seen.insert(recipe).second) text += (text.empty() ? "" : "; ") + recipe;
  });
  return text.empty() ? "none" : text;
}

void check_fp8_strict(const std::optional<Fp8Recipe>& recipe, const std::string& why) {
  if (!recipe || !recipe->strict || why.empty()) return;
  throw ValueError("fp8: " + std::string(path_name(context().path)) + " would fall back to a higher precision: " + why +
                   "; a recipe that is not strict allows it");
}

Fp8Linear::Fp8Linear(Linear& base, const TensorOptions& on)
    : base_(base),
      why_(why_not_fp8(base.inputs(), base.outputs())),
      runs_(why_.empty()),
      device_(on.device),
      format_(on.fp8->format()) {
  check(*on.fp8);
  check_fp8_strict(on.fp8, why_);
  if (!runs_ || on.fp8->kind != Fp8Scaling::delayed) return;
  state_ = make_fp8_state(on.fp8->history, on.device);
  add_buffer("fp8_amax", state_.amax);
  add_buffer("fp8_scale", state_.scale);
  add_buffer("fp8_steps", state_.steps);
}

Fp8Status Fp8Linear::fp8_status() const {
  if (!runs_) return {false, why_};
  return {true, {}, fp8_recipe_text(format_), fp8_products_text(device_, format_)};
}

// act(x W^T + bias); records amax while training.
Tensor Fp8Linear::forward(const Tensor& x) {
  if (!runs_) return forward_of(base_, x);
  const Tensor operand = as_operand(x, base_.compute()), addend = as_operand(base_.bias, base_.compute());
  return fp8_linear(operand, as_operand(base_.weight, base_.compute()), addend, format_, state_, is_training(),
                    base_.activation(), base_.weight_is_in_out());
}

Fp8Layers fp8_layers(Module& model) {
  Fp8Layers result;
  std::set<std::string> paths;
  model.for_each_module([&](Module& module) {
    const Fp8Status status = module.fp8_status();
    if (!status.runs && status.fallback.empty()) return;
    const std::string path(path_name(module.path()));
    paths.insert(path);
    if (status.runs) {
      result.layers.push_back(path);
      result.products = status.products;
    } else {
      result.fallbacks.push_back({path, status.fallback});
    }
  });
  const std::string root(path_name(model.path()));
  for (const NamedTensor& p : model.parameters()) {
    const std::size_t dot = p.name.rfind('.');
    const std::string owner = dot == std::string::npos ? "" : p.name.substr(0, dot);
    const std::string path = root + (root.empty() || owner.empty() ? "" : ".") + owner;
    if (paths.insert(path).second) result.higher.push_back(path);
  }
  return result;
}

std::vector<Fp8Fallback> fp8_fallbacks(Module& model) { return fp8_layers(model).fallbacks; }

std::string fp8_paths_text(const std::vector<std::string>& paths) {
  std::vector<std::string> kinds;
  std::map<std::string, int> counts;
  for (const std::string& path : paths) {
    const std::string kind = kind_of(path);
    if (counts[kind]++ == 0) kinds.push_back(kind);
  }
  std::string text;
  for (const std::string& kind : kinds) {
    text += (text.empty() ? "" : ", ") + kind;
    if (counts[kind] > 1) text += " (" + std::to_string(counts[kind]) + ")";
  }
  return text;
}

}  // namespace thimble::nn
