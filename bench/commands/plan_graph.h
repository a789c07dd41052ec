#pragma once
// thimble plan --graph: a plan for the step of another program.

#include <cstddef>
#include <memory>
#include <string>

namespace CLI {
class App;
}

namespace thimble::bench {

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
