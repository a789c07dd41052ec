#include <thimble/core/files/file_stream.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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

std::vector<std::string> names_in(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error) throw FileError(folder, 0, file_stream_detail::reason("read the folder", error.value()));
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
