#include <thimble/core/files/outputs.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <system_error>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/file_stream.h>

namespace thimble {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t head_bytes = 256 << 10;
constexpr std::size_t longest_name = 200;

bool has(std::string_view head, std::string_view text) { return head.find(text) != std::string_view::npos; }

/// The header's length in eight bytes, then JSON.
bool is_safetensors(std::string_view head, std::uint64_t bytes) {
  if (head.size() < 10 || head[8] != '{') return false;
  const auto length = load_le<std::uint64_t>(reinterpret_cast<const std::byte*>(head.data()));
  return length <= bytes - 8;
}

bool is_checkpoint(std::string_view head, std::uint64_t bytes) {
  return is_safetensors(head, bytes) && has(head, "\"thimble.step_count\"");
}
/// Other programs' safetensors files have no checksums.
bool is_weights(std::string_view head, std::uint64_t bytes) {
  return is_safetensors(head, bytes) && has(head, "\"thimble.crc32c\"") && !is_checkpoint(head, bytes);
}

template <const char* Text>
bool is_json(std::string_view head, std::uint64_t) {
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && head[first] == '{' && has(head, Text);
}

constexpr char plan_text[] = "\"thimble plan ", costs_text[] = "\"thimble cost model ",
               adapters_text[] = "\"peft_type\"", trace_text[] = "\"traceEvents\"", results_text[] = "\"environment\"";

bool is_tokens(std::string_view head, std::uint64_t) {
  constexpr std::uint32_t magic = 20240520;
  return head.size() >= 4 && load_le<std::uint32_t>(reinterpret_cast<const std::byte*>(head.data())) == magic;
}

/// Looks for the names of columns in the first line.
template <const char* Text>
bool is_csv(std::string_view head, std::uint64_t) {
  return has(head.substr(0, head.find('\n')), Text);
}
constexpr char lifetimes_text[] = "id,lower,upper,size", table_text[] = "theory_bytes,predicted_bytes,measured_bytes";

bool is_snapshot(std::string_view head, std::uint64_t) { return head.starts_with("\x80\x02}"); }
bool is_page(std::string_view head, std::uint64_t) {
  return head.starts_with("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>") &&
         has(head, "</title>\n<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<style>\n");
}
bool is_picture(std::string_view head, std::uint64_t) {
  return head.starts_with(
             "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=") &&
         has(head, " role=\"img\" font-family=");
}
bool is_index(std::string_view head, std::uint64_t) { return head.starts_with("# Commands and flags"); }
bool is_never(std::string_view, std::uint64_t) { return false; }

/// Identifies a file: by device and inode if it exists, else by its future name.
struct Identity {
  bool exists = false;
  dev_t device = 0;
  ino_t number = 0;
  std::string name;

  explicit Identity(const std::string& path) {
    struct stat facts {};
    if (::stat(path.c_str(), &facts) == 0) {
      exists = true, device = facts.st_dev, number = facts.st_ino;
      return;
    }
    std::error_code error;
    const fs::path full = fs::weakly_canonical(fs::absolute(path, error), error);
    name = error ? path : (full.has_filename() ? full : full.parent_path()).string();
  }
  bool operator==(const Identity& other) const {
    if (exists != other.exists) return false;
    return exists ? device == other.device && number == other.number : name == other.name;
  }
};

/// Whether `path` is the output's path, its infix and a number.
bool is_of_infix(const std::string& path, const files::Output& output) {
  if (output.infix.empty() || output.path.empty()) return false;
  const auto in_its_folder = [](const std::string& given) {
    std::error_code error;
    const fs::path full = fs::absolute(given, error);
    return (fs::weakly_canonical(full.parent_path(), error) / full.filename()).string();
  };
  const std::string name = in_its_folder(path), start = in_its_folder(output.path) + output.infix;
  return name.starts_with(start) && name.size() > start.size() &&
         name.find_first_not_of("0123456789", start.size()) == std::string::npos;
}

[[noreturn]] void refuse(const files::Output& output, std::string_view expected, std::string_view got) {
  throw ValueError(output.option + ": expected " + std::string(expected) + ", got " + quote(output.path, longest_name) +
                   ", which " + std::string(got) + "; give another name");
}

bool is_regular(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

/// The type of the file at `path`; 0 if there is none, or it cannot be seen.
mode_t type_at(const std::string& path) {
  struct stat facts {};
  return ::stat(path.c_str(), &facts) == 0 ? facts.st_mode & S_IFMT : 0;
}

/// Whether `path` names standard output, like /dev/stdout, wherever it is redirected to.
bool is_standard_output(const std::string& path) {
  struct stat there {
  }, own{};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(STDOUT_FILENO, &own) == 0 && there.st_dev == own.st_dev &&
         there.st_ino == own.st_ino;
}

bool takes_streams(const std::string& path) {
  const mode_t type = type_at(path);
  return type == S_IFCHR || type == S_IFIFO || is_standard_output(path);
}

bool is_kind(const std::string& path, const files::FileKind& kind) {
  const InputFile file(path);
  if (file.bytes() == 0) return true;
  std::string head(static_cast<std::size_t>(std::min(file.bytes(), head_bytes)), '\0');
  file.read(0, std::as_writable_bytes(std::span(head)));
  return kind.is(head, file.bytes());
}

/// Whether a folder of a model or adapters is read by files of this name.
bool is_read_by_name(const std::string& name) {
  return name.ends_with(".json") ||
         (name.ends_with(".safetensors") && (name.starts_with("model") || name.starts_with("adapter_model")));
}

/// Whether reading a folder reads the existing file `output`: because of its name, or because it is of another kind.
bool is_read_in(const std::string& folder, const files::Output& output) {
  std::error_code error;
  const Identity own(output.path);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (!entry.is_regular_file(error) || !(Identity(entry.path().string()) == own)) continue;
    return is_read_by_name(entry.path().filename().string()) || !is_kind(output.path, *output.kind);
  }
  return false;
}

}  // namespace

namespace file_kinds {
const files::FileKind checkpoint{"a checkpoint", is_checkpoint}, weights{"a safetensors file of weights", is_weights},
    plan{"a plan", is_json<plan_text>}, costs{"a file of times", is_json<costs_text>},
    adapters{"a configuration of adapters", is_json<adapters_text>}, tokens{"a file of tokens", is_tokens},
    lifetimes{"a CSV of lifetimes", is_csv<lifetimes_text>, true}, trace{"a trace", is_json<trace_text>, true},
    snapshot{"a memory snapshot", is_snapshot, true}, page{"a page of this program", is_page, true},
    picture{"an SVG picture", is_picture, true}, results{"results of this program", is_json<results_text>},
    table{"a CSV of results", is_csv<table_text>}, index{"an index of commands", is_index, true},
    text{"a text", is_never, true}, folder{"a folder", is_never};
}  // namespace file_kinds

void check_kind(const files::Output& output, bool overwrites, std::string_view fix) {
  if (overwrites || output.path.empty() || !is_regular(output.path) || is_kind(output.path, *output.kind)) return;
  const bool is_marked = output.kind != &file_kinds::text;
  throw ValueError(output.option + ": expected a new file" +
                   (is_marked ? " or " + std::string(output.kind->name) : "") + ", got " +
                   quote(output.path, longest_name) +
                   (is_marked ? ", a file of another kind" : ", a file that is there") + "; " + std::string(fix));
}

void write_output(const std::string& path, std::string_view text) {
  if (!takes_streams(path)) return write_file_atomically(path, text);
  const int descriptor =
      is_standard_output(path) ? ::dup(STDOUT_FILENO) : ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY);
  std::size_t done = 0;
  bool is_good = descriptor >= 0;
  while (is_good && done < text.size()) {
    const ssize_t count = ::write(descriptor, text.data() + done, text.size() - done);
    is_good = count > 0 || (count < 0 && errno == EINTR);
    if (count > 0) done += static_cast<std::size_t>(count);
  }
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  if (!is_good) throw FileError(path, done, std::string("cannot write: ") + std::strerror(error));
}

void make_output_folder(const std::string& option, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw ValueError(option + ": cannot make the folder " + quote(folder, longest_name) + ": " + error.message());
  }
}

void check_names(const std::vector<files::Output>& outputs, std::string_view prefix) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    files::Output output = outputs[i];
    if (output.path.empty()) continue;
    output.option.insert(0, prefix);
    const Identity own(output.path);
    const bool is_folder = output.kind == &file_kinds::folder;
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      const files::Output& other = outputs[k];
      if (k == i || other.path.empty()) continue;
      if (is_of_infix(output.path, other)) refuse(output, "another name", "is kept for files of " + other.option);
      const Identity its(other.path);
      const bool is_file = other.kind != &file_kinds::folder, is_same = own == its;
      if (is_folder && is_file && (is_same || (!its.exists && own.name.starts_with(its.name + "/")))) {
        refuse(output, "a folder", std::string(is_same ? "is" : "is below") + " the file of " + other.option);
      }
      if (k > i || is_folder || !is_file || !is_same || type_at(output.path) == S_IFCHR) continue;
      refuse(output, "one output in a file", other.option + " writes");
    }
  }
}

void check_outputs(const std::vector<files::Output>& outputs, const std::vector<files::Input>& inputs,
                   bool overwrites) {
  const bool writes = std::any_of(outputs.begin(), outputs.end(), [](const auto& o) { return !o.path.empty(); });
  if (overwrites && !writes) throw ValueError("`overwrites`: needs a file to write");
  check_names(outputs);
  for (const files::Output& output : outputs) {
    if (output.path.empty() || output.kind == &file_kinds::folder) continue;
    const Identity own(output.path);
    for (const files::Input& input : inputs) {
      if (input.path.empty() || input.replaced_by == output.option) continue;
      if (own == Identity(input.path)) refuse(output, "a file that is not read", input.option + " reads");
      std::error_code error;
      if (!own.exists || !fs::is_directory(input.path, error)) continue;
      if (is_regular(output.path) && is_read_in(input.path, output)) {
        refuse(output, "a file that is not read", "is in the folder that " + input.option + " reads");
      }
    }
    if (takes_streams(output.path)) {
      if (!output.kind->is_stream) {
        refuse(output, "a file, into whose place " + std::string(output.kind->name) + " is renamed",
               "is a device, a pipe or standard output");
      }
      if (::access(output.path.c_str(), W_OK) == 0) continue;
      throw ValueError(output.option + ": " + quote(output.path, longest_name) + ": " + std::strerror(errno));
    }
    check_kind(output, overwrites);
    try {
      AtomicFile(output.path).write("x");  // a test; without a commit nothing changes
    } catch (const FileError& error) {
      throw ValueError(output.option + ": " + error.what());
    }
  }
}

}  // namespace thimble
