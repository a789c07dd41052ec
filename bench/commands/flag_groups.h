#pragma once
// Groups of flags. The help of a command with many flags shows its everyday flags and a line for each other group.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace thimble::bench {

/// Limit of everyday flags; a command with more flags, MODEL included, shows them by group.
inline constexpr std::size_t max_everyday_flags = 22;

struct FlagGroup {
  std::string_view name;  ///< for --help NAME
  std::string_view title;
  std::string flags;  ///< separated by spaces
};

/// All groups in the order of help, everyday flags first.
std::span<const FlagGroup> flag_groups();

/// True if the command has more than max_everyday_flags flags.
bool has_groups(const CLI::App& command);

bool is_in(const FlagGroup& group, const CLI::Option& option);

/// Makes command.help() show the group `name`, all flags for "all", or for an empty name the everyday flags and the
/// names of the other groups. Wraps help texts. Throws ValueError that lists the groups if the command has no such one.
void select_help(CLI::App& command, std::string_view name);

/// A renamed flag.
struct RenamedFlag {
  std::string_view old_name, name;
};
inline constexpr RenamedFlag renamed_flags[] = {{"--graph", "--cuda-graph"},   {"--live", "--show-memory"},
                                                {"--measure", "--profile"},    {"--share", "--shared-kernels"},
                                                {"--times", "--profile-file"}, {"--units", "--cpu-dot"}};

}  // namespace thimble::bench
