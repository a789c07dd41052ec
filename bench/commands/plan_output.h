#pragma once
// What `thimble plan` takes and prints beside a model's plan: techniques that would fit, layers in FP8, generation,
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

/// Prints a table on standard output; unless it `has_all`, with the number of known techniques that do not fit.
void print_techniques(const models::PlanReport& report, bool has_all);

/// What a run does in FP8 (models/techniques/setup.h: fp8_layers), as lines: the layers in FP8 and their products'
/// operands, the fallbacks and why, and what stays in higher precision.
std::string to_lines(const nn::Fp8Layers& layers);

/// As JSON: {"layers": [path], "fallbacks": [{"layer", "reason"}], "higher_precision": [path],
/// "products": text}.
std::string to_json_text(const nn::Fp8Layers& layers);

// ---- What `thimble generate` and `thimble plan --generate` take and print alike.

/// --context, by default `context_default`, and --cache.
void add_cache_flags(CLI::App& command, const std::shared_ptr<models::GenerationShape>& shape,
                     const std::string& context_default);

/// --generate and --prompt-tokens of `thimble plan`, and these.
struct GenerationFlags {
  bool is_asked = false;
  models::GenerationShape shape;
};
void add_generation_flags(CLI::App& command, const std::shared_ptr<GenerationFlags>& flags);

/// The plan of a generation, printed. Throws ValueError for flags of `command` that are about training, BudgetError,
/// after printing, where the plan does not keep the budget (0: there is none).
void plan_generation(const CLI::App& command, const GenerationFlags& flags, const models::Setup& setup,
                     memory::Device device, std::size_t budget_bytes, bool is_json);

// ---- thimble plan --ranks N --memory SIZE: the fastest layout over ranks that fits.

struct LayoutFlags {
  models::Cluster cluster;
  int dp = 0;  ///< 0: to be chosen
};

/// Adds --memory, --dp, --per-node, --inside and --between.
void add_layout_flags(CLI::App& command, const std::shared_ptr<LayoutFlags>& flags);

/// Finds and prints it. What the command was given of --dp, --tp, --pp, --zero, --micro-batches and --recompute-blocks
/// is not chosen. Throws ValueError for flags that a layout has no use for, and what models::find_layout throws.
void plan_layout(const CLI::App& command, const LayoutFlags& flags, const models::PlanOptions& options, bool is_json);

// ---- thimble plan --graph: a plan for the step of another program.

/// Flags of `thimble plan` that a graph takes.
struct PlanGraphFlags {
  std::string graph;  ///< the file; empty: a model is planned
  std::string html;
  std::size_t budget_bytes = 0;
  bool is_json = false, overwrites = false;
};

/// Adds --graph, with which `command` needs no MODEL.
void add_graph_flag(CLI::App& command, const std::shared_ptr<std::string>& graph);

/// Plans and prints where a graph is given, else false, where a model is. Throws ValueError for other flags of
/// `command`, FileError, BudgetError.
bool plan_graph(const CLI::App& command, const PlanGraphFlags& flags);

}  // namespace thimble::bench
