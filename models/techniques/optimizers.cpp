// The optimizer of a setup: its name, its numbers, and how it is made.

#include <algorithm>
#include <cmath>

#include <thimble/core/error.h>
#include <thimble/models/techniques/setup.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/nn/step/dry_scope.h>
#include <thimble/optim/adafactor.h>
#include <thimble/optim/adam.h>
#include <thimble/optim/matrix/muon.h>
#include <thimble/optim/matrix/projected.h>
#include <thimble/optim/sgd.h>

namespace thimble::models {
namespace {

constexpr const char* names[] = {"sgd",         "momentum", "adam",      "adamw",     "adafactor", "muon",
                                 "apollo-mini", "galore",   "adam-mini", "momentum8", "adam8",     "adamw8"};

constexpr const char* with_beta2 = "adam, adam8, adamw, adamw8, muon, apollo-mini, galore, adam-mini";

bool is_of_matrices(const std::string& optimizer) {
  return optimizer == "muon" || optimizer == "galore" || optimizer == "apollo-mini";
}

// The matrices outside hidden layers: embeddings and the head.
std::vector<std::string> outer_matrices(const Model& model, const std::vector<optim::Named>& parameters) {
  std::string last;  // the head, if hidden layers have no prefix
  for (const nn::NamedTensor& p : model.parameters()) {
    if (p.tensor.rank() >= 2 && model.has_head()) last = p.name;
  }
  const std::string_view hidden = model.hidden_layers();
  std::vector<std::string> list;
  for (const optim::Named& p : parameters) {
    const bool is_hidden = hidden.empty() ? p.name != last : p.name.starts_with(hidden);
    if (p.tensor.rank() >= 2 && !is_hidden) list.push_back(p.name);
  }
  return list;
}

// The names of full_state, without those of other ranks.
std::vector<std::string> full_state_here(Setup setup, const std::vector<optim::Named>& parameters) {
  std::vector<std::string> list = setup.optimizer.full_state;
  if (list.empty() || setup.layout.ranks == 1) return list;
  const nn::DryScope scope(cpu);
  setup.layout = {};
  const auto has = [](const auto& tensors, const std::string& name) {
    return std::any_of(tensors.begin(), tensors.end(), [&](const auto& p) { return optim::is_named(p.name, name); });
  };
  const std::vector<nn::NamedTensor> all = make_model(setup, dry(cpu))->parameters();
  std::erase_if(list, [&](const auto& name) { return !has(parameters, name) && has(all, name); });
  return list;
}

}  // namespace

std::string optimizer_name(const Setup& setup, bool is_text) {
  if (setup.optimizer.name.empty()) return is_text ? "adamw" : "momentum";
  std::string list;
  for (const char* name : names) {
    if (setup.optimizer.name == name) return setup.optimizer.name;
    list += (list.empty() ? "" : ", ") + std::string(name);
  }
  throw ValueError("`optimizer`: '" + setup.optimizer.name + "' is not one of " + list);
}

bool is_elementwise(const std::string& optimizer) {
  return optimizer != "adafactor" && !is_of_matrices(optimizer) && optimizer != "adam-mini";
}

DType optimizer_state(const Setup& setup, bool is_text) {
  const std::string name = optimizer_name(setup, is_text);
  const std::string begin = "`state` " + std::string(to_string(setup.optimizer.state)) + ": ";
  const bool is_narrow = name.back() == '8';
  if (setup.optimizer.state != DType::f32 && setup.optimizer.state != DType::bf16 &&
      setup.optimizer.state != DType::u8) {
    throw ValueError(begin + "expected f32, bf16 or u8");
  }
  if (setup.optimizer.state != DType::f32 && (name == "sgd" || !is_elementwise(name))) {
    throw ValueError(begin + "`optimizer` " + name + " has no moments to keep so; expected momentum, adam or adamw");
  }
  if (is_narrow && setup.optimizer.state == DType::bf16) {
    throw ValueError(begin + name + " keeps its state in u8; expected " + name.substr(0, name.size() - 1));
  }
  const DType state = is_narrow ? DType::u8 : setup.optimizer.state;
  if (state == DType::f32 && !setup.optimizer.full_state.empty()) {
    throw ValueError("`full_state` " + setup.optimizer.full_state.front() +
                     ": all state is f32; expected `state` bf16 or u8");
  }
  return state;
}

namespace {

// Momentum 0.9 makes steps up to ten times as long. Nets with batch norm train at 0.1, nets without it diverge there,
// and a kernel that many layers share sums the gradients of all of them.
double momentum_rate(const std::string& model) {
  if (model == "mlp" || model.starts_with("vit")) return 0.01;
  return model == "sharedconv" ? 0.03 : 0.1;
}

}  // namespace

OptimizerNumbers optimizer_numbers(const Setup& setup) {
  const bool is_text = models::is_text(setup);
  const std::string name = optimizer_name(setup, is_text);
  OptimizerNumbers numbers;
  if (name == "adafactor") {
    numbers.rate = 0.03;
    numbers.weight_decay = optim::AdafactorOptions{}.weight_decay;
  } else if (name.starts_with("adam") || is_of_matrices(name)) {
    // Wide transformers want smaller steps: 3e-3 at width 128, 7.8e-4 at 768.
    const auto width = static_cast<double>(complete_options(setup.model, setup.sizes).width);
    numbers.rate = is_text ? 3e-3 * std::pow(128 / width, 0.75) : 1e-3;
    const bool is_adamw = !name.starts_with("adam") || name.starts_with("adamw") || name == "adam-mini";
    numbers.beta2 = is_adamw ? 0.99 : optim::AdamOptions{}.beta2;
    numbers.weight_decay = is_adamw ? 0.1 : 0;
    if (setup.optimizer.beta2 >= 0) numbers.beta2 = setup.optimizer.beta2;
  } else {
    numbers.rate = name == "sgd" ? 0.1 : momentum_rate(setup.model);
  }
  if (setup.optimizer.rate >= 0) numbers.rate = setup.optimizer.rate;
  if (setup.optimizer.weight_decay >= 0) numbers.weight_decay = setup.optimizer.weight_decay;
  return numbers;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Setup& setup, const Model& model) {
  return make_optimizer(setup, model, model.trainable());
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Setup& setup, const Model& model,
                                                 std::vector<optim::Named> parameters) {
  const std::string name = optimizer_name(setup, model.is_text());
  if (setup.optimizer.rank != 0 && name != "galore") {
    throw ValueError("`optimizer_rank` " + std::to_string(setup.optimizer.rank) + ": " + name +
                     " has no rank; it belongs to galore");
  }
  const OptimizerNumbers numbers = optimizer_numbers(setup);
  const optim::MomentFormat moments{.dtype = optimizer_state(setup, model.is_text()),
                                    .full = full_state_here(setup, parameters)};
  const bool has_beta2 = setup.optimizer.beta2 >= 0;
  optim::NarrowUpdate narrow = optim::NarrowUpdate::rounded;
  if (!setup.precision.policy.empty()) narrow = nn::precision(setup.precision.policy).update;
  std::shared_ptr<memory::Tier> tier;
  if (setup.offload.optimizer) tier = make_tier(setup, parameters.front().tensor.device(), "offloads_optimizer");
  if (name == "adafactor") {
    if (has_beta2) {
      throw ValueError("`beta2`: adafactor's follows from the step; it belongs to " + std::string(with_beta2));
    }
    return std::make_unique<optim::Adafactor>(std::move(parameters),
                                              optim::AdafactorOptions{.rate = numbers.rate,
                                                                      .weight_decay = numbers.weight_decay,
                                                                      .smallest_decayed_rank = 2,
                                                                      .tier = tier,
                                                                      .narrow = narrow});
  }
  if (name == "adam-mini") {
    return std::make_unique<optim::AdamMini>(std::move(parameters),
                                             optim::AdamMiniOptions{.rate = numbers.rate,
                                                                    .beta2 = *numbers.beta2,
                                                                    .weight_decay = numbers.weight_decay,
                                                                    .smallest_decayed_rank = 2,
                                                                    .tier = tier,
                                                                    .narrow = narrow});
  }
  if (is_of_matrices(name)) {
    optim::MatrixOptions matrix{.rate = numbers.rate,
                                .beta2 = *numbers.beta2,
                                .weight_decay = numbers.weight_decay,
                                .smallest_decayed_rank = 2,
                                .elementwise = outer_matrices(model, parameters),
                                .tier = tier,
                                .narrow = narrow};
    if (name == "muon") {
      return std::make_unique<optim::Muon>(std::move(parameters), optim::MuonOptions{.matrix = std::move(matrix)});
    }
    if (name == "galore") {
      optim::GaloreOptions options{.matrix = std::move(matrix)};
      if (setup.optimizer.rank > 0) options.rank = setup.optimizer.rank;
      return std::make_unique<optim::Galore>(std::move(parameters), std::move(options));
    }
    return std::make_unique<optim::ApolloMini>(std::move(parameters),
                                               optim::ApolloOptions{.matrix = std::move(matrix)});
  }
  if (name.starts_with("adam")) {
    const bool is_adamw = name.starts_with("adamw");
    return std::make_unique<optim::Adam>(std::move(parameters),
                                         optim::AdamOptions{.rate = numbers.rate,
                                                            .beta2 = *numbers.beta2,
                                                            .weight_decay = numbers.weight_decay,
                                                            .is_decoupled = is_adamw,
                                                            .smallest_decayed_rank = is_adamw ? 2 : 0,
                                                            .tier = tier,
                                                            .narrow = narrow,
                                                            .moments = moments});
  }
  if (has_beta2) throw ValueError("`beta2`: " + name + " has none; it belongs to " + with_beta2);
  return std::make_unique<optim::Sgd>(std::move(parameters), optim::SgdOptions{.rate = numbers.rate,
                                                                               .momentum = name == "sgd" ? 0 : 0.9,
                                                                               .weight_decay = numbers.weight_decay,
                                                                               .tier = tier,
                                                                               .narrow = narrow,
                                                                               .moments = moments});
}

// ---- The optimizer and the dtype of its state (docs/optimizers.md).

namespace {

const Technique optimizer_techniques[] = {
    {.flag = {"optimizer",
              "--optimizer O",
              "sgd, momentum, adam, adamw, adafactor, muon, apollo-mini, galore, adam-mini, momentum8, adam8, adamw8 "
              "(text: adamw, images: momentum)",
              {[](Setup& s, const std::string&, const std::string& text) {
                 s.optimizer.name = text;
                 optimizer_name(s, false);
               },
               fields::value_of<&OptimizerSetup::name>},
              "everyday"},
     .example = {"adafactor"},
     .identity = {OnRanks::alike, OnResume::free, "",
                  [](const Setup& s, const Model& model) -> std::optional<Saved> {
                    return Saved{optimizer_name(s, model.is_text()), ""};
                  }},
     .document =
         {"a factored second moment; Muon, APOLLO, GaLore and Adam-mini ([optimizers](optimizers.md)); adamw8 and "
          "fellows",
          "another optimizer"}},
    {.flag = {"optimizer_rank", "--optimizer-rank N", "GaLore: rank of the projection (128)",
              fields::number<&OptimizerSetup::rank, 1, 1 << 20>},
     .detail_of = "optimizer",
     .identity = {OnRanks::alike}},
    {.flag = {"state",
              "--state D",
              "Dtype of the moments of momentum, adam and adamw: f32, bf16, u8 (f32)",
              {[](Setup& s, const std::string& name, const std::string& text) {
                 s.optimizer.state = parse_dtype_of(name, text, "f32, bf16, u8");
               },
               fields::value_of<&OptimizerSetup::state>}},
     .example = {"bf16"},
     .identity = {OnRanks::alike},
     .document = {"the optimizer's state in bf16 or 8 bits ([fewer bits](eight-bits.md))", "updates are rounded"}},
    {.flag = {"full_state", "--full-state NAME,",
              "Parameters whose state stays f32 with a narrower --state, by name or prefix (no parameter)",
              fields::list<&OptimizerSetup::full_state>},
     .detail_of = "state",
     .identity = {OnRanks::alike}}};

}  // namespace

std::span<const Technique> of_optimizers() { return optimizer_techniques; }

}  // namespace thimble::models
