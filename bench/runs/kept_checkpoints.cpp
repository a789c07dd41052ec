#include <thimble/bench/runs/kept_checkpoints.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include <thimble/bench/runs/checkpoints.h>
#include <thimble/bench/runs/units.h>
#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/files/file.h>
#include <thimble/core/files/temporary_file.h>
#include <thimble/nn/files/checkpoint_info.h>

namespace thimble::bench {
namespace kept_checkpoints_detail {

namespace fs = std::filesystem;

constexpr std::string_view infix = ".step-";

std::string older_path(const std::string& path, std::int64_t step) {
  return path + std::string(infix) + std::to_string(step);
}

// The older checkpoints of a path, newest first.
std::vector<fs::path> older_of(const std::string& path) {
  struct Found {
    fs::path path;
    fs::file_time_type time;
    std::uint64_t step;
  };
  std::vector<Found> found;
  const std::string start = fs::path(path).filename().string() + std::string(infix);
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

// Steps that the checkpoint at `path` has done; nothing where there is none.
std::optional<std::int64_t> steps_of_file(const std::string& path) {
  try {
    const nn::CheckpointInfo info = nn::parse_checkpoint_info(SafetensorsReader(path).header(), path);
    return info.step_count + (info.scaler ? info.scaler->skipped_steps : 0);
  } catch (const FileError&) {
    return std::nullopt;  // no file, or no checkpoint: it is replaced, as ever
  }
}

// For file systems that know no second name.
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

// Gives the file at `path` a second name, which is taken from another that has it.
void link_file(const std::string& path, const std::string& other) {
  const auto try_link = [&] {
    return ::linkat(AT_FDCWD, path.c_str(), AT_FDCWD, other.c_str(), AT_SYMLINK_FOLLOW) == 0;
  };
  if (try_link()) return;
  if (errno == EEXIST) {
    ::unlink(other.c_str());  // of the same step: should the process end here, `path` still has it
    if (try_link()) return;
  }
  copy_file(path, other);
}

// Names, shapes and offsets in a header, generously.
constexpr std::uint64_t header_bytes_per_tensor = 256, header_bytes = 8192;

}  // namespace kept_checkpoints_detail

void try_to_write(const char* flag, const std::string& path) {
  if (path.empty()) return;
  try {
    AtomicFile file(path);
    file.write("x");
  } catch (const FileError& error) {
    throw ValueError(std::string(flag) + ": " + error.what());
  }
}

void require_space(const char* flag, const std::string& path, std::uint64_t needed_bytes, std::int64_t free_bytes) {
  if (free_bytes < 0 || needed_bytes <= static_cast<std::uint64_t>(free_bytes)) return;
  throw ValueError(std::string(flag) + ": " + quote(path, 200) + ": " +
                   format_bytes(static_cast<std::int64_t>(needed_bytes)) + " are needed, its folder has " +
                   format_bytes(free_bytes) + " free");
}

std::int64_t free_bytes_at(const std::string& path) {
  struct statvfs facts {};
  if (::statvfs(folder_of(path).c_str(), &facts) != 0 || facts.f_blocks == 0) return -1;
  const auto unit = static_cast<std::uint64_t>(facts.f_frsize);
  return static_cast<std::int64_t>(std::min<std::uint64_t>(facts.f_bavail, INT64_MAX / unit) * unit);
}

std::uint64_t checkpoint_bytes(Training& training) {
  namespace detail = kept_checkpoints_detail;
  std::uint64_t bytes = detail::header_bytes + training.optimizer().state_bytes();
  for (const auto& list : {training.model().parameters(), training.model().buffers()}) {
    for (const nn::NamedTensor& t : list) bytes += t.tensor.bytes() + 3 * detail::header_bytes_per_tensor;
  }
  return bytes;
}

void check_saving(const TrainOptions& options, Training& training) {
  try_to_write("--save", options.save);
  try_to_write("--save-weights", options.save_weights);
  if (!options.save.empty()) {
    // The new one is written beside those that are kept.
    const std::int64_t saves = options.save_every > 0 ? options.steps / options.save_every + 1 : 1;
    const auto older = static_cast<std::int64_t>(kept_checkpoints_detail::older_of(options.save).size());
    const std::int64_t there = older + (std::filesystem::exists(options.save) ? 1 : 0);
    const std::int64_t more = std::max<std::int64_t>(1, std::min(saves, options.keep + 1 - there));
    require_space("--save", options.save, static_cast<std::uint64_t>(more) * checkpoint_bytes(training),
                  free_bytes_at(options.save));
  }
  if (!options.save_weights.empty()) {
    require_space("--save-weights", options.save_weights,
                  checkpoint_bytes(training) - training.optimizer().state_bytes(), free_bytes_at(options.save_weights));
  }
}

std::int64_t steps_done(Training& training) {
  const optim::GradScaler* const scaler = training.scaler();
  return training.optimizer().step_count() + (scaler != nullptr ? scaler->state().skipped_steps : 0);
}

CheckpointKeeper::CheckpointKeeper(const PreparedTraining& prepared)
    : prepared_(prepared), path_(prepared.options.resume), step_(prepared.first_step) {}

/// Gives the file that is about to be replaced a second name.
void CheckpointKeeper::keep_before(std::int64_t step) {
  namespace detail = kept_checkpoints_detail;
  const std::string& path = prepared_.options.save;
  const std::optional<std::int64_t> steps = detail::steps_of_file(path);
  if (!steps) return;
  if (prepared_.options.keep > 1) {
    if (*steps == step) return;
    before_ = detail::older_path(path, *steps);
    detail::link_file(path, before_);
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

void CheckpointKeeper::save(Training& training) {
  if (!is_on()) return;
  confirm();
  const std::int64_t step = steps_done(training);
  keep_before(step);
  try {
    if (training.optimizer().offloads_state()) training.rest();  // it comes here to be written
    save_checkpoint(training, prepared_);
  } catch (...) {
    if (!before_.empty()) ::unlink(before_.c_str());  // it has its first name still
    forget_before();
    throw;
  }
  is_open_ = true;
  path_before_ = std::exchange(path_, prepared_.options.save);
  step_before_ = std::exchange(step_, step);
}

void CheckpointKeeper::confirm() noexcept {
  namespace detail = kept_checkpoints_detail;
  if (!is_open_) return;
  is_open_ = false;
  const std::int64_t keep = prepared_.options.keep;
  if (keep <= 1) {
    if (!before_.empty()) ::unlink(before_.c_str());
    return forget_before();
  }
  forget_before();
  try {
    const std::vector<std::filesystem::path> all = detail::older_of(prepared_.options.save);
    for (std::size_t i = static_cast<std::size_t>(keep) - 1; i < all.size(); ++i) ::unlink(all[i].c_str());
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): they go the next time
  }
}

void CheckpointKeeper::take_back() noexcept {
  if (!is_open_) return;
  is_open_ = false;
  std::error_code error;
  const std::filesystem::path target = std::filesystem::canonical(prepared_.options.save, error);  // links stay
  const std::string path = error ? prepared_.options.save : target.string();
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

}  // namespace thimble::bench
