#pragma once
// The rows of an experiment as an HTML table.

#include <cstdint>
#include <string>

#include <thimble/bench/report/experiment.h>

namespace thimble::report {

/// A <table>: settings, the three byte figures (exact, with binary units below), measured - predicted (a check where it
/// is 0), predicted - theory with its named terms, further columns. Columns without any value are left out.
std::string html_table(const Experiment& experiment);

/// "+1,024", "-1,024", "0", with a true minus sign.
std::string signed_bytes(std::int64_t difference);

}  // namespace thimble::report
