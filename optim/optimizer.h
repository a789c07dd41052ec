#pragma once
// Shared by all optimizers: the parameters they update, the state they keep, and the learning rate. An optimizer names
// the state of a parameter (make_state), and fills a kernel's arguments (update).
//
// State can be away between updates, in a tier (memory/offload/tier.h): `AdamOptions{.tier = tier}`.
// - It is sent as soon as it is made, parameter by parameter, so that it is never whole in memory. An update fetches
//   its parameter's state and sends it back after; step() reads one parameter ahead, and the last one's write ends with
//   end_step(). The bits equal resident state's.
// - Memory is taken and given back at the same places on a dry device: a dry run predicts it.
//
// So can parameters (core/tensor/parameter_store.h): an update fetches its parameters, and end_step() evicts all.

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <thimble/autograd/leaf_set.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/core/threads/parallel.h>
#include <thimble/memory/offload/offload.h>
#include <thimble/optim/moments.h>

namespace thimble::optim {

/// A tensor and its dotted name.
struct Named {
  std::string name;
  Tensor tensor;
  /// For a shard of a parameter or of its state (optim/ranks.h): its first element, and the elements of the whole; 0
  /// for a whole one.
  std::int64_t first_element = 0, elements_of_whole = 0;

  bool is_part() const noexcept { return elements_of_whole != 0; }
  std::int64_t whole_elements() const noexcept { return is_part() ? elements_of_whole : tensor.elements(); }
};

/// Throws AutogradError where a module no longer holds one of these tensors.
void check_members(const std::vector<Named>& parameters);
/// Throws ValueError, naming both, where two of these are one leaf: every operation would apply to it twice.
void check_distinct(const char* operation, const std::vector<Named>& parameters);
/// Throws DeviceError or ShapeError where the gradient, if there is one, is elsewhere than the parameter, of another
/// shape or not dense: kernels read as many elements as the parameter has, one after the other.
void check_gradient(const char* operation, const Named& parameter);

/// An option of an optimizer that changes its updates.
struct Setting {
  std::string name;
  double value = 0;
  friend bool operator==(const Setting&, const Setting&) = default;
};

/// Parameters that are updated at another rate, or with another decay, than the optimizer's others.
struct ParameterGroup {
  std::function<bool(const Named& parameter)> has;
  double rate_factor = 1;                   ///< multiplies Optimizer::rate()
  std::optional<double> weight_decay = {};  ///< defaults to the optimizer's
};

/// While it lives, an optimizer that is made on this thread updates what `replace` returns for the parameters that it
/// is given: on one of several ranks, its shards of them (dist::DataParallel::parameters()). Scopes nest, and the
/// innermost counts.
class ParameterReplacement {
 public:
  explicit ParameterReplacement(FunctionRef<std::vector<Named>(std::vector<Named>)> replace) noexcept;
  ~ParameterReplacement();
  ParameterReplacement(const ParameterReplacement&) = delete;
  ParameterReplacement& operator=(const ParameterReplacement&) = delete;

 private:
  friend class Optimizer;
  FunctionRef<std::vector<Named>(std::vector<Named>)> replace_;
  const ParameterReplacement* outer_;
};

/// While it lives, an optimizer that is made on this thread without a tier, and that has state, keeps it in a tier that
/// `make` makes. Scopes nest, and the innermost counts.
class StateTierScope {
 public:
  explicit StateTierScope(FunctionRef<std::shared_ptr<Tier>()> make) noexcept;
  ~StateTierScope();
  StateTierScope(const StateTierScope&) = delete;
  StateTierScope& operator=(const StateTierScope&) = delete;

 private:
  friend class Optimizer;
  FunctionRef<std::shared_ptr<Tier>()> make_;
  const StateTierScope* outer_;
};

/// The constructor makes all state, so that a plan knows it before the first step and a step allocates nothing, unless
/// the state is away.
class Optimizer {
 public:
  /// `tier` takes the state between updates; null keeps it here. `narrow`: how parameters narrower than f32 are
  /// updated. `moments`: how add_moment stores them. Throws AutogradError when a parameter is not a leaf, ValueError
  /// for a rate out of range and for a leaf that is listed twice.
  Optimizer(std::vector<Named> parameters, double rate, std::shared_ptr<Tier> tier = nullptr,
            NarrowUpdate narrow = NarrowUpdate::rounded, MomentFormat moments = {});
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update of every parameter that has a gradient. Writes in place; allocates nothing, so it cannot fail half-way.
  /// Throws as check_gradient before any; with state or parameters away FileError and OutOfMemory, maybe after some.
  void step();
  /// The same in parts: counts the update that begins ...
  void begin_step() noexcept { ++step_count_; }
  /// ... and updates one parameter, if it has a gradient. Throws ValueError for an index out of range, and as
  /// check_gradient does.
  void step_one(std::size_t index);
  /// ... and ends it: completes writes to a tier, and evicts the parameters of a store. Throws FileError.
  void end_step();
  /// Throws AutogradError where a module now holds another tensor than the trained one: it was assigned after the
  /// optimizer was made, and would never be updated. step() and nn::training_step check first.
  void check_members() const { optim::check_members(parameters_); }
  /// Forgets (and so frees) all gradients.
  void zero_grad();

  double rate() const noexcept { return rate_; }
  /// Throws ValueError when negative or not finite.
  void set_rate(double rate);
  /// The factor that an update multiplies gradients by, so that an unscaled gradient is never stored in a dtype too
  /// narrow for it. Defaults to 1. Throws ValueError unless finite and >= 0, or for a factor other than 1 where the
  /// optimizer ignores it.
  double gradient_factor() const noexcept { return gradient_factor_; }
  void set_gradient_factor(double factor);
  virtual bool takes_gradient_factor() const noexcept { return false; }
  /// Whether the rule makes its rate itself and ignores rate(), as Adafactor's relative steps do.
  virtual bool makes_rate() const noexcept { return false; }
  /// Whether the update is elementwise, so that shards of a parameter can be updated separately.
  virtual bool is_elementwise() const noexcept { return true; }
  /// Whether a captured step (nn/step/captured_step.h) can replay its updates: the same launches in every step.
  virtual bool is_capturable() const noexcept { return true; }
  /// Replaces the groups; parameters that none has are updated by the optimizer's own numbers. A captured step
  /// (nn/step/captured_step.h) takes no groups. Throws ValueError for a group that has no parameter, a parameter that
  /// two have, and a factor or decay that is negative or not finite.
  void set_groups(const std::vector<ParameterGroup>& groups);
  bool has_groups() const noexcept { return !own_.empty(); }
  /// Of the parameters in groups, as a checkpoint has them: "NAME.rate_factor", "NAME.weight_decay".
  std::vector<Setting> group_settings() const;
  /// Updates done so far. Throws ValueError when negative.
  std::int64_t step_count() const noexcept { return step_count_; }
  void set_step_count(std::int64_t count);

  const std::vector<Named>& parameters() const noexcept { return parameters_; }
  /// The parameters as a set for Tape::train.
  const LeafSet& leaves() const noexcept { return leaves_; }
  /// State tensors, named PARAMETER.KIND, for checkpoints, beside parameters and step_count(). Tensors that are away
  /// are undefined until fetch_state().
  std::vector<Named> state() const;
  /// The same, where tensors that are away have shape, dtype and device, and no bytes.
  std::vector<Named> state_outline() const;
  /// Calls `visit` with the state of one parameter after the other, in the order of state(): state that is away is
  /// fetched before and sent back after, with `visit`'s changes, so that it is never whole in memory. Throws as `visit`
  /// does, after the state was sent; FileError, OutOfMemory.
  void each_state(FunctionRef<void(std::span<const Named>)> visit) const;
  /// Bytes of all state tensors, wherever they are.
  std::size_t state_bytes() const;
  bool offloads_state() const noexcept { return tier_ != nullptr; }
  /// The stores that have its parameters, each once.
  std::vector<ParameterStore*> parameter_stores() const;
  /// Whether parameters are updated one by one, since state or parameters are away, and an update can fail half-way.
  bool updates_one_by_one() const;
  /// Takes the state; null keeps it here.
  const std::shared_ptr<Tier>& tier() const noexcept { return tier_; }
  /// Fetches all state that is away, until put_state_away(). Throws FileError, OutOfMemory.
  void fetch_state();
  /// The reverse. Does nothing without a tier. Throws FileError.
  void put_state_away();
  /// Names of the parameters whose moments are in full despite a narrower format.
  std::vector<std::string> kept_full() const;
  virtual const char* name() const noexcept = 0;
  /// The options that change updates, without the rate and anything in name(): a checkpoint of nn::Trainer has them,
  /// and resuming with others is refused. Empty if a user's optimizer does not define them.
  virtual std::vector<Setting> settings() const { return {}; }

 protected:
  /// Updates these parameters, which are on one device with their gradients and state, in as few launches as the
  /// device's kernels allow. The bits equal updates one by one.
  virtual void update(std::span<const std::size_t> indices) = 0;
  /// For constructors: throws ValueError unless `is_in_range` and finite. `option` has the name and the range:
  /// "beta1 in [0, 1)".
  void require(bool is_in_range, const char* option, double value) const;
  /// The same for a rule that computes in f32: throws DTypeError for a parameter in f64.
  void refuse_f64() const;
  /// For constructors: checks the moments' format, then calls add(index) for each parameter, which adds its state; then
  /// adds the extra of its NarrowUpdate, and sends its state to the tier. Throws as check_format and make_extra do.
  void make_state(FunctionRef<void(std::size_t)> add);
  /// Adds `<parameter>.<kind>`, which has one element for so many of the parameter.
  void add_state(std::size_t index, std::string_view kind, Tensor tensor, std::int64_t elements_each = 1);
  /// Adds a state tensor of zeros in f32.
  void add_zeros(std::size_t index, std::string_view kind, const Shape& shape);
  /// Adds a moment, as `<parameter>.<kind>`, and its scales, if any, as `<parameter>.<kind>_scale`.
  void add_moment(std::size_t index, std::string_view kind, bool is_signed);

  /// The added state; undefined where it is away or missing.
  Tensor state_of(std::size_t index, std::string_view kind) const;
  /// Decays a parameter's elements from `first` on, and moves them by -rate times `along`, which is dense and f32.
  void move_along(std::size_t index, double weight_decay, const Tensor& along, std::int64_t first = 0);
  /// Writes a kernel's arguments for a parameter, except the numbers of its rule.
  void set_arguments(kernels::UpdateArgs& args, std::size_t index, double weight_decay, const Addresses& at) const;
  /// The same with the moments of these kinds; empty if the rule has none.
  void set_arguments(kernels::ElementArgs& args, std::size_t index, double weight_decay, const Addresses& at,
                     std::string_view first, std::string_view second) const;

 private:
  /// One of a parameter's state tensors; undefined while away.
  struct State {
    std::string kind;
    Tensor here;
    std::unique_ptr<memory::Offloaded> away;  // null while here
    std::int64_t elements_each;               // of the parameter, per element of state
    bool is_away() const noexcept { return away != nullptr && away->defined(); }
  };
  /// A parameter's numbers, where it is in a group.
  struct Own {
    double rate_factor = 1;
    std::optional<double> weight_decay = {};
    bool is_grouped = false;
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
  std::vector<Own> own_;                    // of each parameter; empty without groups
  std::shared_ptr<Tier> tier_;
  std::vector<std::size_t> writing_;        // parameters whose state is being written
  std::vector<std::size_t> with_gradient_;  // of the current update; it has room for all
  double rate_;
  double gradient_factor_ = 1;
  std::int64_t step_count_ = 0;
};

// Names of parameters in options: "wte", or "gpt.h0" for all that begin with "gpt.h0.".

inline bool is_named(const std::string& parameter, const std::string& name) {
  return parameter == name || parameter.starts_with(name + ".");
}

}  // namespace thimble::optim
