// thimble book: redraws the book's pictures and rewrites its index of commands.

#include <algorithm>
#include <cstdio>

#include <CLI/CLI.hpp>

#include <thimble/bench/book/figures.h>
#include <thimble/bench/commands.h>
#include <thimble/bench/commands/flag_groups.h>
#include <thimble/bench/commands/flags.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/outputs.h>

namespace thimble::bench {
namespace {

struct BookFlags {
  std::string folder, index;
  std::vector<std::string> names;
  bool overwrites = false;

  std::string picture(const BookFigure& figure) const { return folder + "/" + std::string(figure.name) + ".svg"; }
};

// Escapes a cell of a Markdown table.
std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find_first_of("|<>*\n", at)) != std::string::npos; at += 2) {
    text[at] == '\n' ? text.replace(at, 1, "  ") : text.insert(at, 1, '\\');
  }
  return text;
}

void add_table(std::string& text, const std::vector<const CLI::Option*>& options) {
  text += "| | |\n|---|---|\n";
  for (const CLI::Option* const option : options) {
    text +=
        "| `" + option->get_name(option->get_positional(), true) + "` | " + cell(option->get_description()) + " |\n";
  }
}

void add_options(std::string& text, const CLI::App& command) {
  const auto of = [&](auto&& is_wanted) {
    return command.get_options([&](const CLI::Option* o) { return o != command.get_help_ptr() && is_wanted(*o); });
  };
  if (!has_groups(command)) return add_table(text, of([](const CLI::Option&) { return true; }));
  for (const FlagGroup& group : flag_groups()) {
    const auto options = of([&](const CLI::Option& option) { return is_in(group, option); });
    if (options.empty()) continue;
    text += (text.ends_with("\n\n") ? "### " : "\n### ") + std::string(group.title) + " (`--help " +
            std::string(group.name) + "`)\n\n";
    add_table(text, options);
  }
}

/// All commands with their help texts.
std::string command_index() {
  std::string text =
      "# Commands and flags\n\nMade by `thimble book --index FILE` from the program itself. `thimble COMMAND --help` "
      "shows the same.\n";
  for (const Command& one : commands) {
    CLI::App program("", "thimble");
    one.add(program);
    for (const CLI::App* const command : program.get_subcommands({})) {
      text += "\n## thimble " + command->get_name() + "\n\n" + cell(command->get_description()) + ".\n\n";
      if (command->get_subcommands({}).empty()) add_options(text, *command);
      for (const CLI::App* const inner : command->get_subcommands({})) {
        text += "### thimble " + command->get_name() + " " + inner->get_name() + "\n\n" +
                cell(inner->get_description()) + ".\n\n";
        add_options(text, *inner);
        text += "\n";
      }
    }
  }
  return text;
}

void run(const BookFlags& flags) {
  if (!flags.index.empty() && !(flags.folder.empty() && flags.names.empty())) {
    throw ValueError("--index: expected no pictures beside it, got --figures or their names; run the command twice");
  }
  std::vector<const BookFigure*> chosen;
  for (const BookFigure& figure : book_figures()) {
    const auto found = std::find(flags.names.begin(), flags.names.end(), figure.name);
    if (flags.names.empty() || found != flags.names.end()) chosen.push_back(&figure);
  }
  for (const std::string& name : flags.names) {
    if (std::none_of(chosen.begin(), chosen.end(), [&](const BookFigure* f) { return f->name == name; })) {
      std::string all;
      for (const BookFigure& figure : book_figures()) all += (all.empty() ? "" : ", ") + std::string(figure.name);
      refuse_value("book", "one of " + all, name);
    }
  }
  std::vector<files::Output> outputs{{"--index", flags.index, &file_kinds::index}};
  if (!flags.folder.empty()) {
    make_output_folder("--figures", flags.folder);
    for (const BookFigure* const f : chosen) outputs.push_back({"--figures", flags.picture(*f), &file_kinds::picture});
  }
  check_outputs(outputs, {}, flags.overwrites);
  if (!flags.index.empty()) return write_output(flags.index, command_index());
  for (const BookFigure* const figure : chosen) {
    const std::string svg = flags.folder.empty() ? "" : figure->draw();
    if (!svg.empty()) write_file_atomically(flags.picture(*figure), svg);
    std::printf("%-18s %s\n", std::string(figure->name).c_str(), std::string(figure->caption).c_str());
  }
}

}  // namespace

void add_book(CLI::App& program) {
  CLI::App* const command = program.add_subcommand(
      "book", "List the pictures of the book (docs/book), or draw them; write its index of commands");
  const auto flags = std::make_shared<BookFlags>();
  command->add_option("NAMES", flags->names, "Figures (all)");
  command->add_option("--figures", flags->folder, "Folder to draw them into, as SVG")->type_name("FOLDER");
  command->add_option("--index", flags->index, "File to write: the index of commands and flags")->type_name("FILE");
  add_overwrite_flag(*command, flags->overwrites);
  command->callback([flags] { run(*flags); });
}

}  // namespace thimble::bench
