#include <algorithm>
#include <utility>

#include <thimble/memory/remat/graph_timeline.h>

namespace thimble::remat {

namespace graph_simulator_detail {

using Event = GraphTimeline::Event;
using Kind = Event::Kind;
using Buffer = GraphTimeline::Buffer;

/// The operators that run, in order.
class Order {
 public:
  Order(const Graph& graph, const Selection& selection)
      : graph_(graph), is_kept_(graph.tensors.size()), maker_(graph.tensors.size()), is_due_(graph.operators.size()) {
    for (const std::uint32_t t : selection.kept) is_kept_[t] = true;
    for (std::uint32_t i = 0; i < graph.operators.size(); ++i) {
      for (const std::uint32_t t : graph.operators[i].outputs) maker_[t] = i;
    }
    for (const std::uint32_t i : selection.recomputed) is_due_[i] = true;
  }

  std::vector<Event> events() {
    const auto count = static_cast<std::uint32_t>(graph_.operators.size());
    std::vector<std::uint32_t> ends = graph_.segment_ends;
    if (ends.empty()) ends.push_back(count);
    std::vector<Event> events;
    events.reserve(3 * graph_.operators.size());
    for (std::uint32_t i = 0; i < count; ++i) events.push_back({Kind::forward, i, 0, i});
    for (std::size_t s = ends.size(); s-- > 0;) {
      const std::uint32_t begin = s == 0 ? 0 : ends[s - 1];
      const auto segment = static_cast<std::uint32_t>(s);
      for (std::uint32_t i = ends[s]; i-- > begin;) {
        find_due(i, begin);
        for (const std::uint32_t op : due_) events.push_back({Kind::recompute, op, segment, i});
        events.push_back({Kind::backward, i, segment, i});
      }
    }
    return events;
  }

 private:
  /// The operators that run again for an operator's backward, in forward order.
  void find_due(std::uint32_t op, std::uint32_t begin) {
    due_.clear();
    const auto ask = [&](const std::vector<std::uint32_t>& tensors) {
      for (const std::uint32_t t : tensors) {
        const std::uint32_t maker = maker_[t];
        if (graph_.tensors[t].is_given || is_kept_[t] || maker < begin || !is_due_[maker]) continue;
        is_due_[maker] = false;
        due_.push_back(maker);
      }
    };
    ask(graph_.operators[op].backward_reads);
    for (std::size_t next = 0; next < due_.size(); ++next) ask(graph_.operators[due_[next]].inputs);
    std::sort(due_.begin(), due_.end());
  }

  const Graph& graph_;
  std::vector<std::uint8_t> is_kept_;
  std::vector<std::uint32_t> maker_;  // of each tensor
  std::vector<std::uint8_t> is_due_;  // to run again
  std::vector<std::uint32_t> due_;
};

/// The step on plain numbers.
class Step {
 public:
  Step(const Graph& graph, const Selection& selection) : graph_(graph), is_kept_(graph.tensors.size()) {
    for (const std::uint32_t t : selection.kept) {
      if (t >= graph.tensors.size()) throw PlanError("remat simulate: tensor " + std::to_string(t) + " does not exist");
      is_kept_[t] = true;
    }
    for (const std::uint32_t i : selection.recomputed) {
      if (i >= graph.operators.size() || !graph.operators[i].can_recompute) {
        throw PlanError("remat simulate: operator " + std::to_string(i) + " does not exist or cannot be recomputed");
      }
      result_.cost += graph.operators[i].cost;
    }
    events_ = Order(graph, selection).events();
    result_.segment_peak_bytes.assign(graph.segment_count(), 0);
    result_.recompute_peak_bytes.assign(graph.segment_count(), 0);
    result_.operator_peak_bytes.assign(graph.operators.size(), 0);
    is_there_.assign(graph.tensors.size(), false);
    has_gradient_.assign(graph.tensors.size(), false);
    tensor_buffer_.assign(graph.tensors.size(), 0);
    gradient_buffer_.assign(graph.tensors.size(), 0);
    window_of_.assign(graph.tensors.size(), no_window);
    windows_.assign(graph.tensors.size(), 0);
    for (std::uint32_t t = 0; t < graph.tensors.size(); ++t) {
      is_there_[t] = graph.tensors[t].is_given;
      if (graph.tensors[t].held_until > 0) held_until_.emplace_back(graph.tensors[t].held_until, t);
    }
    std::sort(held_until_.begin(), held_until_.end());
    find_last_uses();
  }

  GraphCost run() {
    for (std::size_t at = 0; at < events_.size(); ++at) {
      now_ = at;
      if (at == graph_.operators.size()) seed_gradients();
      const Event& event = events_[at];
      if (event.kind == Kind::backward) {
        run_backward(event, at);
      } else {
        run_forward(event, at);
      }
    }
    return result_;
  }

  GraphTimeline run_with_buffers() {
    notes_buffers_ = true;
    run();
    std::vector<Buffer> buffers;
    for (Buffer& buffer : buffers_) {
      if (buffer.end == 0) buffer.end = events_.size();
      if (buffer.bytes > 0 && buffer.begin < buffer.end) buffers.push_back(buffer);
    }
    return {events_, std::move(buffers)};
  }

 private:
  void take(Buffer::Kind kind, std::uint32_t index, Bytes bytes) {
    held_ += bytes;
    if (!notes_buffers_) return;
    (kind == Buffer::Kind::tensor ? tensor_buffer_ : gradient_buffer_)[index] = buffers_.size();
    buffers_.push_back({kind, index, bytes, now_, 0});
  }

  /// What goes while an event runs is there until its end; what goes `before` an event runs is not there in it.
  void give_back(std::size_t buffer, Bytes bytes, bool is_before = false) {
    held_ -= bytes;
    if (notes_buffers_) buffers_[buffer].end = now_ + (is_before ? 0 : 1);
  }

  /// Of each tensor: its last use in the forward, and its last use of all.
  void find_last_uses() {
    forward_use_.assign(graph_.tensors.size(), 0);
    last_use_.assign(graph_.tensors.size(), 0);
    for (std::size_t at = 0; at < events_.size(); ++at) {
      const Event& event = events_[at];
      const GraphOperator& op = graph_.operators[event.op];
      for (const std::uint32_t t : event.kind == Kind::backward ? op.backward_reads : op.inputs) {
        last_use_[t] = at;
        if (event.kind == Kind::forward) forward_use_[t] = at;
      }
    }
    for (std::size_t t = 0; t < graph_.tensors.size(); ++t) {
      forward_use_[t] = std::max<std::size_t>(forward_use_[t], graph_.tensors[t].held_until);
      if (graph_.tensors[t].is_result) forward_use_[t] = graph_.operators.size();
    }
  }

  void require(const Event& event, std::uint32_t t) const {
    if (is_there_[t]) return;
    throw PlanError("remat simulate: " + std::string(event.kind == Kind::recompute ? "recomputation" : "backward") +
                    " of operator " + std::to_string(event.op) + " (" + graph_.operators[event.op].name +
                    ") reads tensor " + std::to_string(t) + " (" + graph_.tensors[t].name + "), which is not held");
  }

  void reach(const Event& event, Bytes extra) {
    if (notes_buffers_) buffers_.push_back({Buffer::Kind::temporary, event.op, extra, now_, now_ + 1});
    const Bytes bytes = held_ + extra;
    result_.peak_bytes = std::max(result_.peak_bytes, bytes);
    if (event.kind == Kind::forward) {
      result_.forward_peak_bytes = std::max(result_.forward_peak_bytes, bytes);
      return;
    }
    Bytes& of_operator = result_.operator_peak_bytes[event.reader];
    of_operator = std::max(of_operator, bytes);
    Bytes& segment = result_.segment_peak_bytes[event.segment];
    segment = std::max(segment, bytes);
    if (event.kind != Kind::recompute) return;
    Bytes& recompute = result_.recompute_peak_bytes[event.segment];
    recompute = std::max(recompute, bytes);
  }

  void run_forward(const Event& event, std::size_t at) {
    const GraphOperator& op = graph_.operators[event.op];
    for (const std::uint32_t t : op.inputs) require(event, t);
    Bytes copies = 0;  // outputs that are there already are made a second time and thrown away
    for (const std::uint32_t t : op.outputs) {
      if (is_there_[t]) {
        copies += graph_.tensors[t].bytes;
      } else {
        is_there_[t] = true;
        take(Buffer::Kind::tensor, t, graph_.tensors[t].bytes);
      }
    }
    const bool is_first = event.kind == Kind::forward;
    reach(event, op.forward_peak_bytes + copies + (is_first ? 0 : graph_.operators[event.reader].waiting_bytes));
    for (const std::uint32_t t : op.inputs) release_if_done(t, event, at);
    for (const std::uint32_t t : op.outputs) release_if_done(t, event, at);
    if (event.kind != Kind::forward) return;
    for (; next_held_ < held_until_.size() && held_until_[next_held_].first == event.op; ++next_held_) {
      release_if_done(held_until_[next_held_].second, event, at);
    }
  }

  void run_backward(const Event& event, std::size_t at) {
    const GraphOperator& op = graph_.operators[event.op];
    for (const std::uint32_t t : op.backward_reads) require(event, t);
    for (const std::uint32_t t : op.outputs) make_gradient(t);
    const bool is_passed_on = open_windows(op) || (op.is_backward_in_place && pass_gradient_on(op));
    if (op.is_backward_in_place || op.frees_reads_first) write_over_reads(op, at);
    for (const std::uint32_t t : op.inputs) make_gradient(t);
    reach(event, op.backward_peak_bytes);
    for (const std::uint32_t t : op.outputs) {
      if (has_gradient_[t] && !(is_passed_on && t == op.outputs.front())) give_gradient_back(t);
      has_gradient_[t] = false;
    }
    for (const std::uint32_t t : op.backward_reads) release_if_done(t, event, at);
  }

  void release_if_done(std::uint32_t t, const Event& event, std::size_t at) {
    if (!is_there_[t] || graph_.tensors[t].is_given) return;
    const bool stays_for_backward = event.kind != Kind::forward || is_kept_[t];
    if ((stays_for_backward ? last_use_[t] : forward_use_[t]) > at) return;
    is_there_[t] = false;
    give_back(tensor_buffer_[t], graph_.tensors[t].bytes);
  }

  void give_gradient_back(std::uint32_t t) {
    const std::uint32_t whole = window_of_[t];
    if (whole == no_window) return give_back(gradient_buffer_[t], graph_.tensors[t].gradient_bytes);
    if (--windows_[whole] == 0) give_gradient_back(whole);
  }

  /// The gradients of inputs that are windows. False where there is none.
  bool open_windows(const GraphOperator& op) {
    const std::uint32_t whole = op.outputs.front();
    for (const std::uint32_t t : op.windows) {
      if (has_gradient_[t]) continue;
      has_gradient_[t] = true;
      window_of_[t] = whole;
      ++windows_[whole];
    }
    return windows_[whole] > 0;
  }

  /// Marks the first gradient of an input that is to be made and has so many bytes. False where there is none.
  bool inherit(const GraphOperator& op, Bytes bytes, std::size_t buffer) {
    const auto heir = std::find_if(op.inputs.begin(), op.inputs.end(), [&](std::uint32_t t) {
      return !has_gradient_[t] && graph_.tensors[t].gradient_bytes == bytes;
    });
    if (bytes == 0 || heir == op.inputs.end()) return false;
    has_gradient_[*heir] = true;
    gradient_buffer_[*heir] = buffer;
    return true;
  }

  /// The buffer of the first output's gradient becomes that of an input's.
  bool pass_gradient_on(const GraphOperator& op) {
    const std::uint32_t t = op.outputs.front();
    if (window_of_[t] != no_window) return false;
    return inherit(op, graph_.tensors[t].gradient_bytes, gradient_buffer_[t]);
  }

  /// So do the buffers of tensors that nothing reads after this.
  void write_over_reads(const GraphOperator& op, std::size_t at) {
    for (const std::uint32_t t : op.backward_reads) {
      if (!is_there_[t] || graph_.tensors[t].is_given || last_use_[t] != at) continue;
      if (inherit(op, graph_.tensors[t].bytes, tensor_buffer_[t])) is_there_[t] = false;
    }
  }

  void make_gradient(std::uint32_t t) {
    if (has_gradient_[t]) return;
    has_gradient_[t] = true;
    take(Buffer::Kind::gradient, t, graph_.tensors[t].gradient_bytes);
  }

  /// The forward is over.
  void seed_gradients() {
    for (std::uint32_t t = 0; t < graph_.tensors.size(); ++t) {
      if (!graph_.tensors[t].is_result || !is_there_[t] || is_kept_[t]) continue;
      is_there_[t] = false;
      give_back(tensor_buffer_[t], graph_.tensors[t].bytes, true);
    }
    std::vector<bool> is_taken(graph_.tensors.size());
    for (const GraphOperator& op : graph_.operators) {
      for (const std::uint32_t t : op.inputs) is_taken[t] = true;
    }
    for (std::uint32_t t = 0; t < graph_.tensors.size(); ++t) {
      const bool has_one = !is_taken[t] || graph_.tensors[t].is_result;
      if (has_one && !graph_.tensors[t].is_given) make_gradient(t);
    }
  }

  const Graph& graph_;
  std::vector<Event> events_;
  std::vector<std::uint8_t> is_kept_, is_there_, has_gradient_;
  std::vector<std::size_t> forward_use_, last_use_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> held_until_;  // operator and tensor, rising
  std::size_t next_held_ = 0;
  std::size_t now_ = 0;  // the event
  Bytes held_ = 0;
  GraphCost result_;
  bool notes_buffers_ = false;
  std::vector<Buffer> buffers_;
  std::vector<std::size_t> tensor_buffer_, gradient_buffer_;  // of each tensor, while it has one
  static constexpr std::uint32_t no_window = ~0u;
  std::vector<std::uint32_t> window_of_;  // of each tensor's gradient: the tensor whose gradient it is part of
  std::vector<std::uint32_t> windows_;    // of each tensor's gradient: how many are left
};

}  // namespace graph_simulator_detail

GraphCost simulate(const Graph& graph, const Selection& selection) {
  validate(graph);
  return simulate_valid(graph, selection);
}

GraphCost simulate_valid(const Graph& graph, const Selection& selection) {
  return graph_simulator_detail::Step(graph, selection).run();
}

GraphTimeline timeline(const Graph& graph, const Selection& selection) {
  validate(graph);
  return graph_simulator_detail::Step(graph, selection).run_with_buffers();
}

}  // namespace thimble::remat
