// thimble pipeline: simulates the time and memory of pipeline schedules.

#include <cstdio>
#include <iostream>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/book/drawing.h>
#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/files/outputs.h>
#include <thimble/dist/pipeline/schedule.h>

namespace thimble::bench {
namespace {

struct PipelineFlags {
  std::int64_t stages = 4, micro_batches = 8, chunks = 2;
  double forward_s = 1, backward_s = 2, link_s = 0;
  std::string picture;
  bool is_json = false, overwrites = false;
};

bool applies_interleaved(const PipelineFlags& flags) { return flags.micro_batches % flags.stages == 0; }

std::string interleaved_name(const PipelineFlags& flags) {
  return "interleaved, " + std::to_string(flags.chunks) + " chunks";
}

constexpr const char* why_not_interleaved = "does not apply: needs --micro-batches that --stages divides";

std::vector<report::ShownPipeline> runs_of(const PipelineFlags& flags) {
  const auto stages = static_cast<int>(flags.stages), micro_batches = static_cast<int>(flags.micro_batches);
  const auto chunks = static_cast<int>(flags.chunks);
  const dist::PipelineCosts whole{{flags.forward_s}, {flags.backward_s}, flags.link_s};
  std::vector<report::ShownPipeline> runs;
  const auto add = [&](const std::string& name, const dist::Schedule& schedule, const dist::PipelineCosts& costs) {
    runs.push_back({name, schedule.chunks, dist::simulate(schedule, costs)});
  };
  add("GPipe", dist::gpipe(stages, micro_batches), whole);
  add("1F1B", dist::one_forward_one_backward(stages, micro_batches), whole);
  if (chunks < 2 || !applies_interleaved(flags)) return runs;
  const dist::PipelineCosts piece{{flags.forward_s / chunks}, {flags.backward_s / chunks}, flags.link_s};
  add(interleaved_name(flags), dist::interleaved(stages, micro_batches, chunks), piece);
  return runs;
}

double whole_stages(const report::ShownPipeline& shown, std::size_t stage) {
  return static_cast<double>(shown.run.in_flight[stage]) / shown.chunks;
}

void print_json(const PipelineFlags& flags, const std::vector<report::ShownPipeline>& runs) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const report::ShownPipeline& shown : runs) {
    nlohmann::ordered_json held = nlohmann::ordered_json::array();
    for (std::size_t s = 0; s < shown.run.in_flight.size(); ++s) held.push_back(whole_stages(shown, s));
    list.push_back({{"schedule", shown.name},
                    {"time", shown.run.step_s},
                    {"bubble", shown.run.bubble},
                    {"in_flight", std::move(held)}});
  }
  if (flags.chunks > 1 && !applies_interleaved(flags)) {
    list.push_back({{"schedule", interleaved_name(flags)}, {"why_not", why_not_interleaved}});
  }
  std::cout << nlohmann::ordered_json{{"stages", flags.stages},
                                      {"micro_batches", flags.micro_batches},
                                      {"schedules", std::move(list)}}
                   .dump(2)
            << "\n";
}

void print_table(const PipelineFlags& flags, const std::vector<report::ShownPipeline>& runs) {
  std::printf("%lld stages, %lld micro-batches; forward %s, backward %s, link %s\n",
              static_cast<long long>(flags.stages), static_cast<long long>(flags.micro_batches),
              report::format_trimmed(flags.forward_s, 3).c_str(), report::format_trimmed(flags.backward_s, 3).c_str(),
              report::format_trimmed(flags.link_s, 3).c_str());
  std::printf("%-24s %10s %9s  micro-batches held by each stage\n", "schedule", "time", "bubble");
  for (const report::ShownPipeline& shown : runs) {
    std::string held;
    for (std::size_t s = 0; s < shown.run.in_flight.size(); ++s) {
      held += (s == 0 ? "" : " ") + report::format_trimmed(whole_stages(shown, s), 2);
    }
    std::printf("%-24s %10s %9s  %s\n", shown.name.c_str(), report::format_trimmed(shown.run.step_s, 3).c_str(),
                report::format_percent(shown.run.bubble).c_str(), held.c_str());
  }
  if (flags.chunks > 1 && !applies_interleaved(flags)) {
    std::printf("%-24s %10s %9s  %s\n", interleaved_name(flags).c_str(), "-", "-", why_not_interleaved);
  }
}

void run(const PipelineFlags& flags) {
  check_outputs({{"--svg", flags.picture, &file_kinds::picture}}, {}, flags.overwrites);
  const std::vector<report::ShownPipeline> runs = runs_of(flags);
  if (!flags.picture.empty()) {
    write_output(flags.picture, report::svg_pipelines("Stages and time", "What each stage does when.", runs));
  }
  flags.is_json ? print_json(flags, runs) : print_table(flags, runs);
}

}  // namespace

void add_pipeline(CLI::App& program) {
  CLI::App* const command = program.add_subcommand("pipeline", "What schedules of a pipeline of stages take and hold");
  const auto flags = std::make_shared<PipelineFlags>();
  add_integer(*command, "--stages", flags->stages, 1, 1024, "Pipeline stages (4)");
  add_integer(*command, "--micro-batches", flags->micro_batches, 1, 4096,
              "Micro-batches of a step; interleaved: a multiple of --stages (8)");
  add_integer(*command, "--chunks", flags->chunks, 1, 64,
              "Chunks of each stage in the interleaved schedule; 1: without that schedule (2)");
  add_number(*command, "--forward", flags->forward_s, 0, 1e9, "Time of forward of a micro-batch through a stage (1)");
  add_number(*command, "--backward", flags->backward_s, 0, 1e9,
             "Time of backward of a micro-batch through a stage (2)");
  add_number(*command, "--link", flags->link_s, 0, 1e9, "Time from one stage to the next (0)");
  command->add_option("--svg", flags->picture, "Draw the schedules")->type_name("FILE");
  command->add_flag("--json", flags->is_json, "Print JSON");
  add_overwrite_flag(*command, flags->overwrites);
  command->callback([flags] { run(*flags); });
}

}  // namespace thimble::bench
