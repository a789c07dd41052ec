#pragma once
// Facts about each storage of a recording that a plan may spill.

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
  std::uint32_t node = TapeGraph::none;          ///< that makes it, or TapeGraph::none
  std::int32_t which = TapePlan::Spill::result;  ///< tensor of that node
  std::uint32_t until = 0;                       ///< last node at which the program holds it
  std::size_t bytes = 0;
  DType dtype = DType::f32;
  bool is_held = false;   ///< for longer than the tape can tell, or from outside the recording
  bool is_saved = false;  ///< by a node, for its backward
};

/// One entry per storage of the graph.
std::vector<Spillable> spillables(const TapeGraph& graph);

/// The unit of time in chains.
remat::Time nanoseconds(double seconds);

// ---- Options of a stage whose tensors wait in a tier, or in fewer digits.
//
// Policy
// - A storage is spilled after the last node at which the program itself holds it (TapeGraph::Value::program_until), if
//   that node is in the stage. Small tensors, and tensors that the program or a leaf holds for longer, stay.
// - A stage's transfers end with its forward: the tier and the bytes are free when the next stage begins. If the
//   transfers take longer than the forward, the difference adds to the time.
// - Reads begin before the stage's backward, early enough for the first tensor to arrive, but at most a few nodes of
//   later stages ahead. Time beyond the overlapped backward adds to the time.
// - Packing and unpacking are passes over memory.

/// Rule for the results of operators with this name ("linear"), or a name that continues it after an underscore ("gelu"
/// for gelu_tanh and gelu_erf): the dtype to pack to, or nullopt to not pack them.
struct PackRule {
  std::string name;
  std::optional<DType> dtype;
  bool names(std::string_view op) const noexcept;
  friend bool operator==(const PackRule&, const PackRule&) = default;
};

/// Actions of plans on tensors, other than keeping and dropping.
struct SpillPolicy {
  bool offloads = false;
  bool packs = false;          ///< lossy
  DType packed = DType::bf16;  ///< to f16, bf16, f8e4m3, f8e5m2 or i8
  /// By operator name; the longest match wins, and `packed` is the default.
  std::vector<PackRule> rules = {};
  bool packs_rest = true;       ///< also packs results that no rule names
  std::size_t smallest = 4096;  ///< bytes of the smallest tensor worth spilling

  /// The dtype to pack an operator's results to; nullopt does not pack them.
  std::optional<DType> packed_as(const OpType& type) const;
  /// The dtype to pack a storage to, if it is a result that waits for backward, is not small and has more bits;
  /// otherwise nullopt.
  std::optional<DType> packed_as(const TapeGraph& graph, const Spillable& use) const;
};

/// Sorted names of a recording's operators with a result of at least `smallest` bytes that waits for backward and can
/// be packed to `dtype`.
std::vector<std::string> packable_operators(const TapeGraph& graph, DType dtype, std::size_t smallest = 4096);

/// Throws ValueError, listing the valid names, for a rule that names no operator with results packable to its dtype.
void check_rules(const TapeGraph& graph, const SpillPolicy& spilling);

/// An option of a stage, with its spills.
struct SpillVariant {
  remat::Option option;
  std::vector<TapePlan::Spill> spills;
};

/// Makes the variants of options that spill storages of a recording. The graph and the times must outlive it.
class SpillVariants {
 public:
  SpillVariants(const TapeGraph& graph, const std::vector<NodeTimes>& times, const Hardware& hardware,
                const SpillPolicy& spilling);

  /// Nodes of a stage, the storages that an option keeps inside, and the storage of the stage's input, if an earlier
  /// stage makes it.
  struct Stage {
    std::uint32_t first = 0, end = 0;
    std::vector<std::uint32_t> kept;
    std::uint32_t input = TapeGraph::none;
  };
  /// The option's variants: with all its inner kept tensors spilled, with its input spilled, and with both.
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
