#pragma once
// Dry runs that pictures of the book are drawn from.

#include <cstdint>
#include <string>

#include <thimble/bench/report/experiment.h>
#include <thimble/models/techniques/setup.h>

namespace thimble::bench {

/// The book's small GPT: 4 layers of width 64, 4 heads, 64 tokens, a batch of 8, AdamW.
models::Setup book_gpt();

/// A bar of what lives at the peak of a step of the setup, by a dry run.
report::Bar step_bar(const std::string& label, const models::Setup& setup);

}  // namespace thimble::bench
