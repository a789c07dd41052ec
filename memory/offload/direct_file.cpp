#include <thimble/memory/offload/direct_file.h>

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#if defined(__linux__)
#include <sys/vfs.h>
#endif

#include <thimble/core/error.h>

namespace thimble {
namespace direct_file_detail {

const char* const allowed = "; expected a folder on a disk whose file system can do direct I/O (ext4, xfs, btrfs)";

// The name of a file system that keeps its files in memory, or null.
const char* memory_file_system([[maybe_unused]] int descriptor) {
#if defined(__linux__)
  struct statfs facts {};
  if (fstatfs(descriptor, &facts) != 0) return nullptr;
  switch (static_cast<unsigned long>(facts.f_type) & 0xfffffffful) {
    case 0x01021994:
      return "tmpfs";
    case 0x858458f6:
      return "ramfs";
    case 0x958458f6:
      return "hugetlbfs";
    default:
      return nullptr;
  }
#else
  return nullptr;
#endif
}

// A nameless new file, for direct I/O, or -1 with errno.
int open_nameless(const std::string& folder) {
  std::string name = folder + "/thimble-offload-XXXXXX";
#if defined(O_DIRECT)
  const int descriptor = mkostemp(name.data(), O_DIRECT | O_CLOEXEC);
#else
  const int descriptor = mkstemp(name.data());
#endif
  const int error = errno;
  // open creates the file even where it refuses direct I/O.
  if (descriptor >= 0 || error == EINVAL) unlink(name.c_str());
#if !defined(O_DIRECT) && defined(F_NOCACHE)
  if (descriptor >= 0) fcntl(descriptor, F_NOCACHE, 1);
#endif
  errno = error;
  return descriptor;
}

}  // namespace direct_file_detail

DirectFile::DirectFile(const std::string& folder) : folder_(folder) {
  // Checks the kind of file system first: some refuse direct I/O with an unclear error.
  const int parent = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0) {
    throw FileError(folder, 0,
                    std::string("cannot offload there: ") + std::strerror(errno) + direct_file_detail::allowed);
  }
  const char* const in_memory = direct_file_detail::memory_file_system(parent);
  close(parent);
  if (in_memory != nullptr) {
    throw FileError(folder, 0,
                    std::string("cannot offload there: it is a ") + in_memory +
                        ", whose files take the memory that offloading is to free" + direct_file_detail::allowed);
  }
  descriptor_ = direct_file_detail::open_nameless(folder);
  if (descriptor_ < 0) {
    const std::string why = errno == EINVAL ? "its file system cannot do direct I/O" : std::strerror(errno);
    throw FileError(folder, 0, "cannot offload there: " + why + direct_file_detail::allowed);
  }
}

DirectFile::~DirectFile() { close(descriptor_); }

void DirectFile::reserve(std::uint64_t offset, std::uint64_t bytes) {
#if defined(__linux__)
  int error = 0;
  do {
    error = fallocate(descriptor_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  // A file system without preallocation: the file at least gets its length; writes will detect a full disk.
  if (error == EOPNOTSUPP) error = ftruncate(descriptor_, static_cast<off_t>(offset + bytes)) == 0 ? 0 : errno;
#else
  const int error = ftruncate(descriptor_, static_cast<off_t>(offset + bytes)) == 0 ? 0 : errno;
#endif
  if (error == 0) return;
  struct statvfs facts {};
  std::string free_bytes = "?";
  if (fstatvfs(descriptor_, &facts) == 0) free_bytes = std::to_string(std::uint64_t{facts.f_bavail} * facts.f_frsize);
  throw FileError(folder_, offset,
                  "no room for " + std::to_string(bytes) + " offloaded bytes: " + std::strerror(error) + "; " +
                      free_bytes + " bytes are free there");
}

int DirectFile::write(std::uint64_t offset, const std::byte* from, std::size_t bytes) noexcept {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t n = pwrite(descriptor_, from + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    // The rest of a short write must begin at a multiple again.
    const std::size_t whole = static_cast<std::size_t>(n) / alignment * alignment;
    if (whole == 0) return ENOSPC;
    done += whole;
  }
  return 0;
}

int DirectFile::read(std::uint64_t offset, std::byte* to, std::size_t bytes) noexcept {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t n = pread(descriptor_, to + done, bytes - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    const std::size_t whole = static_cast<std::size_t>(n) / alignment * alignment;
    if (whole == 0) return EIO;  // the file ends before the requested bytes
    done += whole;
  }
  return 0;
}

}  // namespace thimble
