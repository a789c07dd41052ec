// A step for other programs' viewers.

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <thimble/bench/report/pickle.h>
#include <thimble/bench/report/plan_page.h>
#include <thimble/core/tensor/context.h>

namespace thimble::report {
namespace exports_detail {

using nlohmann::ordered_json;

std::vector<std::string> parts_of(std::string_view path) {
  std::vector<std::string> parts;
  while (!path.empty()) {
    const std::size_t dot = path.find('.');
    parts.emplace_back(path.substr(0, dot));
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  }
  return parts;
}

void add_name(ordered_json& events, int process, const std::string& name) {
  events.push_back({{"ph", "M"}, {"pid", process}, {"tid", 1}, {"name", "process_name"}, {"args", {{"name", name}}}});
  events.push_back(
      {{"ph", "M"}, {"pid", process}, {"tid", 1}, {"name", "thread_name"}, {"args", {{"name", "modules"}}}});
}

// Slices that nest as module paths do: what two neighbours have in common stays open.
class Slices {
 public:
  Slices(ordered_json& events, int process) : events_(events), process_(process) {}

  void go_to(std::string_view path, std::size_t time) {
    const std::vector<std::string> parts = parts_of(path);
    std::size_t common = 0;
    while (common < parts.size() && common < open_.size() && parts[common] == open_[common]) ++common;
    for (; open_.size() > common; open_.pop_back()) add("E", open_.back(), time);
    for (; open_.size() < parts.size(); open_.push_back(parts[open_.size()])) add("B", parts[open_.size()], time);
  }

 private:
  void add(const char* phase, const std::string& name, std::size_t time) {
    events_.push_back({{"ph", phase}, {"pid", process_}, {"tid", 1}, {"ts", time}, {"name", name}});
  }

  ordered_json& events_;
  int process_;
  std::vector<std::string> open_;
};

void add_step(ordered_json& events, const bench::StepTrace& step, int process) {
  add_name(events, process, step.name);
  const std::vector<thimble::CategoryBytes> live = timeline(step.events);
  Slices slices(events, process);
  // Time 0 is the moment before the step; without anything alive then there is no such moment.
  for (std::size_t i = step.before == 0 ? 0 : step.before - 1; i < live.size(); ++i) {
    const std::size_t time = i + 1 - step.before;
    ordered_json args;
    for (std::size_t k = 0; k < category_count; ++k) {
      args[std::string(to_string(static_cast<Category>(k)))] = live[i][k];
    }
    events.push_back(
        {{"ph", "C"}, {"pid", process}, {"tid", 1}, {"ts", time}, {"name", "bytes by category"}, {"args", args}});
    if (time > 0) slices.go_to(path_name(step.events[i].path), time);
  }
  slices.go_to("", live.size() + 1 - step.before);
}

/// A list of one frame per path and category, each written once.
class Frames {
 public:
  explicit Frames(PickleWriter& out) : out_(out) {}

  void write(PathId path, Category category) {
    out_.text("frames");
    const auto [found, is_new] = names_.try_emplace({path, category}, 0);
    if (!is_new) return out_.again(found->second);
    out_.begin_list();
    out_.begin_dict();
    out_.text("filename");
    out_.text(to_string(category));
    out_.text("line");
    out_.integer(0);
    out_.text("name");
    out_.text(path_name(path));
    out_.end_dict();
    out_.end_list();
    found->second = out_.remember();
  }

 private:
  PickleWriter& out_;
  std::map<std::pair<PathId, Category>, std::uint32_t> names_;
};

void entry(PickleWriter& out, std::string_view key, std::int64_t value) {
  out.text(key);
  out.integer(value);
}
void entry(PickleWriter& out, std::string_view key, std::string_view value) {
  out.text(key);
  out.text(value);
}

// Addresses start here: a viewer shows them in hexadecimal, and none is 0.
constexpr std::int64_t snapshot_base = std::int64_t{1} << 36;

struct SnapshotBlock {
  std::int64_t offset = 0, bytes = 0;
  const Trace::Event* event = nullptr;  // that allocated it
};

std::vector<SnapshotBlock> blocks_at_end(const bench::StepTrace& step) {
  std::map<std::uint64_t, const Trace::Event*> live;
  for (const Trace::Event& event : step.events) {
    if (event.action == Trace::Action::allocate) live[event.block] = &event;
    if (event.action == Trace::Action::free) live.erase(event.block);
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

void write_block(PickleWriter& out, Frames& frames, const SnapshotBlock& block) {
  out.begin_dict();
  entry(out, "address", snapshot_base + block.offset);
  entry(out, "size", block.bytes);
  entry(out, "requested_size", block.event ? block.bytes : 0);
  entry(out, "state", block.event ? "active_allocated" : "inactive");
  if (block.event) {
    frames.write(block.event->path, block.event->category);
  } else {
    frames.write(0, Category::temporary);
  }
  out.end_dict();
}

// The arena as one segment at the end of the step. Its blocks and the holes between them follow one another without a
// gap, because viewers add up sizes to get addresses.
void write_segment(PickleWriter& out, Frames& frames, const bench::StepTrace& step) {
  const auto size = static_cast<std::int64_t>(step.dynamic.committed_bytes);
  const std::vector<SnapshotBlock> blocks = blocks_at_end(step);
  std::int64_t live = 0;
  for (const SnapshotBlock& block : blocks) live += block.bytes;
  out.begin_dict();
  entry(out, "device", 0);
  entry(out, "address", snapshot_base);
  entry(out, "total_size", size);
  entry(out, "allocated_size", live);
  entry(out, "active_size", live);
  entry(out, "requested_size", live);
  entry(out, "stream", 0);
  entry(out, "segment_type", "large");
  out.text("blocks");
  out.begin_list();
  std::int64_t at = 0;
  for (const SnapshotBlock& block : blocks) {
    if (block.offset > at) write_block(out, frames, {at, block.offset - at, nullptr});
    write_block(out, frames, block);
    at = block.offset + block.bytes;
  }
  if (at < size) write_block(out, frames, {at, size - at, nullptr});
  out.end_list();
  out.end_dict();
}

void write_event(PickleWriter& out, Frames& frames, std::string_view action, std::int64_t offset, std::int64_t bytes,
                 PathId path, Category category) {
  out.begin_dict();
  entry(out, "action", action);
  entry(out, "addr", snapshot_base + offset);
  entry(out, "size", bytes);
  entry(out, "stream", 0);
  frames.write(path, category);
  out.end_dict();
}

}  // namespace exports_detail

std::string write_chrome_trace(const bench::PlanView& view) {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  int process = 0;
  for (const bench::StepTrace& step : view.steps) exports_detail::add_step(events, step, ++process);
  const nlohmann::ordered_json json{{"traceEvents", std::move(events)},
                                    {"displayTimeUnit", "ns"},
                                    {"otherData", {{"model", view.setup.model}, {"time", "1 us is one event"}}}};
  return json.dump() + "\n";
}

std::string write_snapshot(const bench::PlanView& view) {
  using namespace exports_detail;
  constexpr std::size_t batch = 500;  // of one or two items: readers hold those of a batch on a stack
  const bench::StepTrace& step = view.planned();
  PickleWriter out;
  Frames frames(out);
  out.begin_dict();
  out.text("segments");
  out.begin_list();
  write_segment(out, frames, step);
  out.end_list();
  out.text("device_traces");
  out.begin_list();
  out.begin_list();
  write_event(out, frames, "segment_alloc", 0, static_cast<std::int64_t>(step.dynamic.committed_bytes), 0,
              Category::temporary);
  std::size_t count = 0;
  for (const Trace::Event& event : step.events) {
    if (event.action == Trace::Action::relabel) continue;
    if (++count % batch == 0) out.next_batch();
    const auto offset = static_cast<std::int64_t>(step.dynamic.offsets[event.block]);
    const auto bytes = static_cast<std::int64_t>(event.bytes);
    const auto write = [&](std::string_view action) {
      write_event(out, frames, action, offset, bytes, event.path, event.category);
    };
    if (event.action == Trace::Action::allocate) {
      write("alloc");
    } else {
      write("free_requested");
      write("free_completed");
    }
  }
  out.end_list();
  out.end_list();
  out.end_dict();
  return out.finish();
}

}  // namespace thimble::report
