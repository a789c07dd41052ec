#pragma once
// Experiments in their quick form, and checks of the process in every row on the CPU.

#include <string>

#include <thimble/bench/experiments/experiments.h>

#include "support/catch.h"
#include "support/model_runs.h"
#include "support/sanitizer.h"

/// A row that ran compares its process with the promise; any other row says why it cannot.
inline void check_processes(const thimble::report::Experiment& experiment) {
  namespace report = thimble::report;
  for (const report::Row& row : experiment.rows) {
    INFO(experiment.name << ", row " << &row - experiment.rows.data());
    const char* const otherwise = row.measured_bytes ? "the kernel does not reset the peak" : "nothing ran";
    CHECK((row.process_peak_bytes.has_value() || report::process_absence(row) == otherwise));
#ifndef THIMBLE_TEST_HAS_SANITIZER
    if (row.process_peak_bytes) CHECK(*row.process_peak_bytes <= row.process_promise_bytes.value());
#endif
  }
}

/// Runs the named experiment in its quick form and checks it.
inline thimble::report::Experiment quick(const std::string& name) {
  thimble::bench::ExperimentOptions options;
  options.is_quick = true;
  const thimble::testing::Threads alone;
  thimble::report::Experiment experiment =
      thimble::bench::run_experiment(*thimble::bench::select_experiments({name}).front(), options);
  thimble::report::check(experiment);
  check_processes(experiment);
  return experiment;
}
