#pragma once
// Groups of flags. The help of a command that has many shows its everyday flags and a line for each group of the rest.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace thimble::bench {

/// A command with more flags, MODEL included, shows them by group. As many are everyday flags at most.
inline constexpr std::size_t max_everyday_flags = 22;

struct FlagGroup {
  std::string_view name;  ///< as in --help NAME
  std::string_view title;
  std::string flags;  ///< with a space between two
};

/// In the order of help; the first one has the everyday flags.
std::span<const FlagGroup> flag_groups();

/// Whether the command's help shows groups.
bool has_groups(const CLI::App& command);

/// Whether the group has the flag.
bool is_in(const FlagGroup& group, const CLI::Option& option);

/// Makes command.help() show one group, all of them for "all", or for an empty name the everyday flags and the names of
/// the other groups. Breaks lines of help texts. Throws ValueError that lists the groups for another name.
void select_help(CLI::App& command, std::string_view name);

/// A flag that had another name.
struct RenamedFlag {
  std::string_view old_name, name;
};
inline constexpr RenamedFlag renamed_flags[] = {{"--graph", "--cuda-graph"},   {"--live", "--show-memory"},
                                                {"--measure", "--profile"},    {"--share", "--shared-kernels"},
                                                {"--times", "--profile-file"}, {"--units", "--cpu-dot"}};

}  // namespace thimble::bench
