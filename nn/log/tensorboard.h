#pragma once
// Writes scalars in TensorBoard's event-file format: records that frame serialized Event messages with checksums.
//
//   record = u64 length | u32 masked CRC-32C of the length | data | u32 masked CRC-32C of the data   (little-endian)
//   Event  = 1: double wall_time | 2: varint step | 3: string file_version (first record) | 5: Summary
//   Summary = 1: Value, Value = 1: string tag | 2: float simple_value
//
// Sources: TFRecord framing and event.proto / summary.proto of TensorFlow; RFC 3720 appendix B.4 for CRC-32C.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <thimble/memory/policies/ledger.h>

namespace thimble::tensorboard {

/// The form in which a record stores a checksum (core/files/crc32c.h): rotated right by 15 bits, plus 0xA282EAD8, so
/// that checksums of data that contains checksums do not degenerate.
std::uint32_t masked_crc32c(std::string_view bytes) noexcept;

/// One serialized Event with the scalar `value`. `wall_time` is in seconds since 1970.
std::string encode_scalar_event(double wall_time, std::int64_t step, std::string_view tag, float value);

/// `data` framed as one record, which is 16 bytes longer.
std::string encode_record(std::string_view data);

/// Writes scalars to a new event file in a folder that TensorBoard watches (`tensorboard --logdir FOLDER`). It buffers
/// records; `flush` hands whole records to the operating system. Not thread-safe.
class EventWriter {
 public:
  /// Makes the folder if missing, and a file events.out.tfevents.SECONDS.HOST.PID (plus .1, .2, ... if that name is
  /// taken), which begins with the version record. Throws FileError.
  explicit EventWriter(const std::string& folder);
  /// Flushes, but cannot report a failure: call `flush` first if it matters.
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  /// Adds a point to the curve `tag` ("loss", "bytes/activation"), stamped with the current time. The format holds
  /// single precision: byte counts above 2^24 are rounded to 24 significant bits. NaN and infinities are kept. Throws
  /// ValueError for an empty tag or one longer than 65,535 bytes; FileError if the buffer is full and cannot be
  /// written.
  void scalar(std::string_view tag, double value, std::int64_t step);

  /// Writes the buffer. Throws FileError with the offset; the records then stay buffered, and another flush overwrites
  /// a partial record.
  void flush();

  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
  std::string buffer_;
  std::uint64_t written_ = 0;
  int descriptor_ = -1;
};

}  // namespace thimble::tensorboard

// ---- Curves of a run for TensorBoard: losses, rates, and the bytes of every step by category.

namespace thimble::nn {

/// Values of a step.
struct StepCurves {
  std::int64_t step = 0;
  double loss = 0, rate = 0;
  double items_per_s = 0;  ///< omitted if 0
  std::optional<double> validation_loss, validation_accuracy;
};

class TrainingLog {
 public:
  /// Writes nothing without a folder. A folder that cannot be written sets error(), and does not fail the run.
  TrainingLog(const std::string& folder, std::shared_ptr<memory::Ledger> ledger);
  /// Resets the ledger's peak for the next step. A replay requests no bytes; it logs the bytes of the captured step.
  void begin_step(bool is_replay);
  void end_step(const StepCurves& curves);
  /// Why the log was given up; empty if it was not.
  const std::string& error() const noexcept { return error_; }

 private:
  void write(const StepCurves& curves);

  std::shared_ptr<memory::Ledger> ledger_;
  std::unique_ptr<tensorboard::EventWriter> writer_;
  std::string error_;
  bool is_replay_ = false;
  memory::CategoryBytes bytes_{};  // of the last step that requested bytes
};

}  // namespace thimble::nn
