#include <algorithm>
#include <span>
#include <utility>

#include <thimble/memory/remat/graph_timeline.h>

namespace thimble::remat {

namespace graph_simulator_detail {

using Event = GraphTimeline::Event;
using Kind = Event::Kind;
using Buffer = GraphTimeline::Buffer;

/// The operators that run, in order, and which of their outputs they make: the others are there already.
class Order {
 public:
  /// A tensor is there after the forward when it `is_held`; operators that `can_run` run again where one is missing.
  Order(const Graph& graph, std::vector<std::uint8_t> is_held, std::vector<std::uint8_t> can_run,
        const std::vector<Drop>& drops)
      : graph_(graph),
        is_held_(std::move(is_held)),
        can_run_(std::move(can_run)),
        drops_(drops),
        is_there_(graph.tensors.size()),
        is_due_(graph.operators.size()),
        maker_(graph.tensors.size()),
        is_read_(graph.tensors.size()) {
    for (std::uint32_t t = 0; t < graph.tensors.size(); ++t) is_there_[t] = graph.tensors[t].is_given;
    for (std::uint32_t i = 0; i < graph.operators.size(); ++i) {
      for (const std::uint32_t t : graph.operators[i].outputs) maker_[t] = i;
    }
    const auto count = static_cast<std::uint32_t>(graph.operators.size());
    events_.reserve(3 * graph.operators.size());
    for (std::uint32_t i = 0; i < count; ++i) {
      if (!dropped_.empty()) run_again(graph.operators[i].inputs, {Kind::recompute, 0, 0, i}, 0);
      run({Kind::forward, i, 0, i});
      drop_after(i);
    }
    turn_ = events_.size();
    for (std::uint32_t t = 0; t < graph.tensors.size(); ++t) {
      is_held_[t] = is_held_[t] && is_there_[t];
      if (!is_held_[t] && !graph.tensors[t].is_given) is_there_[t] = false;
    }
    std::vector<std::uint32_t> ends = graph.segment_ends;
    if (ends.empty()) ends.push_back(count);
    for (std::size_t s = ends.size(); s-- > 0;) {
      const std::uint32_t begin = s == 0 ? 0 : ends[s - 1];
      const auto segment = static_cast<std::uint32_t>(s);
      for (std::uint32_t i = ends[s]; i-- > begin;) {
        run_again(graph.operators[i].backward_reads, {Kind::recompute, 0, segment, i}, begin);
        events_.push_back({Kind::backward, i, segment, i});
        drop_after(2 * count - 1 - i);
      }
    }
  }

  std::vector<Event>& events() noexcept { return events_; }
  /// Where the forward is over.
  std::size_t turn() const noexcept { return turn_; }
  /// Of each output of each forward and re-run, in order.
  const std::vector<std::uint8_t>& is_made() const noexcept { return is_made_; }

  /// What was needed of the tensors that are held and of the drops.
  Selection selection() const {
    Selection selection;
    for (std::uint32_t t = 0; t < graph_.tensors.size(); ++t) {
      if (!is_read_[t]) continue;
      selection.kept.push_back(t);
      selection.kept_bytes += graph_.tensors[t].bytes;
    }
    std::vector<std::uint8_t> is_recomputed(graph_.operators.size());
    for (const Event& event : events_) {
      if (event.kind != Kind::recompute) continue;
      selection.cost += graph_.operators[event.op].cost;
      if (!std::exchange(is_recomputed[event.op], std::uint8_t{1})) selection.recomputed.push_back(event.op);
    }
    std::sort(selection.recomputed.begin(), selection.recomputed.end());
    for (std::size_t k = 0; k < dropped_.size(); ++k) {
      if (dropped_[k].is_made_again) selection.drops.push_back(dropped_[k].drop);
    }
    return selection;
  }

 private:
  struct Dropped {
    Drop drop;
    bool is_made_again;
  };

  /// Makes sure that `tensors` are there: re-runs the makers of missing ones and of their inputs, in forward order.
  void run_again(const std::vector<std::uint32_t>& tensors, Event event, std::uint32_t begin) {
    due_.clear();
    const auto ask = [&](const std::vector<std::uint32_t>& wanted, const char* what, std::uint32_t reader) {
      for (const std::uint32_t t : wanted) {
        if (graph_.tensors[t].is_given) continue;
        if (is_there_[t]) {
          if (turn_ > 0 && is_held_[t]) is_read_[t] = true;
          continue;
        }
        const std::uint32_t maker = maker_[t];
        if (maker < begin || !can_run_[maker]) {
          throw PlanError("remat simulate: " + std::string(what) + " of operator " + std::to_string(reader) + " (" +
                          graph_.operators[reader].name + ") reads tensor " + std::to_string(t) + " (" +
                          graph_.tensors[t].name + "), which is not held");
        }
        if (is_due_[maker]) continue;
        is_due_[maker] = true;
        due_.push_back(maker);
      }
    };
    ask(tensors, turn_ > 0 ? "backward" : "forward", event.reader);
    for (std::size_t next = 0; next < due_.size(); ++next) {
      ask(graph_.operators[due_[next]].inputs, "recomputation", due_[next]);
    }
    std::sort(due_.begin(), due_.end());
    for (const std::uint32_t op : due_) {
      is_due_[op] = false;
      event.op = op;
      run(event);
    }
  }

  void run(const Event& event) {
    events_.push_back(event);
    for (const std::uint32_t t : graph_.operators[event.op].outputs) {
      is_made_.push_back(!is_there_[t]);
      if (is_there_[t]) continue;
      is_there_[t] = true;
      for (Dropped& one : dropped_) one.is_made_again = one.is_made_again || one.drop.tensor == t;
    }
  }

  void drop_after(std::uint32_t step) {
    for (; next_drop_ < drops_.size() && drops_[next_drop_].after <= step; ++next_drop_) {
      const Drop& drop = drops_[next_drop_];
      const GraphTensor& tensor = graph_.tensors[drop.tensor];
      if (!is_there_[drop.tensor] || tensor.is_given || step < tensor.held_until) continue;
      is_there_[drop.tensor] = false;
      if (turn_ > 0) is_held_[drop.tensor] = false;
      dropped_.push_back({drop, false});
    }
  }

  const Graph& graph_;
  std::vector<std::uint8_t> is_held_, can_run_;
  const std::vector<Drop>& drops_;
  std::vector<std::uint8_t> is_there_, is_due_;
  std::vector<std::uint32_t> maker_;   // of each tensor
  std::vector<std::uint8_t> is_read_;  // of each tensor: by the backward, as the forward left it
  std::vector<Dropped> dropped_;
  std::size_t next_drop_ = 0;
  std::vector<std::uint32_t> due_;
  std::vector<Event> events_;
  std::vector<std::uint8_t> is_made_;
  std::size_t turn_ = 0;
};

Order order_of(const Graph& graph, const Selection& selection) {
  std::vector<std::uint8_t> is_held(graph.tensors.size()), can_run(graph.operators.size());
  for (const std::uint32_t t : selection.kept) {
    if (t >= graph.tensors.size()) throw PlanError("remat simulate: tensor " + std::to_string(t) + " does not exist");
    is_held[t] = true;
  }
  for (const std::uint32_t i : selection.recomputed) {
    if (i >= graph.operators.size() || !graph.operators[i].can_recompute) {
      throw PlanError("remat simulate: operator " + std::to_string(i) + " does not exist or cannot be recomputed");
    }
    can_run[i] = true;
  }
  return {graph, std::move(is_held), std::move(can_run), selection.drops};
}

/// The step on plain numbers.
class Step {
 public:
  Step(const Graph& graph, Order order) : graph_(graph) {
    events_ = std::move(order.events());
    turn_ = order.turn();
    for (const Event& event : events_) {
      if (event.kind == Kind::recompute) result_.cost += graph.operators[event.op].cost;
    }
    result_.segment_peak_bytes.assign(graph.segment_count(), 0);
    result_.recompute_peak_bytes.assign(graph.segment_count(), 0);
    result_.operator_peak_bytes.assign(graph.operators.size(), 0);
    is_there_.assign(graph.tensors.size(), false);
    has_gradient_.assign(graph.tensors.size(), false);
    tensor_buffer_.assign(graph.tensors.size(), 0);
    gradient_buffer_.assign(graph.tensors.size(), 0);
    window_of_.assign(graph.tensors.size(), no_window);
    windows_.assign(graph.tensors.size(), 0);
    for (std::uint32_t t = 0; t < graph.tensors.size(); ++t) is_there_[t] = graph.tensors[t].is_given;
    find_last_uses(order.is_made());
  }

  GraphCost run() {
    for (std::size_t at = 0; at < events_.size(); ++at) {
      now_ = at;
      if (at == turn_) seed_gradients();
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

  /// Of each event, and of the turn after them: the tensors that nothing needs before they are made again.
  void find_last_uses(const std::vector<std::uint8_t>& is_made) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> held;  // operator and tensor, rising
    for (std::uint32_t t = 0; t < graph_.tensors.size(); ++t) {
      if (graph_.tensors[t].held_until > 0) held.emplace_back(graph_.tensors[t].held_until, t);
    }
    std::sort(held.begin(), held.end());
    std::vector<std::uint8_t> is_needed(graph_.tensors.size());
    goes_end_.assign(events_.size() + 1, 0);
    const auto need = [&](std::uint32_t t) {
      if (!std::exchange(is_needed[t], std::uint8_t{1}) && !graph_.tensors[t].is_given) goes_.push_back(t);
    };
    std::size_t output = is_made.size();
    for (std::size_t at = events_.size(); at-- > 0;) {
      const Event& event = events_[at];
      const GraphOperator& op = graph_.operators[event.op];
      goes_end_[at + 1] = goes_.size();  // from the back, as goes_ is
      if (at + 1 == turn_) {
        for (std::uint32_t t = 0; t < graph_.tensors.size(); ++t) {
          if (graph_.tensors[t].is_result && !std::exchange(is_needed[t], std::uint8_t{1})) results_.push_back(t);
        }
      }
      if (event.kind == Kind::forward) {
        for (; !held.empty() && held.back().first == event.op; held.pop_back()) need(held.back().second);
      }
      if (event.kind != Kind::backward) {
        for (std::size_t k = op.outputs.size(); k-- > 0;) {
          const std::uint32_t t = op.outputs[k];
          if (!is_needed[t]) goes_.push_back(t);
          if (is_made[--output] != 0) is_needed[t] = false;
        }
      }
      for (const std::uint32_t t : event.kind == Kind::backward ? op.backward_reads : op.inputs) need(t);
    }
    goes_end_[0] = goes_.size();
  }

  void reach(const Event& event, Bytes extra) {
    if (notes_buffers_) buffers_.push_back({Buffer::Kind::temporary, event.op, extra, now_, now_ + 1});
    const Bytes bytes = held_ + extra;
    result_.peak_bytes = std::max(result_.peak_bytes, bytes);
    if (now_ < turn_) {
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
    Bytes copies = 0;  // outputs that are there already are made a second time and thrown away
    for (const std::uint32_t t : op.outputs) {
      if (is_there_[t]) {
        copies += graph_.tensors[t].bytes;
      } else {
        is_there_[t] = true;
        take(Buffer::Kind::tensor, t, graph_.tensors[t].bytes);
      }
    }
    const bool is_in_forward = at < turn_;
    reach(event, op.forward_peak_bytes + copies + (is_in_forward ? 0 : graph_.operators[event.reader].waiting_bytes));
    release(at);
  }

  void run_backward(const Event& event, std::size_t at) {
    const GraphOperator& op = graph_.operators[event.op];
    for (const std::uint32_t t : op.outputs) make_gradient(t);
    const bool is_passed_on = open_windows(op) || (op.is_backward_in_place && pass_gradient_on(op));
    if (op.is_backward_in_place || op.frees_reads_first) write_over_reads(op, at);
    for (const std::uint32_t t : op.inputs) make_gradient(t);
    reach(event, op.backward_peak_bytes);
    for (const std::uint32_t t : op.outputs) {
      if (has_gradient_[t] && !(is_passed_on && t == op.outputs.front())) give_gradient_back(t);
      has_gradient_[t] = false;
    }
    release(at);
  }

  /// What goes after an event.
  std::span<const std::uint32_t> going(std::size_t at) const {
    return std::span(goes_).subspan(goes_end_[at + 1], goes_end_[at] - goes_end_[at + 1]);
  }

  void release(std::size_t at) {
    for (const std::uint32_t t : going(at)) {
      if (!std::exchange(is_there_[t], std::uint8_t{0})) continue;
      give_back(tensor_buffer_[t], graph_.tensors[t].bytes);
    }
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
    const std::span<const std::uint32_t> last = going(at);
    for (const std::uint32_t t : op.backward_reads) {
      if (!is_there_[t] || std::find(last.begin(), last.end(), t) == last.end()) continue;
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
    for (const std::uint32_t t : results_) {
      if (std::exchange(is_there_[t], std::uint8_t{0})) give_back(tensor_buffer_[t], graph_.tensors[t].bytes, true);
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
  std::vector<std::uint8_t> is_there_, has_gradient_;
  std::size_t turn_ = 0;                       // the first event after the forward
  std::vector<std::uint32_t> goes_, results_;  // after each event, from the last on; at the turn
  std::vector<std::size_t> goes_end_;          // of an event's in goes_, where those of the next one end
  std::size_t now_ = 0;                        // the event
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

namespace graph_simulator_detail {

/// Runs what makes the tensors that are not wanted. `drops` must outlive it.
Order close(const Graph& graph, const std::vector<bool>& can_make, const std::vector<bool>& wanted,
            std::vector<Drop>& drops) {
  std::vector<std::uint8_t> is_held(graph.tensors.size()), can_run(graph.operators.size());
  for (std::uint32_t t = 0; t < graph.tensors.size(); ++t) is_held[t] = wanted[t] || !can_make[t];
  for (std::uint32_t i = 0; i < graph.operators.size(); ++i) can_run[i] = graph.operators[i].can_recompute;
  std::erase_if(drops, [&](const Drop& drop) { return !can_make[drop.tensor]; });
  std::stable_sort(drops.begin(), drops.end(), [](const Drop& a, const Drop& b) { return a.after < b.after; });
  return {graph, std::move(is_held), std::move(can_run), drops};
}

}  // namespace graph_simulator_detail

std::pair<Selection, GraphCost> simulate_wanted(const Graph& graph, const std::vector<bool>& can_make,
                                                const std::vector<bool>& wanted, std::vector<Drop> drops) {
  using namespace graph_simulator_detail;
  Order order = close(graph, can_make, wanted, drops);
  Selection selection = order.selection();
  return {std::move(selection), Step(graph, std::move(order)).run()};
}

Selection close_selection(const Graph& graph, const std::vector<bool>& wanted, std::vector<Drop> drops) {
  if (wanted.size() != graph.tensors.size()) {
    throw ValueError("remat close_selection: " + std::to_string(wanted.size()) + " flags for " +
                     std::to_string(graph.tensors.size()) + " tensors");
  }
  return graph_simulator_detail::close(graph, recomputable(graph), wanted, drops).selection();
}

GraphCost simulate(const Graph& graph, const Selection& selection) {
  validate(graph);
  return simulate_valid(graph, selection);
}

GraphCost simulate_valid(const Graph& graph, const Selection& selection) {
  using namespace graph_simulator_detail;
  return Step(graph, order_of(graph, selection)).run();
}

GraphTimeline timeline(const Graph& graph, const Selection& selection) {
  validate(graph);
  using namespace graph_simulator_detail;
  return Step(graph, order_of(graph, selection)).run_with_buffers();
}

std::vector<Drop> gaps(const Graph& graph, const Selection& selection) {
  using namespace graph_simulator_detail;
  Order order = order_of(graph, selection);
  const auto turn = static_cast<std::uint32_t>(graph.operators.size());
  std::vector<std::uint32_t> last(graph.tensors.size());  // step that used or made it
  std::vector<Drop> gaps;
  auto is_made = order.is_made().begin();
  for (std::size_t at = 0; at < order.events().size(); ++at) {
    const Event& event = order.events()[at];
    const GraphOperator& op = graph.operators[event.op];
    const bool is_backward = event.kind == Kind::backward;
    const std::uint32_t step = at < order.turn() ? event.reader : 2 * turn - 1 - event.reader;
    for (const std::uint32_t t : is_backward ? op.backward_reads : op.inputs) {
      const std::uint32_t before = std::exchange(last[t], step);
      if (graph.tensors[t].is_given || before == step || (before < turn && step >= turn)) continue;
      gaps.push_back({t, before});
    }
    if (is_backward) continue;
    for (const std::uint32_t t : op.outputs) {
      if (*is_made++ != 0) last[t] = step;
    }
  }
  return gaps;
}

}  // namespace thimble::remat
