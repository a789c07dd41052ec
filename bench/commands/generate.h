#pragma once
// What `thimble generate` and `thimble plan --generate` take and print alike.

#include <memory>

#include <thimble/models/generation/generating.h>

namespace CLI {
class App;
}

namespace thimble::bench {

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

}  // namespace thimble::bench
