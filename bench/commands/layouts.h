#pragma once
// thimble plan --ranks N --memory SIZE: the fastest layout over ranks that fits.

#include <memory>

#include <thimble/models/planning/layouts.h>

namespace CLI {
class App;
}  // namespace CLI

namespace thimble::bench {

struct LayoutFlags {
  models::Cluster cluster;
  int dp = 0;  ///< 0: to be chosen
};

/// Adds --memory, --dp, --per-node, --inside and --between.
void add_layout_flags(CLI::App& command, const std::shared_ptr<LayoutFlags>& flags);

/// Finds and prints it. What the command was given of --dp, --tp, --pp, --zero, --micro-batches and --recompute-blocks
/// is not chosen. Throws ValueError for flags that a layout has no use for, and what models::find_layout throws.
void plan_layout(const CLI::App& command, const LayoutFlags& flags, const models::PlanOptions& options, bool is_json);

}  // namespace thimble::bench
