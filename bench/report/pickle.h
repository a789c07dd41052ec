#pragma once
// A writer of Python pickles, protocol 2 (PEP 307).

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace thimble::report {

/// The pickle of objects (dictionaries), arrays (lists), integers of 64 bits and text. Text is written once and
/// referred to after that (the pickle's memo). Throws ValueError for other values.
std::string write_pickle(const nlohmann::ordered_json& value);

}  // namespace thimble::report
