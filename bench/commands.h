#pragma once
// The commands of the program `thimble`, one file each in bench/commands/. Each adds its flags to the parser; its
// callback runs it.

#include <memory>

namespace CLI {
class App;
}

namespace thimble::bench {

struct CostOptions;
struct Setup;

/// The exit status of `thimble train` when a loss is not finite; bench/main.cpp lists the others.
inline constexpr int not_finite_status = 4;

void add_train(CLI::App& program);
void add_plan(CLI::App& program);
void add_reproduce(CLI::App& program);
void add_pack(CLI::App& program);
void add_quantize(CLI::App& program);
void add_inspect(CLI::App& program);
void add_devices(CLI::App& program);
void add_models(CLI::App& program);

/// The flags that name a model and its sizes, for all that make one: MODEL --batch --seq --image --layers --heads
/// --width --share --seed.
void add_model_flags(CLI::App& command, const std::shared_ptr<Setup>& setup);

/// These and how a model is trained, for `train` and `plan` alike: --head --fuse-optimizer --micro-batches --optimizer
/// --state --full-state, and add_precision_flags.
void add_setup_flags(CLI::App& command, const std::shared_ptr<Setup>& setup);

/// --dtype --precision --fp8-strict --fp8-history --fp8-margin --fp8-hybrid --loss-scale --loss-scale-interval.
void add_precision_flags(CLI::App& command, const std::shared_ptr<Setup>& setup);

/// --offload, --offload-optimizer, --offload-gradients and --allow-lossy: what plans may do, for both.
void add_storing_flags(CLI::App& command, const std::shared_ptr<Setup>& setup);

/// --measure and --times, for both as well.
void add_cost_flags(CLI::App& command, const std::shared_ptr<CostOptions>& costs);

}  // namespace thimble::bench
