#pragma once
// Checks the outputs of a command or a run before any work: each can be written, and none replaces a file that the run
// reads, another of its outputs, or a file of another kind.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

/// Kinds of files that are written here, told by their first bytes.
struct FileKind {
  std::string_view name;  ///< as errors have it: "a checkpoint"
  /// Whether a file of so many bytes that begins with `head`, its first 256 KiB at most, is one.
  bool (*is)(std::string_view head, std::uint64_t bytes);
};
namespace file_kinds {
extern const FileKind checkpoint, weights, plan, costs, adapters, tokenizer, tokens, lifetimes, trace, snapshot, page,
    picture, results, table, index;
/// Texts have no mark to tell ours by, so an existing file is never replaced.
extern const FileKind text;
}  // namespace file_kinds

/// A file to be written, and the option that names it: "--html", "`save`". Empty: it is not asked for.
struct Output {
  std::string option, path;
  const FileKind* kind;
};
/// A file or folder that is read. Empty: there is none.
struct Input {
  std::string option, path;
  std::string replaced_by = {};  ///< the option of the output that may be the same file
};

/// Throws ValueError where an output
/// - is one of the inputs, or lies in a folder among them and is one of the files that are read there: under any name,
///   by links as well;
/// - is another of the outputs;
/// - is there and not of its kind, unless `overwrites`. An empty file is of every kind;
/// - cannot be written, as AtomicFile finds by trying.
/// Writes nothing and leaves existing files unchanged.
void check_outputs(const std::vector<Output>& outputs, const std::vector<Input>& inputs, bool overwrites);

/// Makes a folder, with those above it, that files are to be written to. Throws ValueError where it cannot be made.
void make_output_folder(const std::string& option, const std::string& folder);

/// Of these the check of its kind, of one file. `fix` ends the message.
void check_kind(const Output& output, bool overwrites, std::string_view fix = "give another name, or `overwrites`");

}  // namespace thimble
