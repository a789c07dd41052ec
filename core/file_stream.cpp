#include <thimble/core/file_stream.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include <thimble/core/error.h>

namespace thimble {

namespace file_stream_detail {

// One call moves at most this much: Linux caps a call just below 2 GiB, other systems refuse more.
constexpr std::size_t largest_call = std::size_t{1} << 30;

std::string reason(const char* action, int error) {
  return std::string("cannot ") + action + ": " + std::generic_category().message(error);
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// What a writer replaces: `path` itself, or what it links to.
std::string resolve(const std::string& path) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0) return path;
  std::string target = path;
  if (S_ISLNK(facts.st_mode)) {
    std::error_code error;
    target = std::filesystem::canonical(path, error).string();
    if (error) throw FileError(path, 0, "cannot follow the symbolic link: " + error.message());
    if (::stat(target.c_str(), &facts) != 0) throw FileError(path, 0, reason("examine", errno));
  }
  if (!S_ISREG(facts.st_mode)) throw FileError(path, 0, "is there and is not a regular file; not replaced");
  return target;
}

// Creates a file beside `target` that was not there before; the process's umask applies, as for any new file.
int create_beside(const std::string& target, std::string& temporary) {
  static std::atomic<unsigned> counter{0};
  for (int attempt = 0; attempt < 1000; ++attempt) {
    temporary = target + ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
    const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0 || errno != EEXIST) return descriptor;
  }
  return -1;
}

void sync_folder(const std::string& path, const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw FileError(path, 0, reason("open the folder", errno));
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  // Some file systems cannot sync a folder and say so with EINVAL: there is nothing more to be done there.
  if (error != 0 && error != EINVAL) throw FileError(path, 0, reason("sync the folder", error));
}

}  // namespace file_stream_detail

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer; it has no effect on regular files.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) throw FileError(path_, 0, file_stream_detail::reason("open", errno));
  struct stat facts {};
  const int error = ::fstat(descriptor_, &facts) == 0 ? 0 : errno;
  if (error != 0 || !S_ISREG(facts.st_mode)) {
    ::close(descriptor_);
    throw FileError(path_, 0, error != 0 ? file_stream_detail::reason("examine", error) : "is not a regular file");
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
    const std::size_t part = std::min(out.size(), file_stream_detail::largest_call);
    const ssize_t got = ::pread(descriptor_, out.data(), part, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw FileError(path_, offset, file_stream_detail::reason("read", errno));
    if (got == 0) throw FileError(path_, offset, "the file was cut while it was being read");
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

std::vector<std::byte> read_whole_file(const std::string& path, std::uint64_t most_bytes) {
  const InputFile file(path);
  if (file.bytes() > most_bytes)
    throw FileError(
        path, most_bytes,
        "the file has " + std::to_string(file.bytes()) + " bytes; allowed here: at most " + std::to_string(most_bytes));
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.bytes()));
  file.read(0, bytes);
  return bytes;
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), target_(file_stream_detail::resolve(path_)) {
  descriptor_ = file_stream_detail::create_beside(target_, temporary_);
  if (descriptor_ < 0) throw FileError(path_, 0, file_stream_detail::reason("create a file in this folder", errno));
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void AtomicFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (descriptor_ < 0) throw FileError(path_, offset, "write after commit or after a failed commit");
  while (!bytes.empty()) {
    const std::size_t part = std::min(bytes.size(), file_stream_detail::largest_call);
    const ssize_t put = ::pwrite(descriptor_, bytes.data(), part, static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) throw FileError(path_, offset, file_stream_detail::reason("write", put == 0 ? ENOSPC : errno));
    offset += static_cast<std::uint64_t>(put);
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
}

void AtomicFile::commit() {
  if (descriptor_ < 0) throw FileError(path_, 0, "commit is called once");
  int error = ::fsync(descriptor_) == 0 ? 0 : errno;
  // close can report a write error that was deferred (network file systems).
  if (::close(std::exchange(descriptor_, -1)) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(temporary_.c_str(), target_.c_str()) != 0) error = errno;
  if (error != 0) {
    discard();
    throw FileError(path_, 0, file_stream_detail::reason("finish the file", error));
  }
  temporary_.clear();
  file_stream_detail::sync_folder(path_, file_stream_detail::folder_of(target_));
}

}  // namespace thimble
