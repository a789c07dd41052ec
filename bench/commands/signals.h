#pragma once
// Signals that ask a training run to end, or to save: they are noted, and looked at between two steps.
//
//   SIGINT, SIGTERM, SIGHUP   finish the step, save, end with status 128 + the signal's number
//   SIGUSR1                   save and go on
//
// A second SIGINT ends the process at once. A signal that is ignored (nohup, a job in the background) stays ignored.

#include <array>
#include <string>

#include <signal.h>

#include <thimble/models/training/training.h>

namespace thimble::bench {

class StopSignals {
 public:
  /// Takes the signals over; the destructor gives them back where none asked for an end. One object at a time, as
  /// handlers belong to the process.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// What the signals that came since the last call ask for.
  nn::Wish wish() noexcept;
  /// The signal that asked for an end; 0: none did.
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
