#pragma once
// What all optimizers share: the parameters they update, the state they keep, and the learning rate. An optimizer names
// the state of a parameter (make_state), and tells a kernel what to update (update).
//
// State can be away between updates, in a tier (memory/offload/tier.h): `AdamOptions{.tier = tier}`.
// - It goes as soon as it is made, parameter by parameter, so that it is never here as a whole. An update fetches that
//   of its parameter, and it goes again after; step() reads one parameter ahead, and the last one's write ends with
//   end_step(). The bits are those of state that stays.
// - Memory is taken and given back at the same places on a dry device: a dry run predicts it.
//
// So can parameters (core/tensor/parameter_store.h): an update fetches its own, and end_step() lets go of all.

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/autograd/leaf_set.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/offload/offload.h>
#include <thimble/optim/moments.h>
#include <thimble/optim/narrow.h>

namespace thimble::optim {

/// A tensor and its dotted name.
struct Named {
  std::string name;
  Tensor tensor;
  /// Where the tensor is a part of a parameter, or of its state, as ranks share them out (optim/ranks.h): where it
  /// begins, and the elements of the whole; 0: it is the whole.
  std::int64_t first_element = 0, elements_of_whole = 0;

  bool is_part() const noexcept { return elements_of_whole != 0; }
  std::int64_t whole_elements() const noexcept { return is_part() ? elements_of_whole : tensor.elements(); }
};

/// Throws AutogradError where a module no longer holds one of these tensors.
void check_members(const std::vector<Named>& parameters);
/// Throws ValueError, naming both, where two of these are one leaf: what is done to each would be done to it twice.
void check_distinct(const char* operation, const std::vector<Named>& parameters);

/// An option of an optimizer that changes its updates.
struct Setting {
  std::string name;
  double value = 0;
  friend bool operator==(const Setting&, const Setting&) = default;
};

/// State is made in the constructor, all of it, so that a plan knows it before the first step and a step needs no
/// memory, unless the state is away.
class Optimizer {
 public:
  /// `tier`: where the state waits between updates; null: it stays. `narrow`: how parameters narrower than f32 are
  /// updated. `moments`: how add_moment stores them. Throws AutogradError when a parameter is not a leaf, ValueError
  /// for a rate out of range and for a leaf that is listed twice.
  Optimizer(std::vector<Named> parameters, double rate, std::shared_ptr<Tier> tier = nullptr,
            NarrowUpdate narrow = NarrowUpdate::rounded, MomentFormat moments = {});
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update of every parameter that has a gradient. Writes in place; allocates nothing, so it cannot fail half-way.
  /// With state or parameters away it throws FileError and OutOfMemory, and then some of the parameters may be updated.
  void step();
  /// The same in parts: counts the update that begins ...
  void begin_step() noexcept { ++step_count_; }
  /// ... and does that of one parameter, where it has a gradient. Throws ValueError for an index out of range.
  void step_one(std::size_t index);
  /// ... and ends it: completes writes to a tier, and puts the parameters of a store away.
  /// Throws FileError.
  void end_step();
  /// Throws AutogradError where a module now holds another tensor than the one that is trained here: it was assigned
  /// after the optimizer was made, and would stay as it is. step() and nn::training_step ask first.
  void check_members() const { optim::check_members(parameters_); }
  /// Forgets (and so frees) all gradients.
  void zero_grad();

  double rate() const noexcept { return rate_; }
  /// Throws ValueError when negative or not finite.
  void set_rate(double rate);
  /// What gradients are multiplied by as an update reads them, so that a scaled gradient is never written down
  /// unscaled, in a dtype that may be too narrow for that. 1 unless it is set. Throws ValueError unless finite and >=
  /// 0, or for a factor other than 1 where the optimizer does not take one: it would be forgotten in silence.
  double gradient_factor() const noexcept { return gradient_factor_; }
  void set_gradient_factor(double factor);
  virtual bool takes_gradient_factor() const noexcept { return false; }
  /// Whether the update is elementwise, so that parts of a parameter can be updated separately.
  virtual bool is_elementwise() const noexcept { return true; }
  /// Whether a captured step (nn/step/captured_step.h) can replay its updates: the same launches in every step.
  virtual bool is_capturable() const noexcept { return true; }
  /// Updates done so far.
  std::int64_t step_count() const noexcept { return step_count_; }
  void set_step_count(std::int64_t count) noexcept { step_count_ = count; }

  const std::vector<Named>& parameters() const noexcept { return parameters_; }
  /// The parameters as a tape takes them (Tape::train).
  const LeafSet& leaves() const noexcept { return leaves_; }
  /// State tensors, named PARAMETER.KIND: what a checkpoint holds besides parameters and step_count(). Those that are
  /// away are undefined until fetch_state().
  std::vector<Named> state() const;
  /// The same, where those that are away have shape, dtype and device, and no bytes.
  std::vector<Named> state_outline() const;
  /// Calls `visit` with the state of one parameter after the other, in the order of state(): what is away comes here
  /// before and goes away again after, with what `visit` wrote to it, so that it is never here as a whole. Throws what
  /// `visit` throws, after the state went away; FileError, OutOfMemory.
  void each_state(FunctionRef<void(std::span<const Named>)> visit) const;
  /// Bytes of all state tensors, wherever they are.
  std::size_t state_bytes() const;
  bool offloads_state() const noexcept { return tier_ != nullptr; }
  /// The stores that have its parameters, each once.
  std::vector<ParameterStore*> parameter_stores() const;
  /// Whether an update is made parameter by parameter, since state or parameters are away, and can fail half-way.
  bool updates_one_by_one() const;
  /// Where it waits; null: it stays.
  const std::shared_ptr<Tier>& tier() const noexcept { return tier_; }
  /// Fetches all state that is away; it stays until put_state_away(). Throws FileError, OutOfMemory.
  void fetch_state();
  /// The reverse. Does nothing without a tier. Throws FileError.
  void put_state_away();
  /// Names of the parameters whose moments are in full though the format is a narrower one.
  std::vector<std::string> kept_full() const;
  virtual const char* name() const noexcept = 0;
  /// The options that change updates, without the rate and what name() tells: a checkpoint of nn::Trainer has them, and
  /// a run that goes on with others is refused. None where an optimizer of one's own does not say.
  virtual std::vector<Setting> settings() const { return {}; }

 protected:
  /// Updates these parameters, which are on one device with their gradients and state, in as few launches as the
  /// device's kernels allow. The bits are those of one after the other.
  virtual void update(std::span<const std::size_t> indices) = 0;
  /// For constructors: throws ValueError, under the optimizer's name, for an option out of range.
  void require(bool is_in_range, const char* option, double value) const;
  /// For constructors: checks the moments' format, then calls add(index) for each parameter, which adds its state; what
  /// the parameter needs by its NarrowUpdate follows, and its state goes to the tier. Throws as check_format and
  /// make_extra do.
  void make_state(FunctionRef<void(std::size_t)> add);
  /// Adds `<parameter>.<kind>`, which has one element for so many of the parameter.
  void add_state(std::size_t index, std::string_view kind, Tensor tensor, std::int64_t elements_each = 1);
  /// Adds a moment, as `<parameter>.<kind>`, and its scales, where there are some, as `<parameter>.<kind>_scale`.
  void add_moment(std::size_t index, std::string_view kind, bool is_signed);

  /// The state that was added; undefined where it is away or none was.
  Tensor state_of(std::size_t index, std::string_view kind) const;
  /// Writes a kernel's arguments for a parameter, except the numbers of its rule.
  void set_arguments(kernels::UpdateArgs& args, std::size_t index, double weight_decay, const Addresses& at) const;
  /// The same with the moments of these kinds; empty: the rule has none.
  void set_arguments(kernels::ElementArgs& args, std::size_t index, double weight_decay, const Addresses& at,
                     std::string_view first, std::string_view second) const;

 private:
  /// One of a parameter's state tensors; undefined where it is not.
  struct State {
    std::string kind;
    Tensor here;
    std::unique_ptr<memory::Offloaded> away;  // null: it stays
    std::int64_t elements_each;               // of the parameter, for one of its own
    bool is_away() const noexcept { return away != nullptr && away->defined(); }
  };
  const State* find(std::size_t index, std::string_view kind) const;
  Named named(std::size_t index, const State& state) const;
  void bump_versions(std::size_t index) const;
  void step_all();
  void put_away(std::size_t index);
  void prefetch(std::size_t index);
  void fetch(std::size_t index);
  void complete_writes();

  std::vector<Named> parameters_;
  LeafSet leaves_;
  NarrowUpdate narrow_;
  MomentFormat moments_;
  std::vector<std::vector<State>> states_;  // of each parameter
  std::shared_ptr<Tier> tier_;
  std::vector<std::size_t> writing_;        // parameters whose state is on its way
  std::vector<std::size_t> with_gradient_;  // of the update under way; it has room for all
  double rate_;
  double gradient_factor_ = 1;
  std::int64_t step_count_ = 0;
};

}  // namespace thimble::optim
