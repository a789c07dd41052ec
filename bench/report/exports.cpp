// A step for other programs' viewers.

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/bench/report/plan_page.h>
#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/tensor/context.h>

namespace thimble::report {

namespace {

// Opcodes are named as in Python's pickletools.
class Writer {
 public:
  void value(const nlohmann::ordered_json& value) {
    if (value.is_object()) {
      bytes_ += "}(";  // EMPTY_DICT MARK
      for (const auto& [key, entry] : value.items()) {
        text(key);
        this->value(entry);
      }
      bytes_ += 'u';  // SETITEMS
    } else if (value.is_array()) {
      constexpr std::size_t batch = 1000;  // readers hold the items of a batch on a stack
      bytes_ += "](";                      // EMPTY_LIST MARK
      std::size_t count = 0;
      for (const nlohmann::ordered_json& item : value) {
        if (count > 0 && count % batch == 0) bytes_ += "e(";  // APPENDS MARK
        this->value(item);
        ++count;
      }
      bytes_ += 'e';
    } else if (value.is_number_integer()) {
      integer(value.get<std::int64_t>());
    } else if (value.is_string()) {
      text(value.get_ref<const std::string&>());
    } else {
      throw ValueError("write_pickle: expected an object, an array, an integer or text, got " + value.dump());
    }
  }

  std::string bytes_ = "\x80\x02";  // PROTO

 private:
  void integer(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    if (value >= 0 && value < 256) {
      number('K', bits, 1);  // BININT1
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      number('J', bits, 4);  // BININT
    } else {
      bytes_ += "\x8A";  // LONG1
      number(8, bits, 8);
    }
  }
  void text(const std::string& value) {
    const auto [found, is_new] = texts_.try_emplace(value, texts_.size());
    const std::size_t name = found->second;
    const bool is_short = name < 256;
    if (!is_new) return number(is_short ? 'h' : 'j', name, is_short ? 1 : 4);  // BINGET, LONG_BINGET
    number('X', value.size(), 4);                                              // BINUNICODE
    bytes_ += value;
    number(is_short ? 'q' : 'r', name, is_short ? 1 : 4);  // BINPUT, LONG_BINPUT
  }
  // An opcode and its operand, the lowest byte first.
  void number(char opcode, std::uint64_t value, int bytes) {
    bytes_ += opcode;
    for (int i = 0; i < bytes; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
  }

  std::unordered_map<std::string, std::size_t> texts_;
};

using nlohmann::ordered_json;

void add_name(ordered_json& events, int process, const std::string& name) {
  events.push_back({{"ph", "M"}, {"pid", process}, {"tid", 1}, {"name", "process_name"}, {"args", {{"name", name}}}});
  events.push_back(
      {{"ph", "M"}, {"pid", process}, {"tid", 1}, {"name", "thread_name"}, {"args", {{"name", "modules"}}}});
}

// Slices that nest as module paths do: the common prefix of two neighbours stays open.
class Slices {
 public:
  Slices(ordered_json& events, int process) : events_(events), process_(process) {}

  void go_to(std::string_view path, std::size_t time) {
    std::vector<std::string_view> parts = split(path, '.');
    if (path.empty()) parts.clear();
    std::size_t common = 0;
    while (common < parts.size() && common < open_.size() && parts[common] == open_[common]) ++common;
    for (; open_.size() > common; open_.pop_back()) add("E", open_.back(), time);
    for (; open_.size() < parts.size(); open_.emplace_back(parts[open_.size()])) add("B", parts[open_.size()], time);
  }

 private:
  void add(const char* phase, std::string_view name, std::size_t time) {
    events_.push_back({{"ph", phase}, {"pid", process_}, {"tid", 1}, {"ts", time}, {"name", name}});
  }

  ordered_json& events_;
  int process_;
  std::vector<std::string> open_;
};

void add_step(ordered_json& events, const bench::StepTrace& step, int process) {
  add_name(events, process, step.name);
  const std::vector<thimble::memory::CategoryBytes> live = timeline(step.events);
  Slices slices(events, process);
  // Time 0 is the moment before the step; without anything alive then there is no such moment.
  for (std::size_t i = step.before == 0 ? 0 : step.before - 1; i < live.size(); ++i) {
    const std::size_t time = i + 1 - step.before;
    ordered_json args;
    for (std::size_t k = 0; k < memory::category_count; ++k) {
      args[std::string(to_string(static_cast<memory::Category>(k)))] = live[i][k];
    }
    events.push_back(
        {{"ph", "C"}, {"pid", process}, {"tid", 1}, {"ts", time}, {"name", "bytes by category"}, {"args", args}});
    if (time > 0) slices.go_to(path_name(step.events[i].path), time);
  }
  slices.go_to("", live.size() + 1 - step.before);
}

// Addresses start here: a viewer shows them in hexadecimal, and none is 0.
constexpr std::int64_t snapshot_base = std::int64_t{1} << 36;

struct SnapshotBlock {
  std::int64_t offset = 0, bytes = 0;
  const memory::Trace::Event* event = nullptr;  // that allocated it
};

std::vector<SnapshotBlock> blocks_at_end(const bench::StepTrace& step) {
  std::map<std::uint64_t, const memory::Trace::Event*> live;
  for (const memory::Trace::Event& event : step.events) {
    if (event.action == memory::Trace::Action::allocate) live[event.block] = &event;
    if (event.action == memory::Trace::Action::free) live.erase(event.block);
  }
  std::vector<SnapshotBlock> blocks;
  for (const auto& [id, event] : live) {
    blocks.push_back(
        {static_cast<std::int64_t>(step.dynamic.offsets[id]), static_cast<std::int64_t>(event->bytes), event});
  }
  std::sort(blocks.begin(), blocks.end(),
            [](const SnapshotBlock& a, const SnapshotBlock& b) { return a.offset < b.offset; });
  return blocks;
}

// A list of one frame: a module path, in a category's file.
ordered_json frames_of(PathId path, memory::Category category) {
  return ordered_json::array({{{"filename", to_string(category)}, {"line", 0}, {"name", path_name(path)}}});
}

ordered_json block_json(const SnapshotBlock& block) {
  return {{"address", snapshot_base + block.offset},
          {"size", block.bytes},
          {"requested_size", block.event ? block.bytes : 0},
          {"state", block.event ? "active_allocated" : "inactive"},
          {"frames", block.event ? frames_of(block.event->path, block.event->category)
                                 : frames_of(0, memory::Category::temporary)}};
}

// The arena as one segment at the end of the step. Its blocks and the holes between them follow one another without a
// gap, because viewers add up sizes to get addresses.
ordered_json segment_json(const bench::StepTrace& step) {
  const auto size = static_cast<std::int64_t>(step.dynamic.committed_bytes);
  std::int64_t live = 0, at = 0;
  ordered_json blocks = ordered_json::array();
  for (const SnapshotBlock& block : blocks_at_end(step)) {
    if (block.offset > at) blocks.push_back(block_json({at, block.offset - at, nullptr}));
    blocks.push_back(block_json(block));
    at = block.offset + block.bytes;
    live += block.bytes;
  }
  if (at < size) blocks.push_back(block_json({at, size - at, nullptr}));
  return {{"device", 0},
          {"address", snapshot_base},
          {"total_size", size},
          {"allocated_size", live},
          {"active_size", live},
          {"requested_size", live},
          {"stream", 0},
          {"segment_type", "large"},
          {"blocks", std::move(blocks)}};
}

ordered_json event_json(const char* action, std::size_t offset, std::size_t bytes, ordered_json frames) {
  return {{"action", action},
          {"addr", snapshot_base + static_cast<std::int64_t>(offset)},
          {"size", bytes},
          {"stream", 0},
          {"frames", std::move(frames)}};
}

}  // namespace

std::string write_pickle(const nlohmann::ordered_json& value) {
  Writer writer;
  writer.value(value);
  return writer.bytes_ + ".";  // STOP
}

std::string write_chrome_trace(const bench::PlanView& view) {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  int process = 0;
  for (const bench::StepTrace& step : view.steps) add_step(events, step, ++process);
  const nlohmann::ordered_json json{{"traceEvents", std::move(events)},
                                    {"displayTimeUnit", "ns"},
                                    {"otherData", {{"model", view.setup.model}, {"time", "1 us is one event"}}}};
  return json.dump() + "\n";
}

std::string write_snapshot(const bench::PlanView& view) {
  const bench::StepTrace& step = view.planned();
  ordered_json trace = ordered_json::array();
  trace.push_back(
      event_json("segment_alloc", 0, step.dynamic.committed_bytes, frames_of(0, memory::Category::temporary)));
  for (const memory::Trace::Event& event : step.events) {
    if (event.action == memory::Trace::Action::relabel) continue;
    const auto add = [&](const char* action) {
      trace.push_back(
          event_json(action, step.dynamic.offsets[event.block], event.bytes, frames_of(event.path, event.category)));
    };
    if (event.action == memory::Trace::Action::allocate) {
      add("alloc");
    } else {
      add("free_requested");
      add("free_completed");
    }
  }
  return write_pickle({{"segments", ordered_json::array({segment_json(step)})},
                       {"device_traces", ordered_json::array({std::move(trace)})}});
}

}  // namespace thimble::report
