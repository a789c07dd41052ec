#include <thimble/memory/process/child_process.h>

#include <array>
#include <cerrno>
#include <exception>
#include <string_view>
#include <utility>

#include <sys/wait.h>
#include <unistd.h>

namespace thimble::memory {
namespace child_process_detail {

bool write_all(int file, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t count = ::write(file, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

bool read_all(int file, std::string& text) {
  std::array<char, 4096> piece;
  while (true) {
    const ssize_t count = ::read(file, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    if (count == 0) return true;
    text.append(piece.data(), static_cast<std::size_t>(count));
  }
}

/// Leaves at once: running destructors and flushing file buffers is the parent's job.
[[noreturn]] void run_child(int file, FunctionRef<std::string()> work) noexcept {
  try {
    ::_exit(write_all(file, work()) ? 0 : 1);
  } catch (...) {
    ::_exit(1);
  }
}

}  // namespace child_process_detail

std::optional<std::string> in_child_process(FunctionRef<std::string()> work, int* signal) {
  using namespace child_process_detail;
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return std::nullopt;
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    run_child(ends[1], work);
  }
  ::close(ends[1]);
  std::string result;
  bool is_whole = child > 0 && read_all(ends[0], result);
  ::close(ends[0]);
  int status = 0;
  pid_t ended = -1;
  while (child > 0 && (ended = ::waitpid(child, &status, 0)) < 0 && errno == EINTR) {
  }
  if (signal != nullptr) *signal = ended == child && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  is_whole = is_whole && ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return is_whole ? std::optional(std::move(result)) : std::nullopt;
}

}  // namespace thimble::memory
