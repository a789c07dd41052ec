#include <thimble/nn/fit/plan_file.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/files/crc32c.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/core/tensor/context.h>
#include <thimble/memory/units.h>
#include <thimble/nn/fit/json_reader.h>

namespace thimble::nn {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view plan_format = "thimble plan 2";
constexpr std::string_view begin = "{\"format\":\"thimble plan 2\",\"crc32c\":\"";
constexpr std::string_view zeros = "00000000";

/// Limit of blocks, offsets and heights: more than any device has, and far from overflow in sums.
constexpr std::size_t max_bytes = std::size_t{1} << 44;
constexpr std::uint32_t max_alignment = 1u << 21;

/// Whether a text has digits for the checksum.
bool has_sum_place(std::string_view json) {
  const std::size_t end = begin.size() + zeros.size();
  return json.starts_with(begin) && json.size() > end && json[end] == '"';
}

std::string sum_of(std::string_view json) {
  const std::uint32_t sum =
      crc32c(json.substr(begin.size() + zeros.size()), crc32c(zeros, crc32c(json.substr(0, begin.size()))));
  std::string text;
  for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[sum >> shift & 15];
  return text;
}

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

/// Allocations as [bytes, alignment, block, category, path], frees as [block]; paths and categories are indices into
/// lists.
Json json_of(const memory::StepPlacement& step) {
  std::map<PathId, std::size_t> paths;
  Json json;
  json["paths"] = json["events"] = Json::array();
  for (const memory::StepPlacement::Event& event : step.events) {
    if (event.bytes == 0) {
      json["events"].push_back(Json::array({event.block}));
      continue;
    }
    const auto [path, is_new] = paths.try_emplace(event.path, paths.size());
    if (is_new) json["paths"].push_back(std::string(path_name(event.path)));
    const std::int64_t block =
        event.block == memory::StepPlacement::not_placed ? -1 : static_cast<std::int64_t>(event.block);
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

struct PlanReader : JsonReader {
  std::size_t bytes(const Json& json, const std::string& what, std::size_t min = 0) const {
    return number<std::size_t>(json, what, min, max_bytes);
  }
  DType dtype(const Json& json, const std::string& what) const {
    const std::string name = text(json, what);
    try {
      return parse_dtype(name);
    } catch (const ValueError&) {
      refuse(what, json, "a dtype");
    }
  }
  Shape shape(const Json& json, const std::string& what) const {
    std::vector<std::int64_t> sizes;
    for (const Json& size : list(json, what)) sizes.push_back(number<std::int64_t>(size, what));
    try {
      return Shape(std::span<const std::int64_t>(sizes));
    } catch (const ShapeError&) {
      refuse(what, json, "a shape");
    }
  }

  PlanKey key(const Json& json) const {
    object(json, "key", {"library", "machine", "step", "leaves", "nodes"});
    PlanKey key;
    key.library = text(json["library"], "library");
    key.machine = text(json["machine"], "machine");
    key.step = text(json["step"], "step");
    for (const Json& leaf : list(json["leaves"], "leaves")) {
      const std::string what = "leaf " + std::to_string(key.leaves.size());
      list(leaf, what, 2);
      key.leaves.push_back({shape(leaf[1], what), dtype(leaf[0], what)});
    }
    for (const Json& node : list(json["nodes"], "nodes")) {
      const std::string what = "node " + std::to_string(key.nodes.size());
      list(node, what, 4);
      const std::string digits = text(node[3], what);
      std::uint64_t digest = 0;
      const char* const end = digits.data() + digits.size();
      const auto [stop, error] = std::from_chars(digits.data(), end, digest);
      if (error != std::errc{} || stop != end) refuse("the digest of " + what, node[3], "a number of 64 bits");
      key.nodes.push_back({text(node[0], what), {digest, shape(node[2], what), dtype(node[1], what)}});
    }
    return key;
  }

  /// TapePlan::validate checks segments and spills once the operators are known.
  std::shared_ptr<const TapePlan> tape(const Json& json, std::size_t nodes) const {
    if (json.is_null()) return nullptr;
    object(json, "tape", {"fates", "segments", "stores"});
    auto tape = std::make_shared<TapePlan>();
    for (const char fate : text(json["fates"], "fates")) {
      if (fate < '0' || fate > '3') refuse("fate " + std::to_string(tape->fates.size()) + " is none of 0 to 3");
      tape->fates.push_back(static_cast<Fate>(fate - '0'));
    }
    // A schedule has a leaf for each stage and joins them in pairs.
    if (list(json["segments"], "segments").size() > 2 * nodes) refuse("it has more segments than nodes twice");
    for (const Json& s : json["segments"]) {
      const std::string what = "segment " + std::to_string(tape->segments.size());
      list(s, what, 3);
      tape->segments.push_back({number<std::uint32_t>(s[0], what), number<std::uint32_t>(s[1], what),
                                number<std::int32_t>(s[2], what, TapePlan::none)});
    }
    for (const Json& s : list(json["stores"], "stores")) {
      const std::string what = "store " + std::to_string(tape->spills.size());
      list(s, what, 6);
      TapePlan::Spill spill;
      spill.node = number<std::uint32_t>(s[0], what);
      spill.which = number<std::int32_t>(s[1], what, TapePlan::Spill::result);
      if (text(s[2], what) != "offload") spill.form = TapePlan::Spill::Form::pack, spill.dtype = dtype(s[2], what);
      spill.away_after = number<std::uint32_t>(s[3], what);
      spill.gone_after = number<std::uint32_t>(s[4], what);
      spill.back_before = number<std::uint32_t>(s[5], what);
      tape->spills.push_back(spill);
    }
    return tape;
  }

  void free(const Json& event, const std::string& what, memory::StepPlacement& step) const {
    const auto block = number<std::uint32_t>(event[0], what);
    if (block >= step.buffers.size()) refuse(what + " frees block " + std::to_string(block) + " before it is there");
    std::uint64_t& upper = step.buffers[block].upper;
    if (upper != 0) refuse(what + " frees block " + std::to_string(block) + " again");
    upper = step.events.size();
    memory::StepPlacement::Event free;
    free.block = block;
    step.events.push_back(free);
  }

  void allocation(const Json& event, const std::string& what, const std::vector<PathId>& paths,
                  memory::StepPlacement& step) const {
    list(event, what, 5);
    memory::StepPlacement::Event made{bytes(event[0], what, 1),
                                      number<std::uint32_t>(event[1], what, 1, max_alignment)};
    if (!std::has_single_bit(made.alignment)) refuse(what, event, "an alignment that is a power of two");
    made.category = static_cast<memory::Category>(number<std::size_t>(event[3], what, 0, memory::category_count - 1));
    if (paths.empty()) refuse(what + " names a path, and there are none");
    made.path = paths[number<std::size_t>(event[4], what, 0, paths.size() - 1)];
    if (const auto block = number<std::int64_t>(event[2], what, -1); block >= 0) {
      if (std::cmp_not_equal(block, step.buffers.size())) {
        refuse(what + " makes block " + std::to_string(block) + "; the next one is " +
               std::to_string(step.buffers.size()));
      }
      made.block = static_cast<std::uint32_t>(block);
      step.buffers.push_back({made.block, step.events.size(), 0, made.bytes, made.alignment});
    }
    step.events.push_back(made);
  }

  memory::StepPlacement step(const Json& json, const std::string& name) const {
    object(json, name, {"paths", "events", "offsets", "height", "load", "is_optimal"});
    memory::StepPlacement step;
    std::vector<PathId> paths;
    for (const Json& path : list(json["paths"], name + ", paths")) {
      const std::string text_of = text(path, name + ", path " + std::to_string(paths.size()));
      paths.push_back(text_of.empty() ? 0 : join_path(0, text_of));
    }
    for (const Json& event : list(json["events"], name + ", events")) {
      const std::string what = name + ", event " + std::to_string(step.events.size());
      list(event, what).size() == 1 ? free(event, what, step) : allocation(event, what, paths, step);
    }
    for (std::size_t block = 0; block < step.buffers.size(); ++block) {
      if (step.buffers[block].upper == 0) refuse(name + " never frees block " + std::to_string(block));
    }
    memory::Placement& placed = step.placement;
    std::size_t end = 0;
    for (const Json& offset : list(json["offsets"], name + ", offsets", step.buffers.size())) {
      const memory::Buffer& buffer = step.buffers[placed.offsets.size()];
      placed.offsets.push_back(bytes(offset, name + ", offset " + std::to_string(placed.offsets.size())));
      end = std::max(end, placed.offsets.back() + buffer.bytes);
    }
    placed.height = bytes(json["height"], name + ", height");
    placed.load = bytes(json["load"], name + ", load");
    // Sizes are rounded up to a device's unit, at most a page.
    if (placed.height > end + 4096 || placed.load > placed.height) {
      refuse(name + ": a height of " + std::to_string(placed.height) + " and a load of " + std::to_string(placed.load) +
             " for blocks that end at " + std::to_string(end));
    }
    memory::check_placement(step.buffers, placed.offsets, placed.height);
    if (!json["is_optimal"].is_boolean()) refuse(name + ", is_optimal", json["is_optimal"], "true or false");
    placed.is_optimal = json["is_optimal"].get<bool>();
    return step;
  }

  void figures(const Json& json, Plan& plan) const {
    object(json, "figures",
           {"description", "peak_bytes", "lower_bound_bytes", "step_s", "time_overhead", "peak_by_category",
            "offloaded_bytes", "packed_bytes", "packed"});
    plan.description = text(json["description"], "description");
    plan.peak_bytes = bytes(json["peak_bytes"], "peak_bytes");
    plan.lower_bound_bytes = bytes(json["lower_bound_bytes"], "lower_bound_bytes");
    plan.step_s = real(json["step_s"], "step_s", 0);
    plan.time_overhead = real(json["time_overhead"], "time_overhead", -1);
    list(json["peak_by_category"], "peak_by_category", memory::category_count);
    for (std::size_t c = 0; c < memory::category_count; ++c) {
      plan.peak_by_category[c] = bytes(json["peak_by_category"][c], "peak_by_category");
    }
    plan.offloaded_bytes = bytes(json["offloaded_bytes"], "offloaded_bytes");
    plan.packed_bytes = bytes(json["packed_bytes"], "packed_bytes");
    for (const Json& p : list(json["packed"], "packed")) {
      list(p, "packed", 5);
      plan.packed.push_back({text(p[0], "packed"), dtype(p[1], "packed"), number<std::size_t>(p[2], "packed"),
                             bytes(p[3], "packed"), bytes(p[4], "packed")});
    }
  }

  Plan plan(const Json& json) const {
    object(json, "it", {"format", "crc32c", "figures", "key", "tape", "placement"});
    Plan plan;
    auto key_of = std::make_shared<PlanKey>(key(json["key"]));
    plan.tape = tape(json["tape"], key_of->nodes.size());
    plan.key = std::move(key_of);
    // The first and a steady step: a dry run of two steps checks no more.
    if (list(json["placement"], "placement").size() > 2) refuse("it places more than two steps");
    for (const Json& s : json["placement"]) {
      plan.placement.push_back(step(s, "step " + std::to_string(plan.placement.size())));
    }
    figures(json["figures"], plan);
    return plan;
  }
};

}  // namespace

std::string plan_to_json(const Plan& plan) {
  if (!plan.key) throw ValueError("plan: it has no key, so it cannot be written; plans of a Planner have one");
  Json json{{"format", plan_format}, {"crc32c", zeros}, {"figures", figures_of(plan)}, {"key", json_of(*plan.key)}};
  json["tape"] = plan.tape ? json_of(*plan.tape) : Json();
  json["placement"] = Json::array();
  for (const memory::StepPlacement& step : plan.placement) json["placement"].push_back(json_of(step));
  std::string text = json.dump() + "\n";
  put_plan_sum(text);
  return text;
}

void put_plan_sum(std::string& json) {
  if (has_sum_place(json)) json.replace(begin.size(), zeros.size(), sum_of(json));
}

Plan parse_plan(std::string_view json, const std::string& source) {
  const PlanReader reader{{source, "a plan"}};
  if (json.starts_with("{\"format\":\"thimble plan 1\"")) {
    reader.refuse("it was written by an earlier version, without a checksum; make it anew with `plan --save`");
  }
  if (!has_sum_place(json))
    reader.refuse("it does not begin with the format '" + std::string(plan_format) + "' and a checksum");
  if (json.substr(begin.size(), zeros.size()) != sum_of(json)) {
    reader.refuse("its bytes are not those that were written: the checksum is another", begin.size());
  }
  return reader.plan(reader.parse(json));
}

namespace {

constexpr std::uint64_t most_plan_bytes = std::uint64_t{1} << 30;

/// The tape's plan, completed with this program's operators.
std::shared_ptr<const TapePlan> with_operators(const std::shared_ptr<const TapePlan>& tape, const TapeGraph& graph) {
  if (!tape) return nullptr;
  auto whole = std::make_shared<TapePlan>(*tape);
  for (const TapeGraph::Node& node : graph.nodes) whole->types.push_back(node.type);
  whole->sizes = graph.sizes();
  whole->ends = graph.ends;
  whole->validate();
  return whole;
}

}  // namespace

void write_plan(const std::string& path, const Plan& plan) { write_file_atomically(path, plan_to_json(plan)); }

Plan read_plan(const std::string& path, const MakeRun& make, memory::Device device, const MakeTier& make_tier,
               std::size_t steps) {
  const std::vector<std::byte> bytes = read_whole_file(path, most_plan_bytes);
  return plan_from_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path, make, device, make_tier,
                        steps);
}

PlanSource plan_file(std::string path) {
  return [path = std::move(path)](const MakeRun& make, memory::Device device, const MakeTier& make_tier) {
    return read_plan(path, make, device, make_tier);
  };
}

Plan plan_from_json(std::string_view json, const std::string& source, const MakeRun& make, memory::Device device,
                    const MakeTier& make_tier, std::size_t steps) {
  const memory::Device on = dry(device);
  Plan plan = parse_plan(json, source);
  PlanKey now;
  const TapeGraph graph =
      record_step(on, make, [&](TrainingRun& run, const TapeGraph& recording) { now = plan_key(on, recording, run); });
  if (const std::string why = difference(*plan.key, now); !why.empty()) {
    throw PlanError("plan " + source + " is of another key: " + why);
  }
  plan.tape = with_operators(plan.tape, graph);
  if (plan.tape && plan.tape->offloads()) {
    if (!make_tier) throw PlanError("plan " + source + " offloads tensors, and there is no tier");
    plan.make_tier = make_tier;
  }
  const Plan written = plan;
  count_spills(plan, graph);
  if (plan.offloaded_bytes != written.offloaded_bytes || plan.packed != written.packed ||
      plan.packed_bytes != written.packed_bytes) {
    throw PlanError(
        "plan " + source + " contradicts itself: its tensors that are offloaded or packed have other bytes (" +
        std::to_string(plan.offloaded_bytes) + " and " + std::to_string(plan.packed_bytes) + ") than its figures (" +
        std::to_string(written.offloaded_bytes) + " and " + std::to_string(written.packed_bytes) + ")");
  }
  const MakeRun follow = [&](memory::Device target) {
    std::unique_ptr<TrainingRun> run = make(target);
    plan.apply(run->options(), target);
    return run;
  };
  const MemoryProfile profile = profile_training(on, follow, steps, false, plan.placement);
  if (profile.placed.first_deviation) {
    throw PlanError("plan " + source + " is not kept by a dry run: " + to_string(*profile.placed.first_deviation));
  }
  plan.peak_bytes = profile.peak_bytes;
  plan.peak_by_category = profile.peak_by_category;
  plan.tier_bytes = profile.tier_bytes;
  // With a placement the region counts as one block.
  plan.lower_bound_bytes =
      plan.placement.empty() ? profile.lower_bound_bytes : profile_training(on, follow).lower_bound_bytes;
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
    const memory::StepPlacement& step = plan.placement[i];
    text += "  step " + std::to_string(i) + (i + 1 == plan.placement.size() ? " and later" : "") + ": " +
            std::to_string(step.events.size()) + " events, " + std::to_string(step.buffers.size()) + " blocks in " +
            memory::exact_bytes(step.placement.height) + (step.placement.is_optimal ? ", proven least\n" : "\n");
  }
  return text;
}

}  // namespace thimble::nn
