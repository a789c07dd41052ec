#pragma once
// Prints the reports of commands as JSON or as a table.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <thimble/memory/summary.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/fit/fit.h>
#include <thimble/nn/precision/gradient_report.h>

namespace thimble::nn {
struct Certificate;
}

namespace thimble::models {
struct Cluster;
struct GenerateReport;
struct GenerationPlan;
struct LayoutReport;
struct RunOptions;
struct PlanReport;
struct PreparedGeneration;
struct QuantizeOptions;
struct QuantizeReport;
struct RankPlan;
}  // namespace thimble::models

namespace thimble::bench {

/// Output besides the run's report.
struct TrainExtra {
  std::vector<nn::PackedResults> packed;
  std::optional<nn::GradientReport> gradients;  ///< with --gradient-report
  /// Parts of the measured peak, with its live bytes by category; absent with --log, which resets the peak every step.
  std::optional<memory::CommittedParts> committed;
  memory::CategoryBytes by_category{};
};

void print_train_json(const models::RunOptions& options, const TrainExtra& extra, const models::TrainReport& report);
void print_train_table(const models::RunOptions& options, const TrainExtra& extra, const models::TrainReport& report);

/// All print to standard output. `ranks` holds the plan of each distinct rank, the report's included.
void print_plan_json(const models::RunOptions& options, const models::PlanReport& report,
                     std::span<const models::RankPlan> ranks);
void print_plan_table(const models::RunOptions& options, const models::PlanReport& report);
/// Live bytes at the peak of every distinct rank.
void print_plan_ranks(std::span<const models::RankPlan> plans);
/// `costs` is the cost model's name.
void print_layouts_json(const models::RunOptions& options, const models::Cluster& cluster, const std::string& costs,
                        const models::LayoutReport& report);
void print_layouts_table(const models::RunOptions& options, const models::Cluster& cluster, const std::string& costs,
                         const models::LayoutReport& report);
/// `budget` is in bytes; 0 means no budget.
void print_generation_json(const models::GenerationPlan& plan, memory::Device device, std::size_t budget);
void print_generation_table(const models::GenerationPlan& plan, std::size_t budget);
void print_generate_json(const models::PreparedGeneration& prepared, const models::GenerateReport& r);
/// `time_overhead` is the plan's.
void print_certify_json(const models::RunOptions& options, double time_overhead, const nn::Certificate& certificate);
void print_quantize_json(const models::QuantizeOptions& options, const models::QuantizeReport& r);
void print_quantize_table(const models::QuantizeOptions& options, const models::QuantizeReport& r);

}  // namespace thimble::bench
