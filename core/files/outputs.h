#pragma once
// Checks the outputs of a command or a run before any work: each can be written, and none replaces an input, another
// output, or a file of another kind.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

namespace files {

/// The kinds of files that the project writes, recognized by their first bytes.
struct FileKind {
  std::string_view name;  ///< as in errors: "a checkpoint"
  /// Whether a file of `bytes` bytes that begins with `head` (at most its first 256 KiB) is of this kind.
  bool (*is)(std::string_view head, std::uint64_t bytes);
  bool is_stream = false;  ///< may go to a device or a pipe; other kinds are read again, and renamed into place
};

}  // namespace files

namespace file_kinds {
extern const files::FileKind checkpoint, weights, plan, costs, adapters, tokens, lifetimes, trace, snapshot, page,
    picture, results, table, index;
/// Texts cannot be recognized, so an existing file is never replaced.
extern const files::FileKind text;
extern const files::FileKind folder;  ///< not a file: only its name is checked
}  // namespace file_kinds

namespace files {

/// A file to write, and its option: "--html", "`save`". With an empty path nothing is written.
struct Output {
  std::string option, path;
  const FileKind* kind;
  /// Names made of the path, this text (".step-") and a number also belong to the option.
  std::string infix = {};
};
/// A file or folder to read. With an empty path nothing is read.
struct Input {
  std::string option, path;
  std::string replaced_by = {};  ///< the option of the output that may replace it
};

}  // namespace files

/// Throws ValueError if two outputs collide: both are one file, a folder is at or below another's file, or one has a
/// name with another's `infix`. `prefix` begins the message.
void check_names(const std::vector<files::Output>& outputs, std::string_view prefix = "");

/// Throws ValueError as check_names does, for `overwrites` without an output, and if an output
/// - is one of the inputs, or one of the files read in an input folder, under any name or link;
/// - exists and is not of its kind, unless `overwrites`. An empty file is of every kind;
/// - is a character device or a pipe, and its kind is no stream. Several outputs may go to one device;
/// - cannot be written, as an AtomicFile finds out.
/// Leaves existing files unchanged.
void check_outputs(const std::vector<files::Output>& outputs, const std::vector<files::Input>& inputs, bool overwrites);

/// Writes an output whose kind is a stream: directly to a character device, a pipe or standard output, else as
/// write_file_atomically does. Waits until a pipe has a reader. Throws FileError.
void write_output(const std::string& path, std::string_view text);

/// Makes a folder for outputs, with its parents. Throws ValueError on failure.
void make_output_folder(const std::string& option, const std::string& folder);

/// Checks only a file's kind. `fix` ends the message.
void check_kind(const files::Output& output, bool overwrites,
                std::string_view fix = "give another name, or `overwrites`");

}  // namespace thimble
