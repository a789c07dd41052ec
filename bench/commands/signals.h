#pragma once
// Signals that ask a training run to end or to save. The handler notes them; the run checks them between steps.
//
//   SIGINT, SIGTERM, SIGHUP   finish the step, save, end with status 128 + the signal's number
//   SIGUSR1                   save and go on
//
// A second SIGINT ends the process at once. A signal that was ignored (nohup, a background job) stays ignored.

#include <array>
#include <string>

#include <signal.h>

#include <thimble/models/training/training.h>

namespace thimble::bench {

class StopSignals {
 public:
  /// Installs the handlers; the destructor restores the previous ones unless a signal asked for an end. Handlers belong
  /// to the process, so only one object may exist at a time.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The request of signals since the last call.
  nn::Wish wish() noexcept;
  /// The signal that asked for an end, or 0.
  int stop_signal() const noexcept;

 private:
  struct Taken {
    int number;
    struct sigaction before;
  };
  std::array<Taken, 4> taken_{};
};

/// "SIGTERM".
std::string signal_name(int number);

}  // namespace thimble::bench
