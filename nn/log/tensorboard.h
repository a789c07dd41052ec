#pragma once
// Scalars in TensorBoard's event-file format: a file of records, each a serialized Event message framed by checksums.
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
/// that the checksum of data that itself holds checksums is not degenerate.
std::uint32_t masked_crc32c(std::string_view bytes) noexcept;

/// One serialized Event that carries the scalar `value`. `wall_time` in seconds since 1970.
std::string encode_scalar_event(double wall_time, std::int64_t step, std::string_view tag, float value);

/// `data` framed as one record: 16 bytes longer.
std::string encode_record(std::string_view data);

/// Appends scalars to a new event file in a folder that TensorBoard watches (`tensorboard --logdir FOLDER`). Records
/// are buffered; `flush` hands whole records to the operating system. Not thread-safe.
class EventWriter {
 public:
  /// Makes the folder when it is missing, and in it events.out.tfevents.SECONDS.HOST.PID (with .1, .2, ... appended
  /// when that name is taken) that begins with the version record. Throws FileError.
  explicit EventWriter(const std::string& folder);
  /// Flushes; a failure here cannot be reported, so call `flush` first where it matters.
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  /// One point of the curve `tag` ("loss", "bytes/activation"), stamped with the current time. The format holds single
  /// precision: byte counts above 2^24 are rounded to 24 significant bits. NaN and infinities are kept as they are.
  /// Throws ValueError for an empty tag or one longer than 65,535 bytes; FileError when the buffer is full and cannot
  /// be written.
  void scalar(std::string_view tag, double value, std::int64_t step);

  /// Writes what is buffered. Throws FileError with the offset; the records then stay buffered and flush can be tried
  /// again, which overwrites a record that was cut.
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

/// What is written of a step.
struct StepCurves {
  std::int64_t step = 0;
  double loss = 0, rate = 0;
  double items_per_s = 0;  ///< 0: not known, and not written
  std::optional<double> validation_loss, validation_accuracy;
};

class TrainingLog {
 public:
  /// Without a folder nothing is written. A folder that cannot be written to is an error() of the log, not of the run.
  TrainingLog(const std::string& folder, std::shared_ptr<Ledger> ledger);
  /// From here on the ledger's peak is that of the next step. A replay asks for no bytes and needs those of the step
  /// that was recorded.
  void begin_step(bool is_replay);
  void end_step(const StepCurves& curves);
  /// Why it was given up; empty: it was not.
  const std::string& error() const noexcept { return error_; }

 private:
  void write(const StepCurves& curves);

  std::shared_ptr<Ledger> ledger_;
  std::unique_ptr<tensorboard::EventWriter> writer_;
  std::string error_;
  bool is_replay_ = false;
  CategoryBytes bytes_{};  // of the last step that asked for them
};

}  // namespace thimble::nn
