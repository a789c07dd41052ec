#include <thimble/bench/experiments/process_row.h>

#include <thimble/core/threads/parallel.h>

namespace thimble::bench {

ProcessBytes process_bytes(const nn::MemoryProfile& profile) {
  return {profile.peak_bytes, profile.outside, profile.process_peak_bytes};
}

ProcessBytes process_bytes(const models::TrainReport& report) {
  return {report.measured_peak_bytes, report.outside, report.process_peak_bytes};
}

PartWatch::PartWatch(memory::Device device) {
  if (device == cpu) watch_.emplace();
}

ProcessBytes PartWatch::bytes(const Arena& arena, std::size_t nodes) const {
  ProcessBytes bytes;
  bytes.arena_bytes = arena.statistics().peak_committed_bytes;
  if (!watch_) return bytes;
  bytes.outside = memory::outside_bytes(watch_->base(), {.threads = thread_count(), .nodes = nodes});
  bytes.peak_bytes = watch_->peak_bytes();
  return bytes;
}

void add_process(report::Row& row, std::size_t predicted_bytes, const ProcessBytes& measured) {
  if (row.process_peak_bytes && measured.peak_bytes == 0) return;
  if (measured.outside.total() == 0) {
    row.no_process = "the host's bytes are not those of a run on a GPU";
  } else if (measured.peak_bytes == 0) {
    row.no_process = "the kernel does not reset the peak";
  } else {
    const auto peak = static_cast<std::int64_t>(measured.peak_bytes);
    const auto promise = static_cast<std::int64_t>(predicted_bytes + measured.outside.total());
    if (row.process_peak_bytes && *row.process_promise_bytes - *row.process_peak_bytes <= promise - peak) return;
    row.process_peak_bytes = peak;
    row.process_promise_bytes = promise;
  }
}

}  // namespace thimble::bench
