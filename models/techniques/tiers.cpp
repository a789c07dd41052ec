// Tensors wait in a tier between uses, in a folder on a disk or in the host's pinned memory (docs/offload.md), or are
// packed in fewer bits (docs/eight-bits.md).

#include <thimble/models/techniques/tiers.h>

#include <algorithm>
#include <utility>

#include <thimble/autograd/graph.h>
#include <thimble/autograd/plan.h>
#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/ops/quant/quantize.h>
#include <thimble/memory/offload/file_tier.h>
#include <thimble/memory/offload/tier.h>
#include <thimble/models/techniques/technique.h>
#include <thimble/nn/fit/spilling.h>
#include <thimble/nn/step/gradient_sink.h>

namespace thimble::models {
namespace {

constexpr const char* host = "host";

// Throws ValueError unless tensors of the device can wait in `offload`.
void check_place(const Setup& setup, memory::Device device) {
  if (device.is_cuda() && setup.offload.to != host) {
    throw ValueError("`offload`: '" + setup.offload.to + "' for " + to_string(device) +
                     ", whose tensors wait in the host's pinned memory; expected host");
  }
  if (!device.is_cuda() && setup.offload.to == host) {
    throw ValueError("`offload`: host is for `device` cuda; expected a folder on a disk");
  }
}

// "i8", or "i8:gelu,f8e4m3:linear,bf16": dtypes to pack results in, by operator and for all others.
void set_packed(Setup& setup, const std::string& name, const std::string& text) {
  constexpr const char* dtypes = "bf16, f16, f8e4m3, f8e5m2, i8";
  setup.packing.is_allowed = true;
  setup.packing.rules.clear();
  setup.packing.packs_rest = false;
  for (const std::string& entry : fields::split(text)) {
    const std::size_t colon = entry.find(':');
    if (colon == std::string::npos) {
      setup.packing.dtype = parse_dtype_of(name, entry, dtypes);
      if (setup.packing.packs_rest) refuse_value(name, "one dtype without an operator's name", text);
      setup.packing.packs_rest = true;
      continue;
    }
    const std::string to = entry.substr(0, colon);
    nn::PackRule rule{entry.substr(colon + 1), std::nullopt};
    if (to != "none") rule.dtype = parse_dtype_of(name, to, std::string(dtypes) + ", none");
    if (rule.name.empty()) refuse_value(name, "an operator's name after the colon, as in i8:gelu", entry);
    for (const nn::PackRule& other : setup.packing.rules) {
      if (other.name == rule.name) refuse_value(name, quote(rule.name) + " once", text);
    }
    setup.packing.rules.push_back(std::move(rule));
  }
  const bool packs_any =
      setup.packing.packs_rest || std::any_of(setup.packing.rules.begin(), setup.packing.rules.end(),
                                              [](const nn::PackRule& rule) { return rule.dtype.has_value(); });
  if (!packs_any) refuse_value(name, "a dtype besides none, as in none:attention,bf16", text);
}

std::string packed_of(const Setup& setup) {
  if (!setup.packing.is_allowed) return "off";
  std::string text = setup.packing.packs_rest ? std::string(to_string(setup.packing.dtype)) : "";
  for (const nn::PackRule& rule : setup.packing.rules) {
    text += (text.empty() ? "" : ",") + (rule.dtype ? std::string(to_string(*rule.dtype)) : "none") + ":" + rule.name;
  }
  return text;
}

std::vector<Variant> narrower(const LeverFacts& facts) {
  if (facts.setup.packing.is_allowed || facts.graph == nullptr) return {};
  const std::vector<DType> dtypes = narrower_dtypes(*facts.graph);
  if (dtypes.empty()) return {};
  const DType dtype = dtypes.front() == facts.setup.packing.dtype ? facts.setup.packing.dtype : dtypes.back();
  return {{std::string(to_string(dtype)), "gradients are rounded"}};
}

std::vector<Variant> sent(const LeverFacts& facts, double StateBytes::*bytes, double transfers, const char* note = "") {
  if (facts.bytes == nullptr || facts.bytes->*bytes == 0 || facts.setup.layout.ranks > 1) return {};
  return {{"on", note, transfers * facts.bytes->*bytes}};
}

std::vector<Variant> places(const LeverFacts& facts) {
  if (!facts.setup.offload.to.empty() || facts.graph == nullptr) return {};
  return {{facts.device.is_cuda() ? host : "FOLDER"}};
}

/// Forward, backward and update read each parameter, and the update writes it: four transfers.
std::vector<Variant> parameters_away(const LeverFacts& facts) {
  return sent(facts, &StateBytes::parameters, 4, "parameters are read as they are needed");
}

void check_read_ahead(const Setup& setup, bool) {
  if (setup.offload.read_ahead >= 0) return;
  throw ValueError("`read_ahead`: expected 0 or more, got " + std::to_string(setup.offload.read_ahead));
}

bool has_parameters_away(const Setup& setup) { return setup.offload.parameters || setup.layout.zero == 3; }

bool scales_by_policy(const Setup& setup) {
  return setup.offload.gradients && !setup.precision.loss_scale && loss_scaling(setup).has_value();
}

}  // namespace

std::span<const Technique> of_tiers() {
  static const char* const why = nn::traits_of(nn::SinkKind::offloaded).why;
  static const std::vector<Need> folder{{"offload", "`offload` FOLDER, on a GPU `offload` host"}};
  constexpr const char* by_host = "whose transfers the host makes in each step; expected a run without it";
  constexpr const char* same = "those of the run without it";
  // Techniques that need a folder precede `offload`, so that refusals of captured steps name them and not the folder.
  static const Technique list[] = {
      {.flag = {"offloads_parameters", "--offload-parameters",
                "With --offload: parameters wait there between uses, and --read-ahead layers are read in advance",
                fields::toggle<&OffloadSetup::parameters>},
       .example = {"on", true},
       .excludes = {{"ranks", "stage 3 of `zero` shards the parameters"}},
       .needs = folder,
       .why_not_captured = by_host,
       .variants = parameters_away,
       .document = {"parameters on a disk, of a GPU on its host, read as they are needed "
                    "([offloading](offload.md#parameters))",
                    same}},
      {.flag = {"read_ahead", "--read-ahead N",
                "Layers whose parameters are read in advance, with --offload-parameters or --zero 3 (1)",
                fields::number<&OffloadSetup::read_ahead, 0, 65536>},
       .detail_of = "offloads_parameters",
       .check = check_read_ahead,
       .needs = {{"offloads_parameters", "parameters that are away: `offloads_parameters` or `zero` 3",
                  has_parameters_away}},
       .identity = {OnRanks::with_plans}},
      {.flag = {"offloads_gradients", "--offload-gradients",
                "With --offload: gradients wait there from backward to the update",
                fields::toggle<&OffloadSetup::gradients>},
       .example = {"on", true},
       .excludes = {{"ranks", why}, {"micro_batches", why}, {"loss_scale", why}, {"precision", why, scales_by_policy}},
       .needs = folder,
       .why_not_captured = by_host,
       .variants = [](const LeverFacts& facts) { return sent(facts, &StateBytes::gradients, 2); },
       .document = {"gradients there", same}},
      {.flag = {"offloads_optimizer", "--offload-optimizer",
                "With --offload: optimizer state waits there between updates",
                fields::toggle<&OffloadSetup::optimizer>},
       .example = {"on", true},
       .needs = folder,
       .why_not_captured = by_host,
       .variants = [](const LeverFacts& facts) { return sent(facts, &StateBytes::optimizer, 2); },
       .document = {"the optimizer's state there", same}},
      {.flag = {"offload", "--offload FOLDER|host",
                "Plans may move saved tensors to a file in this folder; on a GPU 'host': to pinned memory",
                fields::plain_text<&OffloadSetup::to>},
       .example = {"FOLDER", true},
       .why_not_captured = by_host,
       .variants = places,
       .document = {"saved tensors there, with a budget ([offloading](offload.md))", same}},
      {.flag = {"allows_lossy",
                "--allow-lossy{bf16}",
                "Plans may pack saved tensors, which rounds gradients: =D to bf16, f16, f8e4m3, f8e5m2 or i8, "
                "=D:OPERATOR,... by operator (bf16)",
                {set_packed, packed_of}},
       .example = {"bf16", true},  // without a budget nothing is packed
       .identity = {OnRanks::alike},
       .variants = narrower,
       .document = {
           "saved tensors in bf16, f16 or 8 bits, by operator `--allow-lossy=i8:linear,f8e4m3:attention`, with a "
           "budget ([fewer bits](eight-bits.md))",
           "gradients are rounded, the first loss is not; `train --gradient-report` says by how much"}}};
  return list;
}

std::shared_ptr<memory::Tier> make_tier(const Setup& setup, memory::Device device, std::string_view option) {
  require_needs(setup, technique(option));
  check_place(setup, device);
  memory::TierOptions options;
  if (!device.is_cuda()) options.folder = setup.offload.to;
  return memory::make_tier(device, options);
}

nn::PlannerOptions planner_options(const Setup& setup, memory::Device device) {
  nn::PlannerOptions options;
  options.spilling.packs = setup.packing.is_allowed;
  options.spilling.packed = setup.packing.dtype;
  options.spilling.rules = setup.packing.rules;
  options.spilling.packs_rest = setup.packing.packs_rest;
  if (setup.offload.to.empty()) return options;
  check_place(setup, device);
  if (!device.is_cuda()) memory::DirectFile(setup.offload.to);  // throws FileError if it cannot hold a tier
  options.spilling.offloads = true;
  options.make_tier = [setup](memory::Device on) { return models::make_tier(setup, on, "offload"); };
  return options;
}

namespace {

/// Whether any result that backward reads, however small, can be packed.
bool packs(const TapeGraph& graph, nn::SpillPolicy spilling) {
  spilling.smallest = 0;
  const std::vector<nn::Spillable> uses = nn::spillables(graph);
  return std::any_of(uses.begin(), uses.end(),
                     [&](const nn::Spillable& use) { return spilling.packed_as(graph, use).has_value(); });
}

}  // namespace

PackedBytes packed_bytes_of(const nn::Plan& plan) {
  PackedBytes packing;
  for (const nn::PackedResults& results : plan.packed) {
    packing.bytes += results.bytes;
    packing.packed_bytes += results.packed_bytes;
    if (std::find(packing.dtypes.begin(), packing.dtypes.end(), results.dtype) == packing.dtypes.end()) {
      packing.dtypes.push_back(results.dtype);
    }
  }
  return packing;
}

std::string to_string(const std::vector<DType>& dtypes) {
  std::string text;
  for (const DType dtype : dtypes) text += (text.empty() ? "" : ", ") + std::string(to_string(dtype));
  return text;
}

std::vector<DType> narrower_dtypes(const TapeGraph& graph) {
  std::vector<DType> list;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f8e4m3, DType::f8e5m2, DType::i8}) {
    if (!nn::packable_operators(graph, dtype, 0).empty()) list.push_back(dtype);
  }
  return list;
}

void check_lossy(const Setup& setup, memory::Device device, const TapeGraph& graph) {
  if (!setup.packing.is_allowed || packs(graph, planner_options(setup, device).spilling)) return;
  const std::string others = to_string(narrower_dtypes(graph));
  throw ValueError("`allows_lossy`: " + std::string(to_string(setup.packing.dtype)) +
                   " is no narrower than what backward keeps of " + setup.model + " " +
                   (setup.precision.policy.empty() ? "`dtype` " + std::string(to_string(setup.precision.dtype))
                                                   : "`precision` " + setup.precision.policy) +
                   ", so that it would save nothing; expected " + (others.empty() ? "nothing narrower" : others));
}

}  // namespace thimble::models
