#include <thimble/core/files/file.h>
#include <thimble/core/files/file_stream.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

#include <thimble/core/error.h>

namespace thimble {

namespace {

constexpr std::string_view ending = ".tmp";
constexpr std::size_t suffix_digits = 16;
constexpr std::size_t longest_stem = 200;  // leaves room for the suffix within the 255 bytes of a name

std::string stem_of(const std::string& target) {
  return target.substr(target.find_last_of('/') + 1).substr(0, longest_stem) + ".";
}

std::string suffix_of(std::uint64_t number) {
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[number >> shift & 15];
  return text;
}

std::uint64_t system_random() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

bool is_temporary(std::string_view name, std::string_view stem) {
  if (name.size() != stem.size() + suffix_digits + ending.size()) return false;
  const std::string_view digits = name.substr(stem.size(), suffix_digits);
  return name.starts_with(stem) && name.ends_with(ending) &&
         digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Whether `name` still refers to the descriptor's file.
bool is_there(int folder, const char* name, int descriptor) {
  struct stat held {
  }, named{};
  return ::fstat(descriptor, &held) == 0 && ::fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

// Locks a new file. False when a search for stale files locked or removed it first.
bool hold(const std::string& path, int descriptor) {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  return is_there(AT_FDCWD, path.c_str(), descriptor);
}

bool remove_if_stale(int folder, const char* name) {
  // Opened for writing, because network file systems lock only such files exclusively. O_NONBLOCK: a pipe would wait.
  const int descriptor = ::openat(folder, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return false;
  struct stat facts {};
  const bool is_stale = ::fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode) &&
                        ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && is_there(folder, name, descriptor);
  const bool is_removed = is_stale && ::unlinkat(folder, name, 0) == 0;
  ::close(descriptor);
  return is_removed;
}

}  // namespace

std::string folder_of(const std::string& path) {
  const auto slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string free_temporary_name(const std::string& target) {
  const std::string stem = folder_of(target) + "/" + stem_of(target);
  return stem + suffix_of(system_random()) + std::string(ending);
}

TemporaryFile make_temporary_file(const std::string& target, const std::function<std::uint64_t()>& random) {
  constexpr int most_tries = 100;
  int error = EEXIST;
  for (int i = 0; i < most_tries; ++i) {
    const std::string digits = suffix_of(random ? random() : system_random());
    const std::string path = folder_of(target) + "/" + stem_of(target) + digits + std::string(ending);
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0 && hold(path, descriptor)) return {path, descriptor, 0};
    error = descriptor >= 0 ? EEXIST : errno;
    if (descriptor >= 0) ::close(descriptor);
    if (error != EEXIST) return {path, -1, error};
  }
  return {target, -1, error};
}

int remove_stale_temporary_files(const std::string& target) noexcept {
  try {
    DIR* const folder = ::opendir(folder_of(target).c_str());
    if (folder == nullptr) return 0;
    const std::string stem = stem_of(target);
    int count = 0;
    while (const dirent* const entry = ::readdir(folder)) {
      if (is_temporary(entry->d_name, stem)) count += remove_if_stale(::dirfd(folder), entry->d_name);
    }
    ::closedir(folder);
    return count;
  } catch (const std::bad_alloc&) {
    return 0;  // left for the next search
  }
}

namespace {

std::string followed(const std::string& path) {
  char* resolved = ::realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return path;
  std::string result(resolved);
  std::free(resolved);
  return result;
}

/// fsyncs the path's folder, which makes a new or removed name durable. Returns null, or the failed action with errno.
const char* keep_name(const std::string& path) {
  const int folder = ::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return "cannot open its folder for fsync";
  const int error = ::fsync(folder) == 0 ? 0 : errno;
  ::close(folder);
  errno = error;
  // EINVAL: this file system keeps no folder state.
  return error == 0 || error == EINVAL ? nullptr : "cannot fsync its folder";
}

}  // namespace

void AtomicFile::fail(const std::string& what, int error) const {
  throw FileError(path_, size_, what + ": " + std::strerror(error));
}

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  if (path.find('\0') != std::string::npos) throw FileError(path.c_str(), 0, "expected a name without NUL");
  if (path.empty()) throw FileError(path, 0, "cannot write a file without a name");
  struct stat status {};
  mode_t mode = 0;
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists) {
    if (!S_ISREG(status.st_mode)) throw FileError(path, 0, "cannot replace it: not a regular file");
    mode = status.st_mode & 07777;
  } else if (errno != ENOENT) {
    fail("cannot write", errno);
  } else if (::lstat(path.c_str(), &status) == 0) {
    throw FileError(path, 0, "cannot follow the symbolic link: its target does not exist");
  }
  target_ = exists ? followed(path) : path;
  remove_stale_temporary_files(target_);
  TemporaryFile temporary = make_temporary_file(target_);
  if (temporary.descriptor < 0) fail("cannot create " + temporary.path, temporary.error);
  descriptor_ = temporary.descriptor;
  temporary_ = std::move(temporary.path);
  // Best effort: another owner's file may forbid it, and the content matters more than the bits.
  if (exists) static_cast<void>(::fchmod(descriptor_, mode));
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  if (descriptor_ >= 0) ::close(descriptor_);
}

void AtomicFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (descriptor_ < 0) throw FileError(path_, offset, "cannot write after commit");
  while (!bytes.empty()) {
    // Some systems refuse a single write of 2 GiB or more.
    const std::size_t part = bytes.size() < (std::size_t{1} << 30) ? bytes.size() : std::size_t{1} << 30;
    const ssize_t count = ::pwrite(descriptor_, bytes.data(), part, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw FileError(path_, offset, std::string("cannot write: ") + std::strerror(errno));
    offset += static_cast<std::uint64_t>(count);
    if (offset > size_) size_ = offset;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

void AtomicFile::commit() {
  if (descriptor_ < 0) throw FileError(path_, size_, "cannot commit twice");
  if (::fsync(descriptor_) != 0) fail("cannot fsync", errno);
  // Rename before closing: the lock keeps other processes from removing it as stale. fsync has reported I/O errors.
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("cannot rename " + temporary_, errno);
  temporary_.clear();
  ::close(descriptor_);
  descriptor_ = -1;
  if (const char* const what = keep_name(target_)) fail(what, errno);
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0) {
    if (errno == ENOENT) return;
    throw FileError(path, 0, std::string("cannot remove: ") + std::strerror(errno));
  }
  const char* const what = keep_name(path);
  if (what != nullptr) throw FileError(path, 0, std::string(what) + ": " + std::strerror(errno));
}

void write_file_atomically(const std::string& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void write_file_atomically(const std::string& path, std::string_view text) {
  write_file_atomically(path, std::as_bytes(std::span(text.data(), text.size())));
}

namespace {

// One call moves at most this much: Linux caps a call just below 2 GiB, other systems refuse more.
constexpr std::size_t largest_call = std::size_t{1} << 30;

std::string reason(const char* action, int error) {
  return std::string("cannot ") + action + ": " + std::generic_category().message(error);
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  if (path_.find('\0') != std::string::npos) throw FileError(path_.c_str(), 0, "expected a name without NUL");
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it has no effect on regular files.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) throw FileError(path_, 0, reason("open", errno));
  struct stat facts {};
  const int error = ::fstat(descriptor_, &facts) == 0 ? 0 : errno;
  if (error != 0 || !S_ISREG(facts.st_mode)) {
    ::close(descriptor_);
    throw FileError(path_, 0, error != 0 ? reason("examine", error) : "is not a regular file");
  }
  bytes_ = static_cast<std::uint64_t>(facts.st_size);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(other.bytes_), descriptor_(std::exchange(other.descriptor_, -1)) {}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (offset > bytes_ || out.size() > bytes_ - offset)
    throw FileError(path_, offset,
                    std::to_string(out.size()) + " bytes wanted, the file ends at byte " + std::to_string(bytes_));
  while (!out.empty()) {
    const std::size_t part = std::min(out.size(), largest_call);
    const ssize_t got = ::pread(descriptor_, out.data(), part, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError(path_, offset, reason("read", errno));
    if (got == 0) throw FileError(path_, offset, "the file was cut while it was being read");
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

std::vector<std::string> names_in(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error) throw FileError(folder, 0, reason("read the folder", error.value()));
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::byte> read_whole_file(const std::string& path, std::uint64_t most_bytes) {
  const InputFile file(path);
  if (file.bytes() > most_bytes)
    throw FileError(
        path, most_bytes,
        "the file has " + std::to_string(file.bytes()) + " bytes; expected at most " + std::to_string(most_bytes));
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.bytes()));
  file.read(0, bytes);
  return bytes;
}

}  // namespace thimble
