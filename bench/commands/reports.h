#pragma once
// The JSON of the commands, printed from the reports of what they did; that of `train` is in train_output.h.

#include <cstddef>
#include <span>
#include <string>

#include <thimble/core/tensor/device.h>

namespace thimble::nn {
struct Certificate;
}

namespace thimble::models {
struct Cluster;
struct GenerateReport;
struct GenerationPlan;
struct LayoutReport;
struct PlanOptions;
struct PlanReport;
struct PreparedGeneration;
struct PreparedTraining;
struct QuantizeOptions;
struct QuantizeReport;
struct RankPlan;
}  // namespace thimble::models

namespace thimble::bench {

/// All print to standard output. `ranks`: of several ranks, each distinct one, the report's among them.
void print_plan_json(const models::PlanOptions& options, const models::PlanReport& report,
                     std::span<const models::RankPlan> ranks);
/// `costs`: the cost model's name.
void print_layouts_json(const models::PlanOptions& options, const models::Cluster& cluster, const std::string& costs,
                        const models::LayoutReport& report);
/// `budget` in bytes; 0: none.
void print_generation_json(const models::GenerationPlan& plan, Device device, std::size_t budget);
void print_generate_json(const models::PreparedGeneration& prepared, const models::GenerateReport& r);
void print_certify_json(const models::PreparedTraining& prepared, const nn::Certificate& certificate);
void print_quantize_json(const models::QuantizeOptions& options, const models::QuantizeReport& r);

}  // namespace thimble::bench
