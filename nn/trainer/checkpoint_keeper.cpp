#include <thimble/nn/trainer/checkpoint_keeper.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/outputs.h>
#include <thimble/memory/units.h>
#include <thimble/nn/files/checkpoint.h>
#include <thimble/nn/files/cut_tensors.h>

namespace thimble::nn {
namespace {

namespace fs = std::filesystem;

std::string older_path(const std::string& path, std::int64_t step) {
  return path + std::string(older_infix) + std::to_string(step);
}

// The older checkpoints of a path, newest first.
std::vector<fs::path> older_of(const std::string& path) {
  struct Found {
    fs::path path;
    fs::file_time_type time;
    std::uint64_t step;
  };
  std::vector<Found> found;
  const std::string start = fs::path(path).filename().string() + std::string(older_infix);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_of(path), error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(start) || name.size() == start.size() || name.size() > start.size() + 18) continue;
    const std::string digits = name.substr(start.size());
    if (digits.find_first_not_of("0123456789") != std::string::npos || !entry.is_regular_file(error)) continue;
    found.push_back({entry.path(), entry.last_write_time(error), std::stoull(digits)});
  }
  std::sort(found.begin(), found.end(),
            [](const Found& a, const Found& b) { return a.time != b.time ? a.time > b.time : a.step > b.step; });
  std::vector<fs::path> paths;
  for (const Found& one : found) paths.push_back(one.path);
  return paths;
}

// Steps of the checkpoint at `path`; nullopt if there is none.
std::optional<std::int64_t> steps_of_file(const std::string& path) {
  try {
    return steps_done(parse_checkpoint_info(SafetensorsReader(path).header(), path));
  } catch (const Error&) {
    return std::nullopt;  // no file, or no checkpoint: the new one replaces it
  }
}

// For file systems without hard links.
void copy_file(const std::string& from, const std::string& to) {
  const InputFile in(from);
  AtomicFile out(to);
  std::vector<std::byte> piece(std::size_t{1} << 20);
  for (std::uint64_t at = 0; at < in.bytes(); at += piece.size()) {
    const auto part = std::span(piece).first(std::min<std::uint64_t>(piece.size(), in.bytes() - at));
    in.read(at, part);
    out.write(part);
  }
  out.commit();
}

// Gives the file at `path` a second name; a file that has this name loses it.
void link_file(const std::string& path, const std::string& other) {
  const auto try_link = [&] {
    return ::linkat(AT_FDCWD, path.c_str(), AT_FDCWD, other.c_str(), AT_SYMLINK_FOLLOW) == 0;
  };
  if (try_link()) return;
  if (errno == EEXIST) {
    ::unlink(other.c_str());  // of the same step; if the process ends here, `path` still has the file
    if (try_link()) return;
  }
  copy_file(path, other);
}

// Upper bounds for names, shapes and offsets in a header.
constexpr std::uint64_t header_bytes_per_tensor = 256, header_bytes = 8192;

std::uint64_t file_bytes(std::initializer_list<std::vector<NamedTensor>> lists) {
  std::uint64_t bytes = header_bytes;
  for (const auto& list : lists) {
    for (const NamedTensor& t : list) bytes += t.tensor.bytes() + 3 * header_bytes_per_tensor;
  }
  return bytes;
}

/// Whole parameters, where the module has shards.
std::vector<NamedTensor> in_file(const Module& module, const std::vector<NamedTensor>& parameters) {
  const CutParameters cuts(module);
  std::vector<FileTensor> list;
  for (const NamedTensor& p : parameters) list.push_back(cuts.of_parameter(p));
  return wholes_of(list);
}

}  // namespace

std::int64_t count_in(const CheckpointInfo& info, const char* key) {
  const auto found = info.metadata.find(key);
  if (found == info.metadata.end()) return 0;
  const std::string& text = found->second;
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error == std::errc() && end == text.data() + text.size() && count >= 0) return count;
  throw ValueError(std::string("checkpoint: ") + key + ": expected a count, got " + quote(text));
}

std::int64_t steps_done(const CheckpointInfo& info) {
  return info.step_count - count_in(info, updates_before_key) + count_in(info, skipped_batches_key) +
         (info.scaler ? info.scaler->skipped_steps : 0);
}

void try_to_write(const char* what, const std::string& path) {
  if (path.empty()) return;
  try {
    AtomicFile file(path);
    file.write("x");
  } catch (const FileError& error) {
    const std::string folder = folder_of(path);
    std::error_code status;
    if (!std::filesystem::is_directory(folder, status)) {
      throw ValueError(std::string(what) + ": " + quote(path, 200) + ": expected a folder " + quote(folder, 200) +
                       ", got none; make it first");
    }
    std::string why = error.what();
    const std::string nowhere = ": at byte 0";  // the file could not be created
    if (const std::size_t at = why.find(nowhere); at != std::string::npos) why.erase(at, nowhere.size());
    throw ValueError(std::string(what) + ": " + why);
  }
}

void require_space(const char* what, const std::string& path, std::uint64_t needed_bytes, std::int64_t free_bytes) {
  if (free_bytes < 0 || needed_bytes <= static_cast<std::uint64_t>(free_bytes)) return;
  throw ValueError(std::string(what) + ": " + quote(path, 200) + ": " + memory::human_bytes(needed_bytes) +
                   " are needed, its folder has " + memory::human_bytes(static_cast<std::size_t>(free_bytes)) +
                   " free");
}

std::int64_t free_bytes_at(const std::string& path) {
  struct statvfs facts {};
  if (::statvfs(folder_of(path).c_str(), &facts) != 0 || facts.f_blocks == 0) return -1;
  const auto unit = static_cast<std::uint64_t>(facts.f_frsize);
  return static_cast<std::int64_t>(std::min<std::uint64_t>(facts.f_bavail, INT64_MAX / unit) * unit);
}

std::uint64_t weights_file_bytes(const Module& module) {
  return file_bytes({in_file(module, module.parameters()), module.buffers()});
}

std::uint64_t checkpoint_bytes(const Module& module, const optim::Optimizer& optimizer) {
  return file_bytes({in_file(module, checkpoint_parameters(module)), module.buffers()}) + optimizer.state_bytes();
}

void check_keeping(const char* what, const KeepOptions& options, std::int64_t steps, std::int64_t save_every,
                   std::uint64_t checkpoint_bytes) {
  if (options.path.empty()) return;
  const auto check = [&](const std::string& path) {
    check_kind({what, path, &file_kinds::checkpoint}, options.overwrites, "give another name, or remove it");
  };
  const std::vector<std::filesystem::path> all_older = older_of(options.path);
  check(options.path);
  if (options.keep > 1) std::for_each(all_older.begin(), all_older.end(), check);  // they may be removed
  try_to_write(what, options.path);
  // The new file is written while the kept ones exist.
  const std::int64_t saves = save_every > 0 ? steps / save_every + 1 : 1;
  const auto older = static_cast<std::int64_t>(all_older.size());
  const std::int64_t there = older + (std::filesystem::exists(options.path) ? 1 : 0);
  const std::int64_t more = std::max<std::int64_t>(1, std::min(saves, options.keep + 1 - there));
  require_space(what, options.path, static_cast<std::uint64_t>(more) * checkpoint_bytes, free_bytes_at(options.path));
}

CheckpointKeeper::CheckpointKeeper(KeepOptions options)
    : options_(std::move(options)), path_(options_.resumed), step_(options_.resumed_steps) {}

/// Gives the file a second name before it is replaced.
void CheckpointKeeper::keep_before(std::int64_t step) {
  const std::string& path = options_.path;
  const std::optional<std::int64_t> steps = steps_of_file(path);
  if (!steps) return;
  if (options_.keep > 1) {
    if (*steps == step) return;
    before_ = older_path(path, *steps);
    link_file(path, before_);
    return;
  }
  lock_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (lock_ < 0 || ::flock(lock_, LOCK_EX | LOCK_NB) != 0) return forget_before();
  const std::string name = free_temporary_name(path);
  if (::linkat(AT_FDCWD, path.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) return forget_before();
  before_ = name;
}

void CheckpointKeeper::forget_before() noexcept {
  if (lock_ >= 0) ::close(lock_);
  lock_ = -1;
  before_.clear();
}

void CheckpointKeeper::save(std::int64_t step, FunctionRef<void(const std::string&)> write) {
  if (!is_on()) return;
  confirm();
  keep_before(step);
  try {
    write(options_.path);
  } catch (...) {
    if (!before_.empty()) ::unlink(before_.c_str());  // it still has its first name
    forget_before();
    throw;
  }
  is_open_ = true;
  path_before_ = std::exchange(path_, options_.path);
  step_before_ = std::exchange(step_, step);
}

void CheckpointKeeper::confirm() noexcept {
  if (!is_open_) return;
  is_open_ = false;
  const std::int64_t keep = options_.keep;
  if (keep <= 1) {
    if (!before_.empty()) ::unlink(before_.c_str());
    return forget_before();
  }
  forget_before();
  try {
    const std::vector<std::filesystem::path> all = older_of(options_.path);
    for (std::size_t i = static_cast<std::size_t>(keep) - 1; i < all.size(); ++i) ::unlink(all[i].c_str());
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the next save removes them
  }
}

void CheckpointKeeper::take_back() noexcept {
  if (!is_open_) return;
  is_open_ = false;
  std::error_code error;
  const std::filesystem::path target = std::filesystem::canonical(options_.path, error);  // keeps symbolic links
  const std::string path = error ? options_.path : target.string();
  const bool is_back = before_.empty() ? ::unlink(path.c_str()) == 0 : ::rename(before_.c_str(), path.c_str()) == 0;
  forget_before();
  if (!is_back) return;
  path_ = std::move(path_before_);
  step_ = step_before_;
}

std::string CheckpointKeeper::text() const {
  if (path_.empty()) return "there is no checkpoint";
  return quote(path_, 200) + " holds step " + std::to_string(step_);
}

}  // namespace thimble::nn
