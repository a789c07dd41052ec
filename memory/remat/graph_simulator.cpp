#include <algorithm>
#include <span>
#include <utility>

#include <thimble/memory/remat/graph_timeline.h>

namespace thimble::remat {

namespace graph_simulator_detail {

using Event = GraphTimeline::Event;
using Kind = Event::Kind;
using Buffer = GraphTimeline::Buffer;

/// Lists of indices in one array.
class Lists {
 public:
  void add(const std::vector<std::uint32_t>& list) {
    all_.insert(all_.end(), list.begin(), list.end());
    ends_.push_back(all_.size());
  }
  std::span<const std::uint32_t> operator[](std::size_t i) const noexcept {
    return {all_.data() + ends_[i], all_.data() + ends_[i + 1]};
  }

 private:
  std::vector<std::uint32_t> all_;
  std::vector<std::size_t> ends_{0};
};

/// A graph in arrays: planning runs thousands of simulations.
struct FlatGraph {
  explicit FlatGraph(const Graph& whole) : graph(whole), maker(whole.tensors.size()) {
    std::vector<std::uint8_t> is_taken(graph.tensors.size());
    for (std::uint32_t i = 0; i < graph.operators.size(); ++i) {
      const GraphOperator& op = graph.operators[i];
      inputs.add(op.inputs);
      outputs.add(op.outputs);
      reads.add(op.backward_reads);
      windows.add(op.windows);
      operators.push_back({op.cost, op.forward_peak_bytes, op.backward_peak_bytes, op.waiting_bytes, op.can_recompute,
                           op.is_backward_in_place, op.frees_reads_first});
      can_run.push_back(op.can_recompute);
      for (const std::uint32_t t : op.outputs) maker[t] = i;
      for (const std::uint32_t t : op.inputs) is_taken[t] = true;
    }
    for (std::uint32_t t = 0; t < graph.tensors.size(); ++t) {
      const GraphTensor& tensor = graph.tensors[t];
      bytes.push_back(tensor.bytes);
      gradient_bytes.push_back(tensor.gradient_bytes);
      is_given.push_back(tensor.is_given);
      if (tensor.is_result) results.push_back(t);
      if ((!is_taken[t] || tensor.is_result) && !tensor.is_given) seeds.push_back(t);
      if (tensor.held_until > 0) held.emplace_back(tensor.held_until, t);
    }
    std::sort(held.begin(), held.end());
    segment_ends = graph.segment_ends;
    if (segment_ends.empty()) segment_ends.push_back(static_cast<std::uint32_t>(graph.operators.size()));
  }

  struct Operator {
    Time cost;
    Bytes forward_peak_bytes, backward_peak_bytes, waiting_bytes;
    bool can_recompute, is_backward_in_place, frees_reads_first;
  };

  const Graph& graph;  // for names
  std::vector<Operator> operators;
  Lists inputs, outputs, reads, windows;                      // of operators
  std::vector<std::uint8_t> can_run;                          // of operators
  std::vector<Bytes> bytes, gradient_bytes;                   // of tensors
  std::vector<std::uint8_t> is_given;                         // of tensors
  std::vector<std::uint32_t> maker;                           // of tensors
  std::vector<std::uint32_t> results, seeds;                  // seeds have their gradient when backward begins
  std::vector<std::pair<std::uint32_t, std::uint32_t>> held;  // held_until and tensor, rising
  std::vector<std::uint32_t> segment_ends;                    // at least one
};

/// The operators that run, in order, and a flag for each of their outputs that does not exist yet.
class Order {
 public:
  explicit Order(const FlatGraph& graph) : graph_(graph) {}

  /// Tensors that are `is_held` exist after the forward; operators that `can_run` run again to make missing ones.
  void make(std::span<const std::uint8_t> is_held, std::span<const std::uint8_t> can_run, std::span<const Drop> drops) {
    is_held_.assign(is_held.begin(), is_held.end());
    can_run_ = can_run;
    drops_ = drops;
    is_there_ = graph_.is_given;
    is_due_.assign(graph_.operators.size(), false);
    is_read_.assign(graph_.bytes.size(), false);
    dropped_.clear(), events_.clear(), is_made_.clear();
    next_drop_ = turn_ = 0;
    const auto count = static_cast<std::uint32_t>(graph_.operators.size());
    for (std::uint32_t i = 0; i < count; ++i) {
      change_before(i, {Kind::recompute, 0, 0, i}, 0);
      if (!dropped_.empty()) run_again(graph_.inputs[i], {Kind::recompute, 0, 0, i}, 0);
      run({Kind::forward, i, 0, i});
    }
    turn_ = events_.size();
    for (std::size_t t = 0; t < is_there_.size(); ++t) {
      is_held_[t] = is_held_[t] & is_there_[t];
      is_there_[t] = is_held_[t] | graph_.is_given[t];
    }
    const std::vector<std::uint32_t>& ends = graph_.segment_ends;
    for (std::size_t s = ends.size(); s-- > 0;) {
      const std::uint32_t begin = s == 0 ? 0 : ends[s - 1];
      const auto segment = static_cast<std::uint32_t>(s);
      for (std::uint32_t i = ends[s]; i-- > begin;) {
        change_before(2 * count - 1 - i, {Kind::recompute, 0, segment, i}, begin);
        run_again(graph_.reads[i], {Kind::recompute, 0, segment, i}, begin);
        events_.push_back({Kind::backward, i, segment, i});
      }
    }
  }

  const std::vector<Event>& events() const noexcept { return events_; }
  /// Index of the first event after the forward.
  std::size_t turn() const noexcept { return turn_; }
  /// One flag for each output of each forward and re-run, in order.
  const std::vector<std::uint8_t>& is_made() const noexcept { return is_made_; }

  /// The held tensors and the drops that the step needed.
  Selection selection() const {
    Selection selection;
    for (std::uint32_t t = 0; t < is_read_.size(); ++t) {
      if (!is_read_[t]) continue;
      selection.kept.push_back(t);
      selection.kept_bytes += graph_.bytes[t];
    }
    std::vector<std::uint8_t> is_recomputed(graph_.operators.size());
    for (const Event& event : events_) {
      if (event.kind != Kind::recompute) continue;
      selection.cost += graph_.operators[event.op].cost;
      if (!std::exchange(is_recomputed[event.op], std::uint8_t{1})) selection.recomputed.push_back(event.op);
    }
    std::sort(selection.recomputed.begin(), selection.recomputed.end());
    for (const Dropped& one : dropped_) {
      if (one.is_made_again) selection.drops.push_back(one.drop);
    }
    return selection;
  }

 private:
  struct Dropped {
    Drop drop;
    bool is_made_again;
  };

  /// Makes missing `tensors`: runs their makers and the makers of missing inputs again, in forward order.
  void run_again(std::span<const std::uint32_t> tensors, Event event, std::uint32_t begin) {
    due_.clear();
    const auto ask = [&](std::span<const std::uint32_t> wanted, const char* what, std::uint32_t reader) {
      for (const std::uint32_t t : wanted) {
        if (is_there_[t]) {
          is_read_[t] = is_read_[t] | static_cast<std::uint8_t>(turn_ > 0 && is_held_[t] && !graph_.is_given[t]);
          continue;
        }
        const std::uint32_t maker = graph_.maker[t];
        if (maker < begin || !can_run_[maker]) {
          throw PlanError("remat simulate: " + std::string(what) + " of operator " + std::to_string(reader) + " (" +
                          graph_.graph.operators[reader].name + ") reads tensor " + std::to_string(t) + " (" +
                          graph_.graph.tensors[t].name + "), which is not held");
        }
        if (std::exchange(is_due_[maker], std::uint8_t{1})) continue;
        due_.push_back(maker);
      }
    };
    ask(tensors, turn_ > 0 ? "backward" : "forward", event.reader);
    for (std::size_t next = 0; next < due_.size(); ++next) {
      ask(graph_.inputs[due_[next]], "recomputation", due_[next]);
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
    for (const std::uint32_t t : graph_.outputs[event.op]) {
      is_made_.push_back(!is_there_[t]);
      if (std::exchange(is_there_[t], std::uint8_t{1})) continue;
      for (Dropped& one : dropped_) one.is_made_again = one.is_made_again || one.drop.tensor == t;
    }
  }

  /// Drops tensors and makes missing ones again, in order, between two steps.
  void change_before(std::uint32_t step, const Event& event, std::uint32_t begin) {
    for (; next_drop_ < drops_.size() && drops_[next_drop_].after < step; ++next_drop_) {
      const Drop& drop = drops_[next_drop_];
      const std::uint32_t maker = graph_.maker[drop.tensor];
      if (graph_.is_given[drop.tensor] || is_there_[drop.tensor] == drop.is_made) continue;
      if (drop.is_made) {
        if (maker < begin || maker > drop.after) continue;
        run_again({&drop.tensor, 1}, event, begin);
      } else {
        if (drop.after < graph_.graph.tensors[drop.tensor].held_until) continue;
        is_there_[drop.tensor] = false;
        if (turn_ > 0) is_held_[drop.tensor] = false;
      }
      dropped_.push_back({drop, drop.is_made});
    }
  }

  const FlatGraph& graph_;
  std::vector<std::uint8_t> is_held_;      // of each tensor
  std::span<const std::uint8_t> can_run_;  // of each operator
  std::span<const Drop> drops_;            // by rising step
  std::vector<std::uint8_t> is_there_, is_due_;
  std::vector<std::uint8_t> is_read_;  // per tensor: the backward reads it as the forward left it
  std::vector<Dropped> dropped_;
  std::size_t next_drop_ = 0;
  std::vector<std::uint32_t> due_;
  std::vector<Event> events_;
  std::vector<std::uint8_t> is_made_;
  std::size_t turn_ = 0;
};

/// Simulates the bytes of a step.
class Step {
 public:
  explicit Step(const FlatGraph& graph) : graph_(graph) {}

  GraphCost run(const Order& order, bool notes_buffers = false, Bytes bound = std::numeric_limits<Bytes>::max()) {
    begin(order, notes_buffers);
    for (now_ = 0; now_ < events_.size() && result_.peak_bytes < bound; ++now_) {
      if (now_ == turn_) seed_gradients();
      const Event& event = events_[now_];
      if (event.kind == Kind::backward) {
        run_backward(event);
      } else {
        run_forward(event);
      }
    }
    return std::move(result_);
  }

  GraphTimeline run_with_buffers(const Order& order) {
    run(order, true);
    std::vector<Buffer> buffers;
    for (Buffer& buffer : buffers_) {
      if (buffer.end == 0) buffer.end = events_.size();
      if (buffer.bytes > 0 && buffer.begin < buffer.end) buffers.push_back(buffer);
    }
    return {order.events(), std::move(buffers)};
  }

 private:
  void begin(const Order& order, bool notes_buffers) {
    events_ = order.events();
    turn_ = order.turn();
    held_ = 0;
    result_ = {};
    for (const Event& event : events_) {
      if (event.kind == Kind::recompute) result_.cost += graph_.operators[event.op].cost;
    }
    result_.segment_peak_bytes.assign(graph_.segment_ends.size(), 0);
    result_.recompute_peak_bytes.assign(graph_.segment_ends.size(), 0);
    result_.operator_peak_bytes.assign(graph_.operators.size(), 0);
    const std::size_t tensors = graph_.bytes.size();
    is_there_ = graph_.is_given;
    has_gradient_.assign(tensors, false);
    tensor_buffer_.resize(tensors);
    gradient_buffer_.resize(tensors);
    window_of_.assign(tensors, no_window);
    windows_.assign(tensors, 0);
    notes_buffers_ = notes_buffers;
    buffers_.clear();
    find_last_uses(order.is_made());
  }

  void take(Buffer::Kind kind, std::uint32_t index, Bytes bytes) {
    held_ += bytes;
    if (!notes_buffers_) return;
    (kind == Buffer::Kind::tensor ? tensor_buffer_ : gradient_buffer_)[index] = buffers_.size();
    buffers_.push_back({kind, index, bytes, now_, 0});
  }

  /// A buffer freed during an event lives until the event's end; `is_before` frees it before the event.
  void give_back(std::size_t buffer, Bytes bytes, bool is_before = false) {
    held_ -= bytes;
    if (notes_buffers_) buffers_[buffer].end = now_ + (is_before ? 0 : 1);
  }

  /// For each event and for the turn: the tensors that nothing needs afterwards before they are made again.
  void find_last_uses(const std::vector<std::uint8_t>& is_made) {
    std::size_t held = graph_.held.size();
    is_needed_ = graph_.is_given;
    goes_.clear();
    goes_end_.resize(events_.size() + 1);
    results_.clear();
    const auto need = [&](std::uint32_t t) {
      if (!std::exchange(is_needed_[t], std::uint8_t{1})) goes_.push_back(t);
    };
    std::size_t output = is_made.size();
    for (std::size_t at = events_.size(); at-- > 0;) {
      const Event& event = events_[at];
      goes_end_[at + 1] = goes_.size();
      for (std::size_t k = 0; at + 1 == turn_ && k < graph_.results.size(); ++k) {
        if (!std::exchange(is_needed_[graph_.results[k]], std::uint8_t{1})) results_.push_back(graph_.results[k]);
      }
      if (event.kind == Kind::forward) {
        for (; held > 0 && graph_.held[held - 1].first == event.op; --held) need(graph_.held[held - 1].second);
      }
      if (event.kind != Kind::backward) {
        const std::span<const std::uint32_t> outputs = graph_.outputs[event.op];
        for (std::size_t k = outputs.size(); k-- > 0;) {
          const std::uint32_t t = outputs[k];
          if (!is_needed_[t]) goes_.push_back(t);
          if (is_made[--output] != 0) is_needed_[t] = false;
        }
      }
      for (const std::uint32_t t : (event.kind == Kind::backward ? graph_.reads : graph_.inputs)[event.op]) need(t);
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

  void run_forward(const Event& event) {
    Bytes copies = 0;  // outputs that exist already: made a second time and freed
    for (const std::uint32_t t : graph_.outputs[event.op]) {
      if (std::exchange(is_there_[t], std::uint8_t{1})) {
        copies += graph_.bytes[t];
      } else {
        take(Buffer::Kind::tensor, t, graph_.bytes[t]);
      }
    }
    const Bytes waiting = now_ < turn_ ? 0 : graph_.operators[event.reader].waiting_bytes;
    reach(event, graph_.operators[event.op].forward_peak_bytes + copies + waiting);
    release();
  }

  void run_backward(const Event& event) {
    const FlatGraph::Operator& op = graph_.operators[event.op];
    const std::span<const std::uint32_t> outputs = graph_.outputs[event.op];
    for (const std::uint32_t t : outputs) make_gradient(t);
    const bool is_passed_on = open_windows(event.op) || (op.is_backward_in_place && pass_gradient_on(event.op));
    if (op.is_backward_in_place || op.frees_reads_first) write_over_reads(event.op);
    for (const std::uint32_t t : graph_.inputs[event.op]) make_gradient(t);
    reach(event, op.backward_peak_bytes);
    for (const std::uint32_t t : outputs) {
      if (has_gradient_[t] && !(is_passed_on && t == outputs.front())) give_gradient_back(t);
      has_gradient_[t] = false;
    }
    release();
  }

  /// The tensors that are freed after this event.
  std::span<const std::uint32_t> going() const {
    return std::span(goes_).subspan(goes_end_[now_ + 1], goes_end_[now_] - goes_end_[now_ + 1]);
  }

  void release() {
    for (const std::uint32_t t : going()) {
      if (!std::exchange(is_there_[t], std::uint8_t{0})) continue;
      give_back(tensor_buffer_[t], graph_.bytes[t]);
    }
  }

  void give_gradient_back(std::uint32_t t) {
    const std::uint32_t whole = window_of_[t];
    if (whole == no_window) return give_back(gradient_buffer_[t], graph_.gradient_bytes[t]);
    if (--windows_[whole] == 0) give_gradient_back(whole);
  }

  /// Makes the gradients of inputs that are windows. False if there are none.
  bool open_windows(std::uint32_t op) {
    const std::uint32_t whole = graph_.outputs[op].front();
    for (const std::uint32_t t : graph_.windows[op]) {
      if (has_gradient_[t]) continue;
      has_gradient_[t] = true;
      window_of_[t] = whole;
      ++windows_[whole];
    }
    return windows_[whole] > 0;
  }

  /// Gives a buffer to the first missing input gradient of `bytes` bytes. False if there is none.
  bool inherit(std::uint32_t op, Bytes bytes, std::size_t buffer) {
    const std::span<const std::uint32_t> inputs = graph_.inputs[op];
    const auto heir = std::find_if(inputs.begin(), inputs.end(), [&](std::uint32_t t) {
      return !has_gradient_[t] && graph_.gradient_bytes[t] == bytes;
    });
    if (bytes == 0 || heir == inputs.end()) return false;
    has_gradient_[*heir] = true;
    gradient_buffer_[*heir] = buffer;
    return true;
  }

  /// Gives the buffer of the first output's gradient to an input gradient.
  bool pass_gradient_on(std::uint32_t op) {
    const std::uint32_t t = graph_.outputs[op].front();
    if (window_of_[t] != no_window) return false;
    return inherit(op, graph_.gradient_bytes[t], gradient_buffer_[t]);
  }

  /// Gives the buffers of tensors that nothing reads after this event to input gradients.
  void write_over_reads(std::uint32_t op) {
    const std::span<const std::uint32_t> last = going();
    for (const std::uint32_t t : graph_.reads[op]) {
      if (!is_there_[t] || std::find(last.begin(), last.end(), t) == last.end()) continue;
      if (inherit(op, graph_.bytes[t], tensor_buffer_[t])) is_there_[t] = false;
    }
  }

  void make_gradient(std::uint32_t t) {
    if (has_gradient_[t]) return;
    has_gradient_[t] = true;
    take(Buffer::Kind::gradient, t, graph_.gradient_bytes[t]);
  }

  /// At the turn: frees results and makes the first gradients.
  void seed_gradients() {
    for (const std::uint32_t t : results_) {
      if (std::exchange(is_there_[t], std::uint8_t{0})) give_back(tensor_buffer_[t], graph_.bytes[t], true);
    }
    for (const std::uint32_t t : graph_.seeds) make_gradient(t);
  }

  const FlatGraph& graph_;
  std::span<const Event> events_;
  std::vector<std::uint8_t> is_there_, has_gradient_, is_needed_;
  std::size_t turn_ = 0;                       // the first event after the forward
  std::vector<std::uint32_t> goes_, results_;  // freed after each event, from the last event on; freed at the turn
  std::vector<std::size_t> goes_end_;          // event i frees goes_[goes_end_[i + 1], goes_end_[i])
  std::size_t now_ = 0;                        // index of the current event
  Bytes held_ = 0;
  GraphCost result_;
  bool notes_buffers_ = false;
  std::vector<Buffer> buffers_;
  std::vector<std::size_t> tensor_buffer_, gradient_buffer_;  // per tensor, while it has one
  static constexpr std::uint32_t no_window = ~0u;
  std::vector<std::uint32_t> window_of_;  // per tensor: its gradient is a window of this tensor's gradient
  std::vector<std::uint32_t> windows_;    // per tensor: open windows of its gradient
};

}  // namespace graph_simulator_detail

struct GraphSimulator::State {
  explicit State(const Graph& whole) : graph(whole), order(graph), step(graph) {}

  void make_order(const Selection& selection) {
    std::vector<std::uint8_t> is_held(graph.bytes.size()), can_run(graph.operators.size());
    for (const std::uint32_t t : selection.kept) {
      if (t >= is_held.size()) throw PlanError("remat simulate: tensor " + std::to_string(t) + " does not exist");
      is_held[t] = true;
    }
    for (const std::uint32_t i : selection.recomputed) {
      if (i >= can_run.size() || !graph.can_run[i]) {
        throw PlanError("remat simulate: operator " + std::to_string(i) + " does not exist or cannot be recomputed");
      }
      can_run[i] = true;
    }
    order.make(is_held, can_run, selection.drops);
  }

  graph_simulator_detail::FlatGraph graph;
  graph_simulator_detail::Order order;
  graph_simulator_detail::Step step;
  std::vector<std::uint8_t> can_make, is_held;  // of tensors
};

GraphSimulator::GraphSimulator(const Graph& graph) : state_(std::make_unique<State>(graph)) {}
GraphSimulator::~GraphSimulator() = default;

GraphCost GraphSimulator::run(const Selection& selection) {
  state_->make_order(selection);
  return state_->step.run(state_->order);
}

GraphTimeline GraphSimulator::timeline(const Selection& selection) {
  state_->make_order(selection);
  return state_->step.run_with_buffers(state_->order);
}

Selection GraphSimulator::close(const std::vector<bool>& wanted, std::vector<Drop> drops) {
  if (state_->can_make.empty()) {
    const std::vector<bool> can_make = recomputable(state_->graph.graph);
    state_->can_make.assign(can_make.begin(), can_make.end());
  }
  state_->is_held.resize(wanted.size());
  for (std::size_t t = 0; t < wanted.size(); ++t) state_->is_held[t] = wanted[t] || !state_->can_make[t];
  std::erase_if(drops, [&](const Drop& drop) { return !state_->can_make[drop.tensor]; });
  std::stable_sort(drops.begin(), drops.end(), [](const Drop& a, const Drop& b) { return a.after < b.after; });
  state_->order.make(state_->is_held, state_->graph.can_run, drops);
  return state_->order.selection();
}

GraphCost GraphSimulator::run_closed(Bytes bound) { return state_->step.run(state_->order, false, bound); }

std::vector<GraphSimulator::Gap> GraphSimulator::gaps(const Selection& selection) {
  using namespace graph_simulator_detail;
  state_->make_order(selection);
  const FlatGraph& graph = state_->graph;
  const Order& order = state_->order;
  const auto turn = static_cast<std::uint32_t>(graph.operators.size());
  std::vector<std::uint32_t> last(graph.bytes.size());  // step that last used or made each tensor
  std::vector<Gap> gaps;
  auto is_made = order.is_made().begin();
  for (std::size_t at = 0; at < order.events().size(); ++at) {
    const Event& event = order.events()[at];
    const bool is_backward = event.kind == Kind::backward;
    const std::uint32_t step = at < order.turn() ? event.reader : 2 * turn - 1 - event.reader;
    for (const std::uint32_t t : (is_backward ? graph.reads : graph.inputs)[event.op]) {
      const std::uint32_t before = std::exchange(last[t], step);
      if (graph.is_given[t] || before == step || (before < turn && step >= turn)) continue;
      gaps.push_back({{t, before}, step});
    }
    if (is_backward) continue;
    for (const std::uint32_t t : graph.outputs[event.op]) {
      if (*is_made++ != 0) last[t] = step;
    }
  }
  return gaps;
}

Selection close_selection(const Graph& graph, const std::vector<bool>& wanted, std::vector<Drop> drops) {
  if (wanted.size() != graph.tensors.size()) {
    throw ValueError("remat close_selection: " + std::to_string(wanted.size()) + " flags for " +
                     std::to_string(graph.tensors.size()) + " tensors");
  }
  return GraphSimulator(graph).close(wanted, std::move(drops));
}

GraphCost simulate(const Graph& graph, const Selection& selection) {
  validate(graph);
  return simulate_valid(graph, selection);
}

GraphCost simulate_valid(const Graph& graph, const Selection& selection) {
  return GraphSimulator(graph).run(selection);
}

GraphTimeline timeline(const Graph& graph, const Selection& selection) {
  validate(graph);
  return GraphSimulator(graph).timeline(selection);
}

}  // namespace thimble::remat
