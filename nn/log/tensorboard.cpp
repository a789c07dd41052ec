#include <thimble/nn/log/tensorboard.h>

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/crc32c.h>

namespace thimble::tensorboard {
namespace {

template <class Integer>
void append_little_endian(std::string& out, Integer value) {
  for (std::size_t i = 0; i < sizeof(Integer); ++i) out += static_cast<char>((value >> (8 * i)) & 0xFF);
}

// Protocol buffers: a field starts with (number << 3 | wire type); wire types 0 varint, 1 64-bit, 2 length, 5 32-bit.
void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  out += static_cast<char>(value);
}

void append_text(std::string& out, char key, std::string_view text) {
  out += key;
  append_varint(out, text.size());
  out += text;
}

std::string encode_version_event(double wall_time) {
  std::string event("\x09", 1);
  append_little_endian(event, std::bit_cast<std::uint64_t>(wall_time));
  append_text(event, '\x1A', "brain.Event:2");
  return event;
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  for (char& c : name) {
    if (c == '/') c = '_';
  }
  return name;
}

constexpr std::size_t buffer_bytes = std::size_t{1} << 16;

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) noexcept { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u; }

std::string encode_scalar_event(double wall_time, std::int64_t step, std::string_view tag, float value) {
  std::string point;
  append_text(point, '\x0A', tag);
  point += '\x15';
  append_little_endian(point, std::bit_cast<std::uint32_t>(value));
  std::string summary;
  append_text(summary, '\x0A', point);

  std::string event("\x09", 1);
  append_little_endian(event, std::bit_cast<std::uint64_t>(wall_time));
  event += '\x10';
  append_varint(event, static_cast<std::uint64_t>(step));
  append_text(event, '\x2A', summary);
  return event;
}

std::string encode_record(std::string_view data) {
  std::string record;
  record.reserve(data.size() + 16);
  append_little_endian(record, static_cast<std::uint64_t>(data.size()));
  append_little_endian(record, masked_crc32c(record));
  record += data;
  append_little_endian(record, masked_crc32c(data));
  return record;
}

EventWriter::EventWriter(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw FileError(folder, 0, "cannot make the folder for event files: " + error.message());
  const double time = now_seconds();
  const std::string stem = folder + "/events.out.tfevents." + std::to_string(static_cast<std::int64_t>(time)) + "." +
                           host_name() + "." + std::to_string(::getpid());
  path_ = stem;
  for (int count = 1;; ++count) {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ >= 0) break;
    if (errno != EEXIST)
      throw FileError(path_, 0, std::string("cannot create the event file: ") + std::strerror(errno));
    path_ = stem + "." + std::to_string(count);
  }
  buffer_ = encode_record(encode_version_event(time));
  try {
    flush();
  } catch (...) {
    ::close(descriptor_);  // the destructor does not run if the constructor throws
    throw;
  }
}

EventWriter::~EventWriter() {
  try {
    flush();
  } catch (const FileError&) {
    // documented: a destructor cannot report it
  }
  ::close(descriptor_);
}

void EventWriter::scalar(std::string_view tag, double value, std::int64_t step) {
  if (tag.empty() || tag.size() > 65'535) {
    throw ValueError("EventWriter::scalar: a tag has 1 to 65,535 bytes, this one " + std::to_string(tag.size()));
  }
  buffer_ += encode_record(encode_scalar_event(now_seconds(), step, tag, static_cast<float>(value)));
  if (buffer_.size() >= buffer_bytes) flush();
}

void EventWriter::flush() {
  // Written at a position instead of appended: after a failure, the next flush starts again after the last whole
  // record.
  std::size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t count =
        ::pwrite(descriptor_, buffer_.data() + done, buffer_.size() - done, static_cast<off_t>(written_ + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw FileError(path_, written_ + done, std::string("cannot write events: ") + std::strerror(errno));
    done += static_cast<std::size_t>(count);
  }
  written_ += done;
  buffer_.clear();
}

}  // namespace thimble::tensorboard

namespace thimble::nn {

TrainingLog::TrainingLog(const std::string& folder, std::shared_ptr<memory::Ledger> ledger)
    : ledger_(std::move(ledger)) {
  if (folder.empty()) return;
  try {
    writer_ = std::make_unique<tensorboard::EventWriter>(folder);
  } catch (const FileError& error) {
    error_ = error.what();
  }
}

void TrainingLog::begin_step(bool is_replay) {
  is_replay_ = is_replay;
  if (writer_ && !is_replay) ledger_->reset_peak();
}

void TrainingLog::end_step(const StepCurves& curves) {
  if (!writer_) return;
  try {
    write(curves);
  } catch (const FileError& error) {
    error_ = error.what();
    writer_.reset();
  }
}

void TrainingLog::write(const StepCurves& curves) {
  const auto put = [&](const std::string& tag, double value) { writer_->scalar(tag, value, curves.step); };
  if (!std::isnan(curves.loss)) put("loss", curves.loss);  // a skipped batch has none
  if (curves.items_per_s > 0) put("rate", curves.items_per_s);
  put("learning_rate", curves.rate);
  if (!is_replay_) bytes_ = ledger_->peak_by_category();
  for (std::size_t i = 0; i < memory::category_count; ++i) {
    put("bytes/" + std::string(to_string(static_cast<memory::Category>(i))), static_cast<double>(bytes_[i]));
  }
  if (curves.validation_loss) put("validation_loss", *curves.validation_loss);
  if (curves.validation_accuracy) put("validation_accuracy", *curves.validation_accuracy);
  writer_->flush();
}

}  // namespace thimble::nn
