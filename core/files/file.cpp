#include <thimble/core/files/file.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/temporary_file.h>

namespace thimble {
namespace file_detail {

std::string followed(const std::string& path) {
  char* resolved = ::realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return path;
  std::string result(resolved);
  std::free(resolved);
  return result;
}

}  // namespace file_detail

void AtomicFile::fail(const std::string& what, int error) const {
  throw FileError(path_, size_, what + ": " + std::strerror(error));
}

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
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
  target_ = exists ? file_detail::followed(path) : path;
  remove_stale_temporary_files(target_);
  TemporaryFile temporary = make_temporary_file(target_);
  if (temporary.descriptor < 0) fail("cannot create " + temporary.path, temporary.error);
  descriptor_ = temporary.descriptor;
  temporary_ = std::move(temporary.path);
  // Best effort: a foreign owner may forbid it, and the content matters more than the bits.
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
  // Rename before closing: the lock keeps others from removing it as stale. fsync has already reported I/O errors.
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("cannot rename " + temporary_, errno);
  temporary_.clear();
  ::close(descriptor_);
  descriptor_ = -1;
  const int folder = ::open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) fail("cannot open its folder for fsync", errno);
  const int error = ::fsync(folder) == 0 ? 0 : errno;
  ::close(folder);
  // EINVAL: this file system has no folder state to make durable.
  if (error != 0 && error != EINVAL) fail("cannot fsync its folder", error);
}

void write_file_atomically(const std::string& path, std::span<const std::byte> bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void write_file_atomically(const std::string& path, std::string_view text) {
  write_file_atomically(path, std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace thimble
