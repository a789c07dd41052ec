// thimble chain: the best schedules of a chain of stages from the command line or a file.

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <iostream>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <thimble/bench/book/drawing.h>
#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/bench/report/figures.h>
#include <thimble/bench/report/text.h>
#include <thimble/core/error.h>
#include <thimble/core/files/file_stream.h>
#include <thimble/core/files/outputs.h>
#include <thimble/memory/remat/frontier.h>
#include <thimble/memory/units.h>
#include <thimble/nn/fit/fit.h>

namespace thimble::bench {
namespace {

constexpr std::uint64_t most_file_bytes = 1 << 20;

struct ChainFlags {
  std::vector<std::string> stages;
  std::string file, picture, staircase;
  std::size_t input = 0, budget = 0;
  bool is_json = false, overwrites = false;
};

// Parses OUTPUT:KEPT:FORWARD:BACKWARD.
remat::Stage stage_of(const std::string& text, std::size_t number) {
  std::vector<std::string> fields;
  std::istringstream in(text);
  for (std::string field; std::getline(in, field, ':');) fields.push_back(field);
  const std::string begin = "chain: stage " + std::to_string(number);
  if (fields.size() != 4 || text.ends_with(':')) {
    refuse_value(begin, "OUTPUT:KEPT:FORWARD:BACKWARD, two sizes and two whole numbers, as in 4MiB:8MiB:2:4", text);
  }
  constexpr std::int64_t longest = 1'000'000'000;
  remat::Stage stage;
  stage.name = std::to_string(number);
  stage.output_bytes = stage.output_gradient_bytes =
      static_cast<remat::Bytes>(parse_bytes(begin + ": OUTPUT", fields[0]));
  stage.forward_time = parse_integer(begin + ": FORWARD", fields[2], 0, longest);
  remat::Option option;
  option.kept_bytes = static_cast<remat::Bytes>(parse_bytes(begin + ": KEPT", fields[1]));
  option.forward_time = stage.forward_time;
  option.backward_time = parse_integer(begin + ": BACKWARD", fields[3], 0, longest);
  stage.options = {option};
  return stage;
}

struct ChainLine {
  std::string text;
  std::size_t first_byte;  // in the file
};

// Stages of a file, one per line; # begins a comment.
std::vector<ChainLine> lines_of(const std::string& path) {
  const std::vector<std::byte> bytes = read_whole_file(path, most_file_bytes);
  std::istringstream in(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  std::vector<ChainLine> lines;
  std::size_t next = 0;
  for (std::string line; std::getline(in, line);) {
    const std::size_t begin = std::exchange(next, next + line.size() + 1);
    line.resize(std::min(line.find('#'), line.size()));
    const std::size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos) continue;
    lines.push_back({line.substr(first, line.find_last_not_of(" \t\r") - first + 1), begin + first});
  }
  return lines;
}

remat::Chain chain_of(const ChainFlags& flags) {
  if (flags.stages.empty() == flags.file.empty()) {
    throw ValueError("chain: expected stages or --file, got " + std::string(flags.file.empty() ? "neither" : "both"));
  }
  remat::Chain chain;
  chain.input_bytes = chain.input_gradient_bytes = static_cast<remat::Bytes>(flags.input);
  for (const std::string& text : flags.stages) chain.stages.push_back(stage_of(text, chain.size()));
  if (flags.file.empty()) return chain;
  for (const auto& [text, first_byte] : lines_of(flags.file)) {
    try {
      chain.stages.push_back(stage_of(text, chain.size()));
    } catch (const ValueError& error) {
      throw FileError(flags.file, first_byte, error.what());
    }
  }
  if (chain.stages.empty()) throw FileError(flags.file, 0, "chain: expected a stage on a line, got none");
  return chain;
}

double more(remat::Time time, remat::Time least) {
  return least == 0 ? 0 : static_cast<double>(time) / static_cast<double>(least) - 1;
}

// "record 3", without the option: every stage has only one.
std::string name_of(const remat::Operation& operation) {
  std::string name = remat::to_string(operation);
  if (operation.kind == remat::Operation::Kind::record) name.resize(name.find(" (option"), ' ');
  return name;
}

// A schedule's operations, with the bytes held after each.
std::string operations_text(const remat::Chain& chain, const remat::Schedule& schedule) {
  remat::Simulator simulator(chain);
  std::string text = "  operation            held\n";
  for (const remat::Operation& operation : schedule) {
    simulator.apply(operation);
    std::string name = name_of(operation), held = format_grouped(simulator.held_bytes());
    name.resize(std::max<std::size_t>(name.size(), 14), ' ');
    held.insert(0, held.size() < 12 ? 12 - held.size() : 0, ' ');
    text += "  " + name + held + "\n";
  }
  return text;
}

std::string staircase_picture(const remat::Frontier& frontier) {
  report::Plot plot;
  plot.name = "chain";
  plot.title = "What memory buys: time of the best schedule";
  plot.caption = "Time of the fastest schedule against the bytes it is given; each step is another schedule.";
  plot.x = {.title = "bytes at hand", .unit = report::Unit::bytes, .from_zero = false};
  plot.y = {.title = "time", .from_zero = false};
  report::Series series{"best schedule", report::Role::other, {}, "best", true};
  for (const remat::Frontier::Point& point : frontier.points()) {
    series.points.push_back({static_cast<double>(point.budget_bytes), static_cast<double>(point.time)});
  }
  plot.series = {series};
  return report::svg_file(plot);
}

/// Includes the schedule for --budget, if given.
void print_json(const remat::Frontier& frontier, remat::Bytes budget, const remat::Schedule& schedule) {
  nlohmann::ordered_json points = nlohmann::ordered_json::array();
  for (const remat::Frontier::Point& point : frontier.points()) {
    points.push_back({{"bytes", point.budget_bytes},
                      {"time", point.time},
                      {"schedule", remat::to_string(frontier.plan(point.budget_bytes))}});
  }
  nlohmann::ordered_json json{
      {"stages", frontier.chain().size()}, {"exact", frontier.is_exact()}, {"schedules", std::move(points)}};
  if (budget > 0) {
    const remat::ScheduleCost cost = remat::simulate(frontier.chain(), schedule);
    json["budget_bytes"] = budget;
    json["time"] = cost.time;
    json["peak_bytes"] = cost.peak_bytes;
    for (const remat::Operation& operation : schedule) json["operations"].push_back(name_of(operation));
  }
  std::cout << json.dump(2) << "\n";
}

void print_table(const remat::Frontier& frontier) {
  const remat::Frontier::Point& all = frontier.points().back();
  std::printf("%zu stages; recording every stage takes %s bytes and time %s%s\n", frontier.chain().size(),
              format_grouped(all.budget_bytes).c_str(), format_grouped(all.time).c_str(),
              frontier.is_exact() ? "" : " (too many choices to try all: times are bounds)");
  std::printf("%14s %12s %9s  schedule\n", "bytes", "time", "more");
  for (const remat::Frontier::Point& point : frontier.points()) {
    std::printf("%14s %12s %7s %%  %s\n", format_grouped(point.budget_bytes).c_str(),
                format_grouped(point.time).c_str(), report::format_fixed(100 * more(point.time, all.time), 1).c_str(),
                remat::to_string(frontier.plan(point.budget_bytes)).c_str());
  }
}

// Until destroyed, prints to standard error every few seconds that the solver still runs: a chain of n distinct stages
// has n^3 / 6 splits.
std::jthread progress_of(std::size_t stages) {
  return std::jthread([stages](const std::stop_token& stop) {
    constexpr int seconds = 3;
    std::mutex mutex;
    std::unique_lock lock(mutex);
    for (int passed = seconds;; passed += seconds) {
      std::condition_variable_any().wait_for(lock, stop, std::chrono::seconds(seconds), [] { return false; });
      if (stop.stop_requested()) return;
      std::fprintf(stderr, "chain: solving %zu stages, %d s%s\n", stages, passed,
                   passed == seconds ? "; fewer stages, or more that are alike, take less" : "");
    }
  });
}

remat::Frontier solve(const remat::Chain& chain) {
  const std::jthread progress = progress_of(chain.size());
  return remat::Frontier(chain);
}

void run(const ChainFlags& flags) {
  check_outputs(
      {{"--svg", flags.picture, &file_kinds::picture}, {"--staircase", flags.staircase, &file_kinds::picture}},
      {{"--file", flags.file}}, flags.overwrites);
  const remat::Chain chain = chain_of(flags);
  const remat::Frontier frontier = solve(chain);
  const auto budget = static_cast<remat::Bytes>(flags.budget);
  if (budget > 0 && budget < frontier.minimum_budget()) {
    const auto least = static_cast<std::size_t>(frontier.minimum_budget());
    throw nn::BudgetError("chain: no schedule keeps " + format_grouped(budget) +
                              " bytes; the smallest that one keeps is " + format_grouped(least),
                          flags.budget, least);
  }
  const remat::Bytes chosen = budget > 0 ? budget : frontier.minimum_budget();
  const remat::Schedule schedule = remat::to_schedule(frontier.plan(chosen), chain);
  std::string picture;
  if (!flags.picture.empty()) {
    picture = report::svg_schedules(
        "Stages and time", "Each operation of two schedules of the chain, and the bytes held.", chain,
        {{"every stage recorded", remat::to_schedule(frontier.plan(frontier.points().back().budget_bytes), chain)},
         {budget > 0 ? "the best within " + format_grouped(budget) + " bytes" : "the least memory", schedule}},
        "bytes");
  }
  if (!flags.picture.empty()) write_output(flags.picture, picture);
  if (!flags.staircase.empty()) write_output(flags.staircase, staircase_picture(frontier));
  if (flags.is_json) return print_json(frontier, budget, schedule);
  print_table(frontier);
  if (budget > 0) {
    const remat::ScheduleCost cost = remat::simulate(chain, schedule);
    std::printf("\nwithin %s bytes: time %s, peak %s\n%s", format_grouped(budget).c_str(),
                format_grouped(cost.time).c_str(), format_grouped(cost.peak_bytes).c_str(),
                operations_text(chain, schedule).c_str());
  }
}

}  // namespace

void add_chain(CLI::App& program) {
  CLI::App* const command =
      program.add_subcommand("chain", "The best schedules of a chain of stages: what to keep, what to run again");
  const auto flags = std::make_shared<ChainFlags>();
  command->add_option("STAGES", flags->stages,
                      "OUTPUT:KEPT:FORWARD:BACKWARD of each stage: bytes of its output, bytes kept inside, two times");
  command->add_option("--file", flags->file, "File of stages, one a line; # begins a comment")->type_name("FILE");
  add_text(*command, "--input", "SIZE", "Bytes of the input of the chain (0)",
           [flags](const std::string& text) { flags->input = parse_bytes("--input", text); });
  add_size(*command, "--budget", flags->budget,
           "Bytes: show the operations of the best schedule within them (no schedule)");
  command->add_option("--svg", flags->picture, "Draw the schedule of --budget, else of the least bytes")
      ->type_name("FILE");
  command->add_option("--staircase", flags->staircase, "Draw time against bytes")->type_name("FILE");
  command->add_flag("--json", flags->is_json, "Print JSON");
  add_overwrite_flag(*command, flags->overwrites);
  command->callback([flags] { run(*flags); });
}

}  // namespace thimble::bench
