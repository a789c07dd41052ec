#pragma once
// Flags and output of `thimble plan` besides a model's plan: techniques that would fit, layers in FP8, generation,
// layouts over ranks, and steps of other programs.

#include <cstddef>
#include <memory>
#include <string>

#include <thimble/models/generation/generating.h>
#include <thimble/models/planning/layouts.h>
#include <thimble/models/planning/planning.h>
#include <thimble/nn/layers/fp8.h>

namespace CLI {
class App;
}

namespace thimble::bench {

/// A JSON list of the report's techniques.
std::string techniques_json_text(const models::PlanReport& report);

/// Prints a table on standard output; unless `has_all`, also counts the techniques that do not fit or were not tried.
void print_techniques(const models::PlanReport& report, bool has_all);

/// A run's use of FP8 (models/techniques/setup.h: fp8_layers) as lines: layers in FP8 with their products' operands,
/// fallbacks with reasons, and layers in higher precision.
std::string to_lines(const nn::Fp8Layers& layers);

/// As JSON: {"layers": [path], "fallbacks": [{"layer", "reason"}], "higher_precision": [path],
/// "products": text}.
std::string to_json_text(const nn::Fp8Layers& layers);

// ---- Flags and output that `thimble generate` and `thimble plan --generate` share.

/// Adds --context and --cache; `context_default` is the default in --context's help text.
void add_cache_flags(CLI::App& command, const std::shared_ptr<models::GenerationShape>& shape,
                     const std::string& context_default);

/// --generate and --prompt-tokens of `thimble plan`, and the flags of the cache.
struct GenerationFlags {
  bool is_asked = false;
  models::GenerationShape shape;
};
void add_generation_flags(CLI::App& command, const std::shared_ptr<GenerationFlags>& flags);

/// Prints the plan of a generation. Throws ValueError for training flags of `command`, and BudgetError, after printing,
/// if the plan exceeds the budget; `budget_bytes` 0 means no budget.
void plan_generation(const CLI::App& command, const GenerationFlags& flags, const models::Setup& setup,
                     memory::Device device, std::size_t budget_bytes, bool is_json);

// ---- thimble plan --ranks N --memory SIZE: the fastest layout over ranks that fits.

struct LayoutFlags {
  models::Cluster cluster;
  int dp = 0;  ///< 0 lets the planner choose
};

/// Adds --memory, --dp, --per-node, --inside and --between.
void add_layout_flags(CLI::App& command, const std::shared_ptr<LayoutFlags>& flags);

/// Finds and prints the layout. Given flags among --dp, --tp, --pp, --zero, --micro-batches and --recompute-blocks fix
/// their values. Throws ValueError for flags that layouts do not use; exceptions of models::find_layout pass through.
void plan_layout(const CLI::App& command, const LayoutFlags& flags, const models::RunOptions& options, bool is_json);

// ---- thimble plan --graph: a plan for the step of another program.

/// Flags of `thimble plan` that apply to a graph.
struct PlanGraphFlags {
  std::string graph;  ///< file; if empty, plan a model
  std::string html;
  std::size_t budget_bytes = 0;
  bool is_json = false, overwrites = false;
};

/// Adds --graph, which replaces MODEL.
void add_graph_flag(CLI::App& command, const std::shared_ptr<std::string>& graph);

/// Plans and prints the graph and returns true; returns false if no graph is given. Throws ValueError for flags of
/// `command` that do not apply, FileError and BudgetError.
bool plan_graph(const CLI::App& command, const PlanGraphFlags& flags);

}  // namespace thimble::bench
