#pragma once
// Schedules for chains: as a list of operations, as a tree, and the simulator that proves either.
//
// Terms
//   list     the operations in the order in which they run
//   tree     the nested form: the fate of each stage on each visit; to_schedule() makes its list
//   dropped  a segment of stages run without recording: only its first input stays. When the backward reaches the
//            segment, it runs again as the tree says
//   persistent  a kept tensor stays until its backward; a recorded stage's output is kept for the next stage; a forward
//            begins at the latest held activation and ends with a recorded stage; a backward runs as soon as it can
//            (after Beaumont et al. 2019). Each persistent list comes from one tree, and each tree whose visits end
//            with a recorded stage makes a persistent list

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <thimble/memory/remat/chain.h>

namespace thimble::remat {

// ---- The list

/// Beaumont et al. 2019 call the first three kinds F_none, F_ck and F_all.
struct Operation {
  enum class Kind : std::uint8_t {
    pass,        ///< forward that records nothing and drops its input a_i
    checkpoint,  ///< forward that records nothing and leaves its input a_i held
    record,      ///< forward of all stages of an option, beginning with `stage`, that keeps the option's tensors
    drop,        ///< release the activation a_{stage} (stage may be n: the last output)
    backward,    ///< backward of the stages [i, e) recorded at `stage` i; releases d_e, a_e, the option's tensors, and
                 ///< a_i unless the recording before it keeps its output
  };
  Kind kind = Kind::pass;
  std::uint32_t stage = 0;
  std::uint32_t option = 0;  ///< of record

  friend bool operator==(const Operation&, const Operation&) = default;
};

using Schedule = std::vector<Operation>;

/// "record 3 (option 1)"
std::string to_string(const Operation& operation);

// ---- The nested form

/// A schedule as a tree, flattened in preorder. At the outermost level the items cover the stages 0..n-1 from left to
/// right. A recorded item holds the stages of one option. A dropped item is a segment [begin, end); the `size` items
/// after it are its re-run: they cover its stages again and may drop some of them again. Every stage is recorded
/// exactly once, so there are at most 2n - 1 items.
struct ScheduleTree {
  struct Item {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;     ///< begin + the option's span if recorded
    std::uint32_t option = 0;  ///< if recorded
    std::uint32_t size = 0;    ///< items of the re-run, nested ones included; recorded items have 0

    bool is_dropped() const noexcept { return size > 0; }
    friend bool operator==(const Item&, const Item&) = default;
  };
  std::vector<Item> items;

  friend bool operator==(const ScheduleTree&, const ScheduleTree&) = default;
};

/// Throws PlanError, naming the item, when the items do not cover the stages as ScheduleTree says, name an option that
/// the stage does not have, or are recorded with an option of another span.
void validate(const ScheduleTree& plan, const Chain& chain);

/// The list of a tree. The output of a stage that ends a visit is dropped at once unless its backward reads it.
/// Throws PlanError as validate does.
Schedule to_schedule(const ScheduleTree& plan, const Chain& chain);

/// `[0 1.2 {2..4 -> [2 3-4.1]} 5]`: stage.option for a recorded stage (option 0 is left out), first-last.option for
/// several, braces for a dropped segment and its re-run.
std::string to_string(const ScheduleTree& plan);

// ---- The simulator

/// A forward before the first backward, a forward after it, or the recomputing or backward of a recording.
enum class Phase : std::uint8_t { forward, rerun, recompute, backward };
inline constexpr std::size_t phase_count = 4;

/// The costs of a schedule. All bytes include the chain's input.
struct ScheduleCost {
  Time time = 0;
  Time extra_time = 0;                                ///< re-run forwards and recompute_time: time beyond one visit
  Bytes peak_bytes = 0;                               ///< most bytes alive at once
  std::array<Bytes, phase_count> phase_peak_bytes{};  ///< by Phase; 0 for a phase that did not run
  std::size_t peak_operation = 0;                     ///< index of the first operation that reaches the peak
  std::vector<std::uint32_t> forward_counts;          ///< forwards of each stage, recorded ones included

  friend bool operator==(const ScheduleCost&, const ScheduleCost&) = default;
};

/// Runs operations one by one on the numbers of a chain, which must outlive it. Independent of the solvers: it proves
/// that a schedule is legal and counts its time and bytes.
class Simulator {
 public:
  /// Throws ValueError as validate(chain) does, and for chains with shared tensors.
  explicit Simulator(const Chain& chain);

  /// Throws PlanError, and changes nothing, when the operation needs a tensor that is not held, makes a held activation
  /// again, records a stage twice, or drops a tensor that a backward still needs.
  void apply(const Operation& operation);

  /// Whether the backward of every stage has run.
  bool is_complete() const noexcept { return next_backward_ == 0; }

  Bytes held_bytes() const noexcept { return held_bytes_; }
  bool holds_activation(std::size_t i) const { return has_activation_[i] != 0; }
  bool is_recorded(std::size_t stage) const { return begin_[stage] >= 0; }
  /// 1 + the last stage of the recording whose backward is due; 0 once all have run.
  std::size_t next_backward() const noexcept { return next_backward_; }
  /// The first stage of the recording of a recorded stage.
  std::size_t recorded_from(std::size_t stage) const { return static_cast<std::size_t>(begin_[stage]); }

  const ScheduleCost& cost() const noexcept { return cost_; }

 private:
  void forward(const Operation& operation);
  void drop(std::size_t activation);
  void backward(const Operation& operation);
  void release_activation(std::size_t i);
  const Option* recorded_at(std::size_t i) const;
  const Option* recorded_up_to(std::size_t i) const;
  bool is_pinned(std::size_t i) const;
  void reach(Phase phase, Bytes extra_bytes);
  [[noreturn]] static void refuse(const Operation& operation, const std::string& why);

  const Chain* chain_;
  std::vector<std::uint8_t> has_activation_;  // n + 1
  std::vector<std::int32_t> begin_;           // per stage, the first stage of its recording, or -1
  std::vector<std::uint32_t> option_;         // of the first stage of a recording
  std::size_t next_backward_;
  std::size_t operation_count_ = 0;
  Bytes held_bytes_ = 0;
  ScheduleCost cost_;
};

/// Runs a schedule on a chain. Throws PlanError when an operation is illegal (naming its index) or when a backward is
/// missing at the end.
ScheduleCost simulate(const Chain& chain, std::span<const Operation> schedule);

/// Runs the list of a tree.
ScheduleCost simulate(const Chain& chain, const ScheduleTree& plan);

// ---- Schedules from the literature, for chains of equal stages. All record with option 0 and throw ValueError when n
// is 0.
//
// Terms
//   slot         place for one activation that a re-run can start from, the chain's input included
//   repetition   r: most forwards of a stage before it is recorded

/// Records every stage in one visit: recomputes nothing except inside an option.
ScheduleTree keep_all(std::size_t n);

/// Drops all segments of k stages but the last: the activations between them stay, and each dropped segment runs a
/// second time. Holds n / k + k stages' worth (Chen et al. 2016, section 4.1). Throws ValueError when k is 0.
ScheduleTree every_kth(std::size_t n, std::size_t k);

/// every_kth with k = ceil(sqrt(n)): 2 sqrt(n) stages' worth for at most one more forward.
ScheduleTree square_root(std::size_t n);

/// Drops the first half and treats the rest, and every re-run, in the same way: about log2(n) activations held and
/// n log2(n) / 2 forwards beyond recording (Chen et al. 2016, section 4.3, with two parts on each level).
ScheduleTree recursive_halves(std::size_t n);

/// The binomial schedule of Griewank & Walther 2000 (Revolve): with `slots` activations held at once, the fewest
/// forwards, revolve_forward_count(n, slots). One stage is recorded at a time. Throws ValueError when slots is 0.
ScheduleTree binomial(std::size_t n, std::size_t slots);

/// C(n, k), saturating at largest_total.
std::int64_t binomial_coefficient(std::int64_t n, std::int64_t k);

/// The least r with n <= C(slots + r, slots): the repetitions that n stages need.
std::int64_t revolve_repetitions(std::size_t n, std::size_t slots);

/// t(n, slots) = r n - C(slots + r, r - 1), r = revolve_repetitions: forwards that record nothing (Griewank & Walther
/// 2000, proposition 1). Every stage is recorded once besides, so n + t forwards run in all.
std::int64_t revolve_forward_count(std::size_t n, std::size_t slots);

}  // namespace thimble::remat
