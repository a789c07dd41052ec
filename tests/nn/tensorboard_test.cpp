#include "support/catch.h"
#include "support/skip.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <unistd.h>

#include <thimble/core/error.h>
#include <thimble/core/files/crc32c.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/memory/stack.h>
#include <thimble/models/training/training.h>
#include <thimble/nn/log/tensorboard.h>

#include "support/files.h"
#include "support/trained.h"

namespace {

namespace fs = std::filesystem;
using thimble::tensorboard::EventWriter;

struct TempFolder {
  TempFolder() {
    std::string pattern = (fs::temp_directory_path() / "thimble-events-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  fs::path path;
};

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

// ---- A reader that shares no code with the writer: bitwise CRC, cursor over protocol buffers. ----

struct Cursor {
  std::string bytes;
  std::size_t at = 0;

  bool done() const { return at == bytes.size(); }
  std::string take(std::uint64_t count) {
    if (count > bytes.size() - at) throw std::runtime_error("cut off");
    at += count;
    return bytes.substr(at - count, count);
  }
  template <class T>
  T number() {
    const std::string raw = take(sizeof(T));
    T value;
    std::memcpy(&value, raw.data(), sizeof(T));
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    throw std::runtime_error("varint too long");
  }
};

std::uint32_t slow_masked_crc(const std::string& bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc % 2 != 0 ? crc / 2 ^ 0x82F63B78 : crc / 2;
  }
  crc = ~crc;
  return (crc / 32768 | crc << 17) + 0xA282EAD8;
}

struct Event {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string version;
  std::string tag;
  std::optional<float> value;
};

void read_value(Cursor cursor, Event& event) {
  while (!cursor.done()) {
    const std::uint64_t key = cursor.varint();
    if (key == (1 << 3 | 2)) {
      event.tag = cursor.take(cursor.varint());
    } else if (key == (2 << 3 | 5)) {
      event.value = cursor.number<float>();
    } else {
      throw std::runtime_error("field of Value");
    }
  }
}

Event read_event(Cursor cursor) {
  Event event;
  while (!cursor.done()) {
    const std::uint64_t key = cursor.varint();
    if (key == (1 << 3 | 1)) {
      event.wall_time = cursor.number<double>();
    } else if (key == (2 << 3 | 0)) {
      event.step = static_cast<std::int64_t>(cursor.varint());
    } else if (key == (3 << 3 | 2)) {
      event.version = cursor.take(cursor.varint());
    } else if (key == (5 << 3 | 2)) {
      Cursor summary{cursor.take(cursor.varint())};
      if (summary.varint() != (1 << 3 | 2)) throw std::runtime_error("field of Summary");
      read_value({summary.take(summary.varint())}, event);
      if (!summary.done()) throw std::runtime_error("bytes after the value");
    } else {
      throw std::runtime_error("field of Event");
    }
  }
  return event;
}

std::vector<Event> read_events(const std::string& bytes) {
  std::vector<Event> events;
  Cursor file{bytes};
  while (!file.done()) {
    const std::string length = file.take(8);
    if (file.number<std::uint32_t>() != slow_masked_crc(length)) throw std::runtime_error("checksum of a length");
    const std::string data = file.take(Cursor{length}.number<std::uint64_t>());
    if (file.number<std::uint32_t>() != slow_masked_crc(data)) throw std::runtime_error("checksum of data");
    events.push_back(read_event({data}));
  }
  return events;
}

// The folder tests/oracle: relative to this file or, when the compiler got a relative path, found upwards from the
// working folder.
fs::path oracle_folder() {
  const fs::path beside = fs::path(__FILE__).parent_path().parent_path() / "oracle";
  if (fs::exists(beside)) return beside;
  for (fs::path folder = fs::current_path();; folder = folder.parent_path()) {
    if (fs::exists(folder / "tests" / "oracle")) return folder / "tests" / "oracle";
    if (folder == folder.parent_path()) return beside;
  }
}

struct Output {
  int exit_code = -1;
  std::string text;
};

Output run(const std::string& command) {
  Output output;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return output;
  std::array<char, 4096> part{};
  for (std::size_t count; (count = std::fread(part.data(), 1, part.size(), pipe)) > 0;) {
    output.text.append(part.data(), count);
  }
  const int status = ::pclose(pipe);
  output.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

}  // namespace

TEST_CASE("tensorboard: checksums match published values", "[tensorboard]") {
  struct Row {
    std::string bytes;
    std::uint32_t crc;
  };
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending += static_cast<char>(i);
  const std::vector<Row> rows = {{"123456789", 0xE3069283},
                                 {"", 0},
                                 {std::string(32, '\0'), 0x8A9136AA},    // RFC 3720, B.4
                                 {std::string(32, '\xFF'), 0x62A8AB43},  // RFC 3720, B.4
                                 {ascending, 0x46DD794E}};               // RFC 3720, B.4
  for (const Row& row : rows) {
    CHECK(thimble::crc32c(row.bytes) == row.crc);
    CHECK(thimble::tensorboard::masked_crc32c(row.bytes) == slow_masked_crc(row.bytes));
  }
}

TEST_CASE("tensorboard: an event has the known bytes", "[tensorboard]") {
  const std::string event = thimble::tensorboard::encode_scalar_event(1, 7, "loss", 1.5f);
  CHECK(event == from_hex("09000000000000f03f10072a0d0a0b0a046c6f7373150000c03f"));
  const std::string record = thimble::tensorboard::encode_record(event);
  CHECK(record.size() == event.size() + 16);
  const std::vector<Event> events = read_events(record);
  REQUIRE(events.size() == 1);
  CHECK(events[0].wall_time == 1);
  CHECK(events[0].step == 7);
  CHECK(events[0].tag == "loss");
  CHECK(events[0].value == 1.5f);
  for (std::size_t i = 0; i < record.size(); ++i) {  // every flipped byte is noticed
    std::string bad = record;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    CHECK_THROWS_AS(read_events(bad), std::runtime_error);
  }
}

TEST_CASE("tensorboard: a file reads back as written", "[tensorboard]") {
  struct Row {
    std::string tag;
    double value;
    std::int64_t step;
  };
  const std::vector<Row> rows = {
      {"loss", 2.5, 0},
      {"loss", 0, 1},
      {"loss", -1e-30, 127},
      {"loss", std::numeric_limits<double>::infinity(), 128},
      {"bytes/activation", 5'357'971'701.0, 300},
      {"a tag with spaces / and \xC3\xA4", 1e300, std::int64_t{1} << 40},  // 1e300 is infinite in single precision
      {std::string(300, 't'), 16'777'217, -1},                             // 2^24 + 1 rounds to 2^24
  };
  const TempFolder folder;
  const std::string logs = (folder.path / "run" / "1").string();
  EventWriter writer(logs);
  CHECK(read_events(files_test::read_text_file(writer.path())).size() ==
        1);  // a folder with a fresh file is a valid run
  for (const Row& row : rows) writer.scalar(row.tag, row.value, row.step);
  writer.flush();
  const std::vector<Event> events = read_events(files_test::read_text_file(writer.path()));
  REQUIRE(events.size() == rows.size() + 1);
  CHECK(events[0].version == "brain.Event:2");
  CHECK_FALSE(events[0].value.has_value());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(events[i + 1].tag == rows[i].tag);
    CHECK(events[i + 1].step == rows[i].step);
    CHECK(events[i + 1].value == static_cast<float>(rows[i].value));
    CHECK(events[i + 1].wall_time >= events[i].wall_time);
  }
  CHECK(events[1].wall_time > 1.6e9);  // seconds since 1970
}

TEST_CASE("tensorboard: the curves of a run are those that its observer is told", "[tensorboard]") {
  const TempFolder folder;
  thimble::models::RunOptions o;
  o.setup.model = "char-gpt", o.setup.batch = 2;
  o.setup.sizes.layers = 1, o.setup.sizes.heads = 2, o.setup.sizes.width = 16, o.setup.sizes.sequence = 8;
  o.data = "synthetic", o.steps = 5, o.eval_every = 2, o.eval_batches = 1, o.schedule = "cosine";
  o.log = (folder.path / "run").string();
  std::vector<thimble::nn::Progress> told;
  std::vector<thimble::memory::CategoryBytes> peaks, now;  // of the step, and at its end
  std::shared_ptr<thimble::memory::Ledger> ledger;
  thimble::models::Engine(o).run(
      [&](const thimble::nn::Progress& p) {
        told.push_back(p);
        peaks.push_back(ledger->peak_by_category());
        now.push_back(ledger->bytes_by_category());
      },
      [&](const thimble::memory::Stack& stack) { ledger = stack.ledger; });
  std::vector<Event> events;
  for (const auto& file : fs::directory_iterator(o.log))
    events = read_events(files_test::read_text_file(file.path().string()));
  const auto curve = [&](const std::string& tag) {
    std::vector<std::pair<std::int64_t, float>> points;
    for (const Event& event : events) {
      if (event.tag == tag) points.emplace_back(event.step, event.value.value());
    }
    return points;
  };
  std::vector<std::pair<std::int64_t, float>> losses, rates, validation;
  for (const thimble::nn::Progress& p : told) {
    losses.emplace_back(p.step, static_cast<float>(p.loss));
    rates.emplace_back(p.step, static_cast<float>(p.rate));
    if (p.evaluation) validation.emplace_back(p.step, static_cast<float>(p.evaluation->loss));
  }
  CHECK(curve("loss") == losses);
  CHECK(curve("learning_rate") == rates);
  CHECK(curve("validation_loss") == validation);
  CHECK(validation.size() == 3);  // after 2, 4 and 5 steps
  for (std::size_t c = 0; c < thimble::memory::category_count; ++c) {
    std::vector<std::pair<std::int64_t, float>> bytes;
    for (std::size_t i = 0; i < told.size(); ++i) bytes.emplace_back(told[i].step, static_cast<float>(peaks[i][c]));
    const std::string name(to_string(static_cast<thimble::memory::Category>(c)));
    INFO(name);
    CHECK(curve("bytes/" + name) == bytes);
  }
  CHECK(peaks != now);  // activations are freed when a step ends
}

TEST_CASE("tensorboard: a step's log has the curves that it knows, and no others", "[tensorboard]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const struct {
    thimble::nn::StepCurves curves;
    std::string tags;
  } rows[] = {
      {{.step = 1, .loss = 2, .rate = 3, .items_per_s = 4, .validation_loss = {}, .validation_accuracy = {}},
       "loss=2 rate=4 learning_rate=3 "},
      {{.step = 2, .loss = nan, .rate = 0, .items_per_s = 4, .validation_loss = 5, .validation_accuracy = {}},
       "rate=4 learning_rate=0 validation_loss=5 "},
      {{.step = 3, .loss = 0, .rate = 3, .items_per_s = 0, .validation_loss = {}, .validation_accuracy = 0.5},
       "loss=0 learning_rate=3 validation_accuracy=0.5 "},
  };
  for (const auto& row : rows) {
    const TempFolder folder;
    thimble::nn::TrainingLog log(folder.path.string(), thimble::memory::make_resource(thimble::cpu).ledger);
    log.begin_step(false);
    log.end_step(row.curves);
    std::ostringstream tags;
    for (const auto& file : fs::directory_iterator(folder.path)) {
      for (const Event& event : read_events(files_test::read_text_file(file.path().string()))) {
        if (!event.value || event.tag.starts_with("bytes/")) continue;
        CHECK(event.step == row.curves.step);
        tags << event.tag << "=" << *event.value << " ";
      }
    }
    CHECK(tags.str() == row.tags);
  }
}

TEST_CASE("tensorboard: the peak of a step is its own", "[tensorboard]") {
  using namespace thimble;
  const TempFolder folder;
  const memory::Stack stack = memory::make_resource(cpu);
  nn::TrainingLog log(folder.path.string(), stack.ledger);
  const ResourceScope scope(stack.top);
  for (const std::int64_t bytes : {1 << 20, 1 << 16}) {
    log.begin_step(false);
    Tensor::empty({bytes}, DType::u8, cpu, memory::Category::activation);
    log.end_step({});
  }
  log.begin_step(true);  // a captured step allocates nothing: it reports the previous step's bytes
  CHECK(stack.ledger->max_allocated() == 1 << 16);
  Tensor::empty({1 << 18}, DType::u8, cpu, memory::Category::activation);
  log.end_step({});
  std::vector<float> peaks;
  for (const auto& file : fs::directory_iterator(folder.path)) {
    for (const Event& event : read_events(files_test::read_text_file(file.path().string()))) {
      if (event.tag == "bytes/activation") peaks.push_back(event.value.value());
    }
  }
  CHECK(peaks == std::vector<float>{1 << 20, 1 << 16, 1 << 16});
}

TEST_CASE("tensorboard: names, buffering and refusals", "[tensorboard]") {
  const TempFolder folder;
  const std::string logs = folder.path.string();
  std::string first_path;
  {
    EventWriter first(logs);
    EventWriter second(logs);  // same second and process, yet another file
    first_path = first.path();
    CHECK(first.path() != second.path());
    CHECK_NOTHROW(second.scalar(std::string(65'535, 't'), 1, 1));
    const std::string name = fs::path(first_path).filename().string();
    CHECK(name.rfind("events.out.tfevents.", 0) == 0);
    CHECK(name.find(std::string(".") + std::to_string(::getpid())) != std::string::npos);
    CHECK_THROWS_AS(first.scalar("", 1, 1), thimble::ValueError);
    CHECK_THROWS_AS(first.scalar(std::string(65'536, 't'), 1, 1), thimble::ValueError);
    for (int step = 0; step < 5'000; ++step) first.scalar("loss", step, step);
    const auto so_far = read_events(files_test::read_text_file(first_path)).size();
    CHECK(so_far > 1'000);  // a full buffer is written at once
    CHECK(so_far < 5'001);
  }
  CHECK(read_events(files_test::read_text_file(first_path)).size() == 5'001);  // the destructor writes the rest
  CHECK_THROWS_AS(EventWriter(first_path), thimble::FileError);  // a file stands where the folder should be
}

TEST_CASE("tensorboard: TensorBoard's own reader sees the same scalars", "[tensorboard]") {
  const char* python = std::getenv("THIMBLE_PYTHON");
  if (python == nullptr) {
    thimble_test::skip("THIMBLE_PYTHON does not name a Python with the package tensorboard");
    return;
  }
  const fs::path script = oracle_folder() / "read_tensorboard.py";
  REQUIRE(fs::exists(script));
  const TempFolder folder;
  std::ostringstream expected;
  {
    EventWriter writer(folder.path.string());
    expected << "file_version 2.0\n";
    for (const char* tag : {"bytes/activation", "loss", "rate"}) {
      for (int step = 0; step < 50; ++step) {
        const float value = 1000.0f * std::exp(-0.1f * static_cast<float>(step));
        writer.scalar(tag, static_cast<double>(value), step * 10);
        char hex[64];
        std::snprintf(hex, sizeof hex, "%a", static_cast<double>(value));
        expected << tag << ' ' << step * 10 << ' ' << hex << '\n';
      }
    }
  }
  const Output output =
      run(std::string("'") + python + "' '" + script.string() + "' '" + folder.path.string() + "' 2>/dev/null");
  if (output.exit_code == 3 || output.exit_code == 126 || output.exit_code == 127) {
    thimble_test::skip(std::string("THIMBLE_PYTHON=") + python + " has no package tensorboard");
    return;
  }
  CHECK(output.exit_code == 0);
  // Compare values, not their spelling: both sides are hexadecimal floats that differ in trailing zeros.
  std::istringstream got_lines(output.text), expected_lines(expected.str());
  std::string got, want, ignored;
  std::getline(got_lines, got);
  std::getline(expected_lines, want);
  CHECK(got == "file_version 2.0");
  int points = 0;
  for (; std::getline(expected_lines, want); ++points) {
    REQUIRE(std::getline(got_lines, got));
    std::istringstream got_words(got), want_words(want);
    std::string got_tag, got_step, got_value, want_tag, want_step, want_value;
    got_words >> ignored >> got_tag >> got_step >> got_value;
    want_words >> want_tag >> want_step >> want_value;
    CHECK(got_tag == want_tag);
    CHECK(got_step == want_step);
    CHECK(std::strtod(got_value.c_str(), nullptr) == std::strtod(want_value.c_str(), nullptr));
  }
  CHECK(points == 150);
  CHECK_FALSE(std::getline(got_lines, got));
}
