#include <thimble/bench/commands/signals.h>

#include <unistd.h>

#include <atomic>

namespace thimble::bench {
namespace {

// Global, because a signal handler has no other state; lock-free, as signal safety requires.
std::atomic<int> stop{0};
std::atomic<bool> has_save{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

extern "C" void thimble_note_signal(int number) {
  if (number == SIGUSR1) {
    has_save.store(true);
    return;
  }
  int none = 0;
  if (!stop.compare_exchange_strong(none, number) && number == SIGINT) _exit(128 + SIGINT);
}

constexpr std::array<int, 4> numbers{SIGINT, SIGTERM, SIGHUP, SIGUSR1};

}  // namespace

StopSignals::StopSignals() {
  stop.store(0);
  has_save.store(false);
  struct sigaction action {};
  action.sa_handler = thimble_note_signal;
  action.sa_flags = SA_RESTART;  // resumes interrupted reads and writes
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    taken_[i].number = numbers[i];
    sigaction(numbers[i], nullptr, &taken_[i].before);
    if (taken_[i].before.sa_handler != SIG_IGN) sigaction(numbers[i], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  if (stop_signal() != 0) return;  // the process is about to end; later signals are noted and ignored
  for (const Taken& taken : taken_) sigaction(taken.number, &taken.before, nullptr);
}

nn::Wish StopSignals::wish() noexcept {
  if (stop_signal() != 0) return nn::Wish::stop;
  return has_save.exchange(false) ? nn::Wish::save : nn::Wish::go_on;
}

int StopSignals::stop_signal() const noexcept { return stop.load(); }

std::string signal_name(int number) {
  switch (number) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "signal " + std::to_string(number);
  }
}

}  // namespace thimble::bench
