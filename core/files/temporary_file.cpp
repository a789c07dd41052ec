#include <thimble/core/files/temporary_file.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <string_view>

namespace thimble {
namespace temporary_file_detail {

constexpr std::string_view ending = ".tmp";
constexpr std::size_t digit_count = 16;
constexpr std::size_t longest_name = 200;  // leaves room for the suffix within the 255 bytes of a name

std::string stem_of(const std::string& target) {
  return target.substr(target.find_last_of('/') + 1).substr(0, longest_name) + ".";
}

std::string digits_of(std::uint64_t number) {
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[number >> shift & 15];
  return text;
}

std::uint64_t system_random() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

bool is_temporary(std::string_view name, std::string_view stem) {
  if (name.size() != stem.size() + digit_count + ending.size()) return false;
  const std::string_view digits = name.substr(stem.size(), digit_count);
  return name.starts_with(stem) && name.ends_with(ending) &&
         digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Whether the name still refers to `descriptor`'s file.
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
  // For writing, because a network file system locks nothing else exclusively; O_NONBLOCK, because a pipe would wait.
  const int descriptor = ::openat(folder, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return false;
  struct stat facts {};
  const bool is_stale = ::fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode) &&
                        ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && is_there(folder, name, descriptor);
  const bool is_removed = is_stale && ::unlinkat(folder, name, 0) == 0;
  ::close(descriptor);
  return is_removed;
}

}  // namespace temporary_file_detail

std::string folder_of(const std::string& path) {
  const auto slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string free_temporary_name(const std::string& target) {
  namespace detail = temporary_file_detail;
  const std::string stem = folder_of(target) + "/" + detail::stem_of(target);
  return stem + detail::digits_of(detail::system_random()) + std::string(detail::ending);
}

TemporaryFile make_temporary_file(const std::string& target, const std::function<std::uint64_t()>& random) {
  namespace detail = temporary_file_detail;
  constexpr int most_tries = 100;
  int error = EEXIST;
  for (int i = 0; i < most_tries; ++i) {
    const std::string digits = detail::digits_of(random ? random() : detail::system_random());
    const std::string path = folder_of(target) + "/" + detail::stem_of(target) + digits + std::string(detail::ending);
    const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0 && detail::hold(path, descriptor)) return {path, descriptor, 0};
    error = descriptor >= 0 ? EEXIST : errno;
    if (descriptor >= 0) ::close(descriptor);
    if (error != EEXIST) return {path, -1, error};
  }
  return {target, -1, error};
}

int remove_stale_temporary_files(const std::string& target) noexcept {
  namespace detail = temporary_file_detail;
  try {
    DIR* const folder = ::opendir(folder_of(target).c_str());
    if (folder == nullptr) return 0;
    const std::string stem = detail::stem_of(target);
    int count = 0;
    while (const dirent* const entry = ::readdir(folder)) {
      if (detail::is_temporary(entry->d_name, stem)) count += detail::remove_if_stale(::dirfd(folder), entry->d_name);
    }
    ::closedir(folder);
    return count;
  } catch (const std::bad_alloc&) {
    return 0;  // left for the next search
  }
}

}  // namespace thimble
