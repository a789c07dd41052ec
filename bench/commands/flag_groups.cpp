#include <thimble/bench/commands/flag_groups.h>

#include <algorithm>
#include <vector>

#include <CLI/CLI.hpp>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/models/techniques/technique.h>

namespace thimble::bench {
namespace {

constexpr std::size_t help_columns = 70;  // width of the help texts to the right of the flags

/// Groups with their flags, except flags of techniques.
constexpr struct {
  std::string_view name, title, flags;
} own_flags[] = {
    {"everyday", "Everyday flags",
     "MODEL --data --steps --batch --seq --budget --lr --device --save --resume --seed --eval-every --log --threads "
     "--json --prompt --tokens"},
    {"model", "Sizes of the model", "--image --layers --heads --width --kv-heads --mlp --shared-kernels --dropout"},
    {"training", "Optimizer, schedule and evaluation",
     "--schedule --warmup --min-lr --weight-decay --beta2 --eval-batches --sample"},
    {"precision", "Dtypes, FP8 and loss scaling", "--tf32"},
    {"lora", "Adapters over a frozen model", "--save-adapters"},
    {"memory", "Budgets, plans and techniques that save memory",
     "--process-budget --graph --plan --strict --max-batch --max-seq --techniques --inference --int8 --gradient-report "
     "--profile --profile-file --hardware"},
    {"ranks", "Parallel training and layouts", "--memory --dp --per-node --inside --between"},
    {"generation", "Sampling and the key-value cache",
     "--generate --context --cache --prompt-tokens --temperature --top-k --top-p --ignore-end"},
    {"quantization", "Calibration of 8-bit models",
     "--calibrator --percent --symmetric --per-tensor --calibration-batches"},
    {"files", "Files that are read and written",
     "--tokenizer --checkpoint --save-every --keep --save-weights --overwrite"},
    {"output", "Pages, traces and views", "--html --trace --csv --snapshot --show-memory"},
    {"kernels", "Kernels and their processor", "--isa --cpu-dot --cuda-graph"}};

const std::vector<FlagGroup>& groups() {
  static const std::vector<FlagGroup> list = [] {
    std::vector<FlagGroup> all;
    for (const auto& [name, title, flags] : own_flags) {
      FlagGroup& group = all.emplace_back(FlagGroup{name, title, std::string(flags)});
      for (const models::Technique& technique : models::techniques()) {
        if (technique.flag.group != name) continue;
        group.flags += (group.flags.empty() ? "" : " ") + std::string(technique.flag.name());
      }
    }
    return all;
  }();
  return list;
}

std::string names_of_groups(const CLI::App& command) {
  std::string names;
  for (const FlagGroup& group : groups()) {
    const bool is_used = !command.get_options([&](const CLI::Option* o) { return is_in(group, *o); }).empty();
    if (is_used) names += std::string(group.name) + ", ";
  }
  return names + "all";
}

std::string broken_into_lines(const std::string& text) {
  std::string lines;
  std::size_t column = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::size_t word = end - at;
    if (column > 0) {
      const bool is_full = column + 1 + word > help_columns;
      lines += is_full ? '\n' : ' ';
      column = is_full ? 0 : column + 1;
    }
    lines += text.substr(at, word);
    column += word;
    at = end + 1;
  }
  return lines;
}

/// A line per group that has flags of the command, without the everyday group.
std::string lines_of_groups(const CLI::App& command) {
  std::string lines = "More flags:\n";
  const auto add = [&](std::string_view name, std::string_view title) {
    std::string line = "  --help " + std::string(name);
    line.resize(std::max<std::size_t>(line.size() + 1, 30), ' ');
    lines += line + std::string(title) + "\n";
  };
  for (const FlagGroup& group : std::span(groups()).subspan(1)) {
    const auto count = command.get_options([&](const CLI::Option* o) { return is_in(group, *o); }).size();
    if (count > 0) add(group.name, std::string(group.title) + ": " + std::to_string(count));
  }
  add("all", "All flags");
  lines.pop_back();
  return lines;
}

}  // namespace

std::span<const FlagGroup> flag_groups() { return groups(); }

bool has_groups(const CLI::App& command) {
  return command.get_options([&](const CLI::Option* o) { return o != command.get_help_ptr(); }).size() >
         max_everyday_flags;
}

bool is_in(const FlagGroup& group, const CLI::Option& option) {
  std::string name = option.get_name(option.get_positional());
  name.resize(std::min(name.find('{'), name.size()));  // drops a flag's default value
  return (" " + group.flags + " ").find(" " + name + " ") != std::string::npos;
}

void select_help(CLI::App& command, std::string_view name) {
  const FlagGroup& everyday = groups().front();
  const std::string_view asked = name.empty() ? everyday.name : name;
  const bool is_grouped = has_groups(command);
  const std::string names = names_of_groups(command),
                    lines = lines_of_groups(command);  // before flags are hidden: a hidden flag has no name
  std::size_t shown = 0;
  for (CLI::Option* const option : command.get_options([](CLI::Option*) { return true; })) {
    option->description(broken_into_lines(option->get_description()));
    if (!is_grouped) continue;
    const auto group =
        std::find_if(groups().begin(), groups().end(), [&](const FlagGroup& g) { return is_in(g, *option); });
    const bool is_help = option == command.get_help_ptr();
    const FlagGroup& own = group == groups().end() ? everyday : *group;
    const bool is_shown = asked == "all" || own.name == asked;
    option->group(is_shown || option->get_positional() ? std::string(own.title) : "");
    if (is_shown && !is_help && !option->get_positional()) ++shown;
  }
  if (!is_grouped) return;
  if (shown == 0) throw ValueError("--help: expected one of " + names + ", got " + quote(asked));
  if (name.empty()) command.footer(lines);
}

}  // namespace thimble::bench
