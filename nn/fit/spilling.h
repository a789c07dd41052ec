#pragma once
// The facts of a recording about each storage that a plan may spill.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/autograd/graph.h>
#include <thimble/autograd/plan.h>
#include <thimble/memory/remat/chain.h>
#include <thimble/nn/fit/cost.h>

namespace thimble::nn {

struct Spillable {
  std::uint32_t node = TapeGraph::none;          ///< that makes it; none: no node does
  std::int32_t which = TapePlan::Spill::result;  ///< of that node's tensors
  std::uint32_t until = 0;                       ///< the program holds it, as a node
  std::size_t bytes = 0;
  DType dtype = DType::f32;
  bool is_held = false;   ///< for longer than the tape can tell, or by a leaf
  bool is_saved = false;  ///< a backward reads it
};

/// One per storage of the graph.
std::vector<Spillable> spillables(const TapeGraph& graph);

/// As the chains of recordings count time.
remat::Time nanoseconds(double seconds);

// ---- Options of a stage whose tensors wait elsewhere: in a tier, or in fewer digits.
//
// Policy
// - A storage is spilled after the last node at which the program itself holds it (TapeGraph::Value::program_until), if
//   that node is in the stage. Small tensors, and tensors that the program or a leaf holds for longer, stay.
// - A stage's transfers end with its forward: the tier and the bytes are free when the next stage begins. If the
//   transfers take longer than the forward, the difference is charged as time.
// - Reading begins before the stage's backward, early enough for the first tensor to be there, but no earlier than a
//   few nodes of the stage after it; the time beyond the backward that it overlaps is charged.
// - Packing and unpacking are passes over memory.

/// A rule for the results of operators of one name ("linear"), or of names that begin so up to an underscore ("gelu"
/// for gelu_tanh and gelu_erf): the dtype that they are packed to; nullopt: they are not packed.
struct PackRule {
  std::string name;
  std::optional<DType> dtype;
  bool names(std::string_view op) const noexcept;
  friend bool operator==(const PackRule&, const PackRule&) = default;
};

/// Actions of plans on tensors besides keeping and dropping them.
struct SpillPolicy {
  bool offloads = false;
  bool packs = false;          ///< lossy
  DType packed = DType::bf16;  ///< to what: f16, bf16, f8e4m3, f8e5m2 or i8
  /// Rules by operator name; the longest match wins, others use `packed`.
  std::vector<PackRule> rules = {};
  bool packs_rest = true;       ///< false: results that no rule names are not packed
  std::size_t smallest = 4096;  ///< bytes of a tensor that is worth spilling

  /// The fate of an operator's results.
  std::optional<DType> packed_as(const OpType& type) const;
  /// The dtype that a storage is packed to: a result that waits for backward, is not small and has more bits. nullopt:
  /// it is not packed.
  std::optional<DType> packed_as(const TapeGraph& graph, const Spillable& use) const;
};

/// The names of a recording's operators of which some result of `smallest` bytes waits for backward and can be packed
/// to `dtype`, sorted.
std::vector<std::string> packable_operators(const TapeGraph& graph, DType dtype, std::size_t smallest = 4096);

/// Throws ValueError for a rule that names no operator whose results can be packed so; the message lists the valid
/// ones.
void check_rules(const TapeGraph& graph, const SpillPolicy& spilling);

/// A way of recording a stage, and its spills.
struct SpillVariant {
  remat::Option option;
  std::vector<TapePlan::Spill> spills;
};

/// The facts about the storages of a recording, for options that spill them. The graph and the times must outlive it.
class SpillVariants {
 public:
  SpillVariants(const TapeGraph& graph, const std::vector<NodeTimes>& times, const Hardware& hardware,
                const SpillPolicy& spilling);

  /// A stage's nodes, the storages that an option of it keeps inside, and that of its input (none: there is no other
  /// stage before it).
  struct Stage {
    std::uint32_t first = 0, end = 0;
    std::vector<std::uint32_t> kept;
    std::uint32_t input = TapeGraph::none;
  };
  /// The option's variants: with all of its inner kept tensors spilled, with its input, and with both.
  std::vector<SpillVariant> of(const remat::Option& option, const Stage& stage) const;

 private:
  bool is_spillable(std::uint32_t storage, const Stage& stage, TapePlan::Spill::Form form) const;
  std::uint32_t last_reader(std::uint32_t storage, const Stage& stage) const;
  SpillVariant offloaded(const remat::Option& option, const Stage& stage, std::vector<std::uint32_t> storages,
                         bool has_input) const;
  SpillVariant packed(const remat::Option& option, const Stage& stage, const std::vector<std::uint32_t>& storages,
                      bool has_input) const;

  const TapeGraph& graph_;
  const std::vector<NodeTimes>& times_;
  double tier_bytes_per_s_, bytes_per_s_;
  SpillPolicy spilling_;
  std::vector<Spillable> uses_;  // per storage
};

}  // namespace thimble::nn
