#include <thimble/bench/commands/plan_output.h>

#include <cstdio>
#include <iostream>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/commands/flags.h>
#include <thimble/bench/commands/ranks.h>
#include <thimble/bench/commands/train_output.h>
#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/memory/units.h>
#include <thimble/models/training/costs.h>

namespace thimble::bench {
namespace {

constexpr std::string_view of_layouts =
    "MODEL --batch --seq --image --layers --heads --kv-heads --width --mlp --window --shared-kernels --dropout "
    "--data --tokenizer --weights --seed --dtype --precision --optimizer --state --full-state --optimizer-rank "
    "--clip --loss-scale --loss-scale-interval --fp8-strict --fp8-history --fp8-margin --fp8-hybrid --head "
    "--feed-forward --lora --lora-alpha --lora-targets --lora-dropout --adapters --base --recompute-blocks "
    "--micro-batches --ranks --tp --sequence-parallel --cp --pp --pipeline --zero --bucket --read-ahead "
    "--fuse-optimizer --memory --dp --per-node --inside --between --hardware --device --tf32 --isa --cpu-dot "
    "--threads --json";

std::string link_names() {
  std::string names;
  for (const dist::Link& l : dist::link_list()) names += (names.empty() ? "" : ", ") + l.name;
  return names;
}

nlohmann::ordered_json json_of(const models::JudgedLayout& judged) {
  const models::Layout& l = judged.layout;
  return {{"dp", l.dp},
          {"tp", l.tp},
          {"sequence_parallel", l.cuts_sequence},
          {"pp", l.pp},
          {"zero", l.zero},
          {"micro_batches", l.micro_batches},
          {"recompute_blocks", l.recomputes_blocks},
          {"bucket_bytes", l.bucket_bytes},
          {"read_ahead", l.read_ahead},
          {"step_seconds", judged.time.step_s()},
          {"pipeline_seconds", judged.time.pipeline_s},
          {"idle_seconds", judged.time.idle_s},
          {"parts_seconds", judged.time.parts_s},
          {"shares_seconds", judged.time.shares_s},
          {"update_seconds", judged.time.update_s},
          {"peak_bytes", judged.peak_bytes},
          {"fits", judged.fits}};
}

}  // namespace

void print_layouts_json(const models::RunOptions& options, const models::Cluster& cluster, const std::string& costs,
                        const models::LayoutReport& report) {
  nlohmann::ordered_json json{{"model", options.setup.model},
                              {"batch", options.setup.batch},
                              {"ranks", cluster.ranks},
                              {"per_node", cluster.per_node},
                              {"inside", cluster.inside.name},
                              {"between", cluster.between.name},
                              {"memory_bytes", cluster.memory_bytes},
                              {"cost_model", costs},
                              {"examined", report.examined},
                              {"run_dry", report.run},
                              {"search_seconds", report.search_s},
                              {"proof_seconds", report.proof_s},
                              {"best", json_of(report.best)}};
  for (const models::RankPlan& plan : report.ranks) {
    json["ranks_bytes"].push_back({{"ranks", plan.ranks}, {"peak_bytes", plan.report.plan.peak_bytes}});
  }
  for (const models::JudgedLayout& other : report.neighbours) json["neighbours"].push_back(json_of(other));
  std::cout << json.dump(2) << "\n";
}

namespace {

/// "12.3 ms".
std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), seconds < 1 ? "%.1f ms" : "%.2f s", seconds < 1 ? 1e3 * seconds : seconds);
  return text;
}

void print_time(const char* what, double seconds, double of) {
  std::printf("  %-34s %12s  %5.1f %%\n", what, seconds_text(seconds).c_str(), 100 * seconds / of);
}

/// Reason against another layout: more time, or more memory than a rank has.
std::string why_not(const models::JudgedLayout& other, const models::JudgedLayout& best, std::size_t memory_bytes) {
  char text[64];
  const double ratio = other.time.step_s() / best.time.step_s();
  std::snprintf(text, sizeof(text), "%+.1f %% time", 100 * (ratio - 1));
  if (other.peak_bytes <= memory_bytes) return text;
  return std::string("needs ") + format_bytes(other.peak_bytes) + ", " + text;
}

}  // namespace

void print_layouts_table(const models::RunOptions& options, const models::Cluster& cluster, const std::string& costs,
                         const models::LayoutReport& found) {
  const models::LayoutTime& time = found.best.time;
  std::printf("%s, batch %lld, on %d rank%s of %s, %d a node (%s inside, %s between)\n", options.setup.model.c_str(),
              static_cast<long long>(options.setup.batch), cluster.ranks, cluster.ranks == 1 ? "" : "s",
              format_bytes(cluster.memory_bytes).c_str(), cluster.per_node, cluster.inside.name.c_str(),
              cluster.between.name.c_str());
  std::printf("  the fastest layout that fits       %s\n", to_string(found.best.layout).c_str());
  std::printf("  the rank that needs most           %s of %s\n", memory::exact_bytes(found.best.peak_bytes).c_str(),
              format_bytes(cluster.memory_bytes).c_str());
  std::printf("time of a step, by the cost model '%s'\n", costs.c_str());
  print_time("operators, of a stage on average", time.pipeline_s - time.idle_s - time.parts_s, time.step_s());
  print_time("exchange within groups", time.parts_s, time.step_s());
  print_time("idle stages", time.idle_s, time.step_s());
  print_time("traffic that is not hidden", time.shares_s, time.step_s());
  print_time("update", time.update_s, time.step_s());
  print_time("= step", time.step_s(), time.step_s());
  std::printf("ranks, each run dry\n");
  for (const models::RankPlan& plan : found.ranks) {
    std::printf("  %-34s %18s\n", ranks_in_words(plan.ranks).c_str(),
                format_grouped(plan.report.plan.peak_bytes).c_str());
  }
  std::printf("neighbours\n");
  for (const models::JudgedLayout& other : found.neighbours) {
    std::printf("  %-78s %s\n", to_string(other.layout).c_str(),
                why_not(other, found.best, cluster.memory_bytes).c_str());
  }
  std::printf("%zu layouts counted and %zu run dry in %.1f s, every distinct rank of the best one in %.1f s\n",
              found.examined, found.run, found.search_s, found.proof_s);
}

void add_layout_flags(CLI::App& command, const std::shared_ptr<LayoutFlags>& flags) {
  add_size(command, "--memory", flags->cluster.memory_bytes,
           "Bytes of each rank: find the fastest layout of --ranks that fits; given flags of the layout stay");
  const auto number = [&](const char* flag, int& target, const char* help) {
    add_text(command, flag, "N", help, [&target, flag](const std::string& text) {
      target = static_cast<int>(parse_integer(flag, text, 1, 65536));
    });
  };
  number("--dp", flags->dp, "With --memory: data-parallel degree (chosen)");
  number("--per-node", flags->cluster.per_node, "With --memory: ranks per node (8)");
  const auto link = [&](const char* flag, dist::Link& target, const std::string& help) {
    add_text(command, flag, "LINK", help, [&target, flag](const std::string& text) {
      try {
        target = dist::link(text);
      } catch (const ValueError&) {
        refuse_value(flag, "one of " + link_names(), text);
      }
    });
  };
  link("--inside", flags->cluster.inside, "Link in a node: " + link_names() + " (nvlink-4)");
  link("--between", flags->cluster.between, "Link between nodes, one of --inside (infiniband-400)");
}

void plan_layout(const CLI::App& command, const LayoutFlags& flags, const models::RunOptions& options, bool is_json) {
  require_flags(command, split(of_layouts, ' '), "the plan of a run", "--memory");
  const auto is_given = [&](const char* flag) { return command.get_option(flag)->count() > 0; };
  models::FixedLayout fixed;
  if (flags.dp > 0) fixed.dp = flags.dp;
  if (is_given("--tp")) fixed.tp = options.setup.layout.tp;
  if (is_given("--pp")) fixed.pp = options.setup.layout.pp;
  if (is_given("--zero")) fixed.zero = options.setup.layout.zero;
  if (is_given("--micro-batches") && options.setup.micro_batches != models::auto_micro_batches) {
    fixed.micro_batches = options.setup.micro_batches;
  }
  if (is_given("--sequence-parallel")) fixed.cuts_sequence = true;
  if (is_given("--recompute-blocks")) fixed.recomputes_blocks = options.setup.recomputes_blocks;
  if (is_given("--bucket")) fixed.bucket_bytes = options.setup.layout.bucket_bytes;
  if (is_given("--read-ahead")) fixed.read_ahead = options.setup.offload.read_ahead;
  models::Cluster cluster = flags.cluster;
  cluster.ranks = options.setup.layout.ranks;
  models::RunOptions own = options;
  own.setup.layout.ranks = own.setup.layout.tp = own.setup.layout.pp = 1;
  own.setup.layout.zero = 0;
  own.setup.layout.bucket_bytes = models::Setup().layout.bucket_bytes;
  own.setup.layout.sequence_parallel = false;
  own.setup.micro_batches = own.setup.offload.read_ahead = 1;
  const models::LayoutReport found = models::find_layout(own, cluster, fixed);
  const std::string costs = nn::CostModel(models::hardware_for(options.costs, options.device)).source;
  is_json ? print_layouts_json(own, cluster, costs, found) : print_layouts_table(own, cluster, costs, found);
}

}  // namespace thimble::bench
