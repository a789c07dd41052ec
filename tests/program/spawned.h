#pragma once
// Child processes that a test can kill at any moment, optionally as process 1 of a new namespace. There every child has
// the same process id, as in containers.

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace spawned_test {

/// A child's exit status, or -n if signal n ended it.
inline int ending(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status); }

/// Runs `body` in a copy of this process: its result, or -n if signal n ended it.
template <class Body>
int in_child(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return ending(status);
}

class Spawned {
 public:
  /// Runs `arguments` (the program first) with its output in two files. `is_first` makes it process 1 of a namespace.
  Spawned(const std::vector<std::string>& arguments, const std::string& out, const std::string& error,
          bool is_first = false) {
    std::vector<char*> argv;
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    int ids[2];  // a pipe for the program's id, as this process sees it
    if (::pipe2(ids, O_CLOEXEC) != 0) return;
    child_ = ::fork();
    if (child_ == 0) {
      if (!is_first) {
        tell(ids[1], ::getpid());
        execute(argv, out, error);
      }
      // The next child is the first process of the new namespace; this namespace has an id for it, too.
      if (::unshare(CLONE_NEWPID) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) ::_exit(126);
      const pid_t inner = ::fork();
      if (inner == 0) execute(argv, out, error);
      tell(ids[1], inner);
      int status = 0;
      ::waitpid(inner, &status, 0);
      if (WIFSIGNALED(status)) ::raise(WTERMSIG(status));
      ::_exit(WEXITSTATUS(status));
    }
    ::close(ids[1]);
    is_started_ = ::read(ids[0], &program_, sizeof program_) == sizeof program_;
    ::close(ids[0]);
  }
  Spawned(const Spawned&) = delete;
  Spawned& operator=(const Spawned&) = delete;
  ~Spawned() {
    if (child_ > 0) kill_and_wait();
  }

  /// False if the system allows no namespaces.
  bool is_started() const { return is_started_; }
  void send(int signal) const {
    if (program_ > 0) ::kill(program_, signal);  // an id of 0 would signal this process, too
  }
  int wait() {
    int status = 0;
    ::waitpid(child_, &status, 0);
    child_ = 0;
    return ending(status);
  }
  int kill_and_wait() {
    send(SIGKILL);
    return wait();
  }
  bool is_running() {
    int status = 0;
    if (child_ > 0 && ::waitpid(child_, &status, WNOHANG) == child_) {
      child_ = 0;
      ending_ = ending(status);
    }
    return child_ > 0;
  }
  /// Valid once is_running() is false.
  int last_ending() const { return ending_; }

 private:
  static void tell(int pipe, pid_t id) {
    if (::write(pipe, &id, sizeof id) != sizeof id) ::_exit(125);
  }
  [[noreturn]] static void execute(const std::vector<char*>& argv, const std::string& out, const std::string& error) {
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDOUT_FILENO);
    ::dup2(::open(error.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDERR_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }

  pid_t child_ = 0, program_ = 0;
  int ending_ = 0;
  bool is_started_ = false;
};

inline void sleep_ms(double ms) { std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms)); }

}  // namespace spawned_test
