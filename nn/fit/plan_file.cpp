#include <thimble/nn/fit/plan_file.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/core/error.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/bytes.h>

namespace thimble::nn {
namespace plan_file_detail {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;
constexpr std::string_view format = "thimble plan 1";

// ---- writing

Json json_of(const Shape& shape) { return std::vector<std::int64_t>(shape.begin(), shape.end()); }

Json json_of(const PlanKey& key) {
  Json json{{"library", key.library}, {"machine", key.machine}, {"step", key.step}};
  json["leaves"] = json["nodes"] = Json::array();
  for (const PlanKey::Leaf& leaf : key.leaves) json["leaves"].push_back({to_string(leaf.dtype), json_of(leaf.shape)});
  for (const PlanKey::Node& node : key.nodes) {
    json["nodes"].push_back(
        {node.name, to_string(node.size.dtype), json_of(node.size.result), std::to_string(node.size.operands)});
  }
  return json;
}

Json json_of(const TapePlan& tape) {
  Json json;
  std::string fates;
  for (const Fate fate : tape.fates) fates += static_cast<char>('0' + static_cast<int>(fate));
  json["fates"] = fates;
  json["segments"] = json["stores"] = Json::array();
  for (const TapePlan::Segment& s : tape.segments) json["segments"].push_back({s.first, s.end, s.parent});
  for (const TapePlan::Spill& s : tape.spills) {
    const bool is_packed = s.form == TapePlan::Spill::Form::pack;
    json["stores"].push_back({s.node, s.which, is_packed ? std::string(to_string(s.dtype)) : "offload", s.away_after,
                              s.gone_after, s.back_before});
  }
  return json;
}

/// Events as [bytes, alignment, block, category, path], frees as [block]; paths and categories by their place in a
/// list.
Json json_of(const StepPlacement& step) {
  std::map<PathId, std::size_t> paths;
  Json json;
  json["paths"] = json["events"] = Json::array();
  for (const StepPlacement::Event& event : step.events) {
    if (event.bytes == 0) {
      json["events"].push_back(Json::array({event.block}));
      continue;
    }
    const auto [path, is_new] = paths.try_emplace(event.path, paths.size());
    if (is_new) json["paths"].push_back(std::string(path_name(event.path)));
    const std::int64_t block = event.block == StepPlacement::not_placed ? -1 : static_cast<std::int64_t>(event.block);
    json["events"].push_back({event.bytes, event.alignment, block, static_cast<int>(event.category), path->second});
  }
  json["offsets"] = step.placement.offsets;
  json["height"] = step.placement.height;
  json["load"] = step.placement.load;
  json["is_optimal"] = step.placement.is_optimal;
  return json;
}

Json figures_of(const Plan& plan) {
  Json json{{"description", plan.description},
            {"peak_bytes", plan.peak_bytes},
            {"lower_bound_bytes", plan.lower_bound_bytes},
            {"step_s", plan.step_s},
            {"time_overhead", plan.time_overhead},
            {"peak_by_category", plan.peak_by_category},
            {"offloaded_bytes", plan.offloaded_bytes},
            {"packed_bytes", plan.packed_bytes}};
  json["packed"] = Json::array();
  for (const PackedResults& p : plan.packed) {
    json["packed"].push_back({p.name, to_string(p.dtype), p.tensors, p.bytes, p.packed_bytes});
  }
  return json;
}

// ---- reading

struct Reader {
  std::string path;

  [[noreturn]] void refuse(const std::string& why) const { throw FileError(path, 0, "is not a plan: " + why); }

  Shape shape(const Json& json) const {
    const auto sizes = json.get<std::vector<std::int64_t>>();
    return Shape(std::span<const std::int64_t>(sizes));
  }

  PlanKey key(const Json& json) const {
    PlanKey key;
    key.library = json.at("library").get<std::string>();
    key.machine = json.at("machine").get<std::string>();
    key.step = json.at("step").get<std::string>();
    for (const Json& leaf : json.at("leaves")) {
      key.leaves.push_back({shape(leaf.at(1)), parse_dtype(leaf.at(0).get<std::string>())});
    }
    for (const Json& node : json.at("nodes")) {
      const std::string digest = node.at(3).get<std::string>();
      if (digest.empty() || digest.size() > 20 || digest.find_first_not_of("0123456789") != std::string::npos) {
        refuse("the digest of node " + std::to_string(key.nodes.size()) + " is no number");
      }
      key.nodes.push_back({node.at(0).get<std::string>(),
                           {std::stoull(digest), shape(node.at(2)), parse_dtype(node.at(1).get<std::string>())}});
    }
    return key;
  }

  std::shared_ptr<const TapePlan> tape(const Json& json) const {
    if (json.is_null()) return nullptr;
    auto tape = std::make_shared<TapePlan>();
    for (const char fate : json.at("fates").get<std::string>()) {
      if (fate < '0' || fate > '3') refuse("a fate is '" + std::string(1, fate) + "'");
      tape->fates.push_back(static_cast<Fate>(fate - '0'));
    }
    for (const Json& s : json.at("segments")) {
      tape->segments.push_back(
          {s.at(0).get<std::uint32_t>(), s.at(1).get<std::uint32_t>(), s.at(2).get<std::int32_t>()});
    }
    for (const Json& s : json.at("stores")) {
      TapePlan::Spill spill;
      spill.node = s.at(0).get<std::uint32_t>();
      spill.which = s.at(1).get<std::int32_t>();
      const std::string form = s.at(2).get<std::string>();
      if (form != "offload") spill.form = TapePlan::Spill::Form::pack, spill.dtype = parse_dtype(form);
      spill.away_after = s.at(3).get<std::uint32_t>();
      spill.gone_after = s.at(4).get<std::uint32_t>();
      spill.back_before = s.at(5).get<std::uint32_t>();
      tape->spills.push_back(spill);
    }
    return tape;
  }

  StepPlacement step(const Json& json) const {
    StepPlacement step;
    std::vector<PathId> paths;
    for (const Json& path : json.at("paths")) {
      const std::string name = path.get<std::string>();
      paths.push_back(name.empty() ? 0 : join_path(0, name));
    }
    for (const Json& event : json.at("events")) {
      if (event.size() == 1) {
        StepPlacement::Event free;
        free.block = event.at(0).get<std::uint32_t>();
        if (free.block >= step.buffers.size())
          refuse("block " + std::to_string(free.block) + " is freed before it is there");
        step.buffers[free.block].upper = step.events.size();
        step.events.push_back(free);
        continue;
      }
      StepPlacement::Event made{event.at(0).get<std::size_t>(), event.at(1).get<std::uint32_t>()};
      const auto block = event.at(2).get<std::int64_t>();
      const auto category = event.at(3).get<std::size_t>();
      if (made.bytes == 0 || category >= category_count) refuse("an event allocates nothing, or of no category");
      made.category = static_cast<Category>(category);
      made.path = paths.at(event.at(4).get<std::size_t>());
      if (block >= 0) {
        made.block = static_cast<std::uint32_t>(block);
        if (made.block != step.buffers.size()) refuse("its blocks are not in order");
        step.buffers.push_back({made.block, step.events.size(), 0, made.bytes, made.alignment});
      }
      step.events.push_back(made);
    }
    step.placement.offsets = json.at("offsets").get<std::vector<std::size_t>>();
    step.placement.height = json.at("height").get<std::size_t>();
    step.placement.load = json.at("load").get<std::size_t>();
    step.placement.is_optimal = json.at("is_optimal").get<bool>();
    return step;
  }

  Plan plan(const Json& json) const {
    if (!json.is_object() || json.value("format", "") != format)
      refuse("its format is not '" + std::string(format) + "'");
    Plan plan;
    plan.key = std::make_shared<PlanKey>(key(json.at("key")));
    plan.tape = tape(json.at("tape"));
    for (const Json& s : json.at("placement")) plan.placement.push_back(step(s));
    const Json& figures = json.at("figures");
    plan.description = figures.at("description").get<std::string>();
    plan.peak_bytes = figures.at("peak_bytes").get<std::size_t>();
    plan.lower_bound_bytes = figures.at("lower_bound_bytes").get<std::size_t>();
    plan.step_s = figures.at("step_s").get<double>();
    plan.time_overhead = figures.at("time_overhead").get<double>();
    plan.peak_by_category = figures.at("peak_by_category").get<CategoryBytes>();
    plan.offloaded_bytes = figures.at("offloaded_bytes").get<std::size_t>();
    plan.packed_bytes = figures.at("packed_bytes").get<std::size_t>();
    for (const Json& p : figures.at("packed")) {
      plan.packed.push_back({p.at(0).get<std::string>(), parse_dtype(p.at(1).get<std::string>()),
                             p.at(2).get<std::size_t>(), p.at(3).get<std::size_t>(), p.at(4).get<std::size_t>()});
    }
    return plan;
  }
};

/// The tape's plan with the operators of this program.
std::shared_ptr<const TapePlan> with_operators(const std::shared_ptr<const TapePlan>& tape, const TapeGraph& graph) {
  if (!tape) return nullptr;
  auto whole = std::make_shared<TapePlan>(*tape);
  for (const TapeGraph::Node& node : graph.nodes) whole->types.push_back(node.type);
  whole->sizes = graph.sizes();
  whole->ends = graph.ends;
  whole->validate();
  return whole;
}

}  // namespace plan_file_detail

std::string plan_to_json(const Plan& plan) {
  using namespace plan_file_detail;
  if (!plan.key) throw ValueError("plan: it has no key, so it cannot be written; plans of a Planner have one");
  Json json{{"format", format}, {"figures", figures_of(plan)}, {"key", json_of(*plan.key)}};
  json["tape"] = plan.tape ? json_of(*plan.tape) : Json();
  json["placement"] = Json::array();
  for (const StepPlacement& step : plan.placement) json["placement"].push_back(json_of(step));
  return json.dump() + "\n";
}

void write_plan(const std::string& path, const Plan& plan) { write_file_atomically(path, plan_to_json(plan)); }

Plan read_plan(const std::string& path, const MakeRun& make, Device device, const MakeTier& make_tier) {
  const std::vector<std::byte> bytes = read_whole_file(path, plan_file_detail::most_bytes);
  return plan_from_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path, make, device, make_tier);
}

Plan plan_from_json(std::string_view json, const std::string& source, const MakeRun& make, Device device,
                    const MakeTier& make_tier) {
  using namespace plan_file_detail;
  const Device on = dry(device);
  PlanKey now;
  const TapeGraph graph =
      record_step(on, make, [&](TrainingRun& run, const TapeGraph& recording) { now = plan_key(on, recording, run); });
  const Reader reader{source};
  Plan plan;
  try {
    plan = reader.plan(Json::parse(json));
  } catch (const nlohmann::json::exception& error) {
    reader.refuse(error.what());
  } catch (const std::out_of_range& error) {
    reader.refuse(error.what());
  } catch (const ValueError& error) {
    reader.refuse(error.what());
  } catch (const ShapeError& error) {
    reader.refuse(error.what());
  }
  if (const std::string why = difference(*plan.key, now); !why.empty()) {
    throw PlanError("plan " + source + " is of another key: " + why);
  }
  plan.tape = with_operators(plan.tape, graph);
  if (plan.tape && plan.tape->offloads()) {
    if (!make_tier) throw PlanError("plan " + source + " offloads tensors, and there is no tier");
    plan.make_tier = make_tier;
  }
  const MakeRun follow = [&](Device target) {
    std::unique_ptr<TrainingRun> run = make(target);
    plan.apply(run->options(), target);
    return run;
  };
  const MemoryProfile profile = profile_training(on, follow, 2, false, plan.placement);
  if (profile.placed.first_deviation) {
    throw PlanError("plan " + source + " is not kept by a dry run: " + to_string(*profile.placed.first_deviation));
  }
  plan.peak_bytes = profile.peak_bytes;
  plan.peak_by_category = profile.peak_by_category;
  plan.tier_bytes = profile.tier_bytes;
  return plan;
}

std::string to_text(const Plan& plan) {
  std::string text;
  if (plan.key) {
    text += "plan of " + std::to_string(plan.key->nodes.size()) + " nodes and " +
            std::to_string(plan.key->leaves.size()) + " trained leaves\n  for " + plan.key->machine + ", thimble " +
            plan.key->library + "\n  steps of " + plan.key->step + "\n";
  }
  char percent[32];
  std::snprintf(percent, sizeof percent, "%.1f %%", 100 * plan.time_overhead);
  text += "  peak " + memory::exact_bytes(plan.peak_bytes) + ", load " + memory::exact_bytes(plan.lower_bound_bytes) +
          ", " + percent + " more time by the cost model\n";
  if (!plan.tape) {
    text += "  everything is kept\n";
  } else {
    const auto dropped =
        std::count_if(plan.tape->fates.begin(), plan.tape->fates.end(), [](Fate fate) { return !keeps_output(fate); });
    text += "  " + std::to_string(plan.tape->segments.size()) + " segments that run again; of " +
            std::to_string(plan.tape->fates.size()) + " nodes " + std::to_string(dropped) +
            " drop their result there; " + std::to_string(plan.tape->spills.size()) + " tensors are spilled\n";
  }
  for (std::size_t i = 0; i < plan.placement.size(); ++i) {
    const StepPlacement& step = plan.placement[i];
    text += "  step " + std::to_string(i) + (i + 1 == plan.placement.size() ? " and later" : "") + ": " +
            std::to_string(step.events.size()) + " events, " + std::to_string(step.buffers.size()) + " blocks in " +
            memory::exact_bytes(step.placement.height) + (step.placement.is_optimal ? ", proven least\n" : "\n");
  }
  return text;
}

}  // namespace thimble::nn
