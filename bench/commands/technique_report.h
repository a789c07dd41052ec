#pragma once
// What further techniques would allow, as a plan's report prints it.

#include <string>

#include <thimble/models/planning/planning.h>

namespace thimble::bench {

/// A JSON list of the report's techniques.
std::string techniques_json_text(const models::PlanReport& report);

/// Prints a table on standard output; unless it `has_all`, with the number of known techniques that do not fit.
void print_techniques(const models::PlanReport& report, bool has_all);

}  // namespace thimble::bench
