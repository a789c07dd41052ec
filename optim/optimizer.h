#pragma once
// Base of all optimizers: parameters, state and learning rate. A derived class names the state of a parameter
// (make_state) and fills a kernel's arguments (update).
//
// State can stay in a tier between updates (memory/offload/tier.h): `AdamOptions{.tier = tier}`.
// - State is sent as soon as it is made, parameter by parameter, so memory never holds all of it. An update fetches its
//   parameter's state and sends it back afterwards; step() reads one parameter ahead, and end_step() completes the last
//   write. The bits equal resident state's.
// - A dry device allocates and frees at the same places, so that a dry run predicts the memory.
//
// Parameters can also stay in a store (core/tensor/parameter_store.h): an update fetches them, end_step() evicts all.

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
  /// For a shard of a parameter or of its state (optim/ranks.h): its first element and the whole's elements; else 0.
  std::int64_t first_element = 0, elements_of_whole = 0;

  bool is_part() const noexcept { return elements_of_whole != 0; }
  std::int64_t whole_elements() const noexcept { return is_part() ? elements_of_whole : tensor.elements(); }
};

/// Throws AutogradError if a module no longer holds one of these tensors.
void check_members(const std::vector<Named>& parameters);
/// Throws ValueError that names two parameters with the same leaf, to which operations would apply twice.
void check_distinct(const char* operation, const std::vector<Named>& parameters);
/// Throws DeviceError or ShapeError if there is a gradient on another device than the parameter, of another shape, or
/// not dense, because kernels read it as the parameter's elements in order.
void check_gradient(const char* operation, const Named& parameter);

/// An option of an optimizer that changes its updates.
struct Setting {
  std::string name;
  double value = 0;
  friend bool operator==(const Setting&, const Setting&) = default;
};

/// Parameters that are updated at another rate, or with another decay, than the optimizer's others.
struct ParameterGroup {
  std::function<bool(const Named& parameter)> has;  ///< of a rank's shard, too (Named::is_part)
  double rate_factor = 1;                           ///< multiplies Optimizer::rate()
  std::optional<double> weight_decay = {};          ///< defaults to the optimizer's
};

/// While it lives, optimizers made on this thread update replace(parameters) instead of their parameters: on one of
/// several ranks, its shards (dist::DataParallel::parameters()). Of nested scopes the innermost counts.
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

/// While it lives, optimizers with state that are made on this thread without a tier keep the state in a tier from
/// `make`. Of nested scopes the innermost counts.
class StateTierScope {
 public:
  explicit StateTierScope(FunctionRef<std::shared_ptr<memory::Tier>()> make) noexcept;
  ~StateTierScope();
  StateTierScope(const StateTierScope&) = delete;
  StateTierScope& operator=(const StateTierScope&) = delete;

 private:
  friend class Optimizer;
  FunctionRef<std::shared_ptr<memory::Tier>()> make_;
  const StateTierScope* outer_;
};

/// The constructor makes all state, so that a plan knows it before the first step, and a step allocates nothing unless
/// the state is in a tier.
class Optimizer {
 public:
  /// `tier` holds the state between updates; null keeps it resident. `narrow` is the update of parameters narrower than
  /// f32, `moments` the storage of moments. Throws AutogradError if a parameter is not a leaf, ValueError for a rate
  /// out of range and for a leaf that is listed twice.
  Optimizer(std::vector<Named> parameters, double rate, std::shared_ptr<memory::Tier> tier = nullptr,
            NarrowUpdate narrow = NarrowUpdate::rounded, MomentFormat moments = {});
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every parameter that has a gradient, in place, without allocations, so that it cannot fail half-way.
  /// Throws as check_gradient before the first update; with offloaded state or parameters FileError and OutOfMemory,
  /// possibly after some updates.
  void step();
  /// step() in parts: counts the update that begins ...
  void begin_step() noexcept { ++step_count_; }
  /// ... and updates one parameter, if it has a gradient. Throws ValueError for an index out of range, and as
  /// check_gradient does.
  void step_one(std::size_t index);
  /// ... and ends it: completes writes to a tier, and evicts the parameters of a store. Throws FileError.
  void end_step();
  /// Throws AutogradError if a module now holds another tensor than the trained one: the new tensor, assigned after the
  /// optimizer was made, would never be updated. step() and nn::training_step check first.
  void check_members() const { optim::check_members(parameters_); }
  /// Releases all gradients.
  void zero_grad();

  double rate() const noexcept { return rate_; }
  /// Throws ValueError when negative or not finite.
  void set_rate(double rate);
  /// Factor of gradients in updates; it avoids storing unscaled gradients in a dtype that is too narrow. Defaults to 1.
  /// Throws ValueError unless finite and >= 0, or for a factor other than 1 if the optimizer ignores it.
  double gradient_factor() const noexcept { return gradient_factor_; }
  void set_gradient_factor(double factor);
  virtual bool takes_gradient_factor() const noexcept { return false; }
  /// Whether the rule computes its rate and ignores rate(), as Adafactor with relative steps does.
  virtual bool makes_rate() const noexcept { return false; }
  /// Whether the update is elementwise, so that shards of a parameter can be updated separately.
  virtual bool is_elementwise() const noexcept { return true; }
  virtual bool is_capturable() const noexcept { return period() == 0; }  ///< every step has equal launches
  virtual std::int64_t period() const noexcept { return 0; }  ///< of updates that make other tensors; 0: none do
  /// Replaces the groups; parameters outside all groups use the optimizer's numbers. A captured step
  /// (nn/step/captured_step.h) takes no groups. Throws ValueError for a group without parameters, a parameter in two
  /// groups, and a factor or decay that is negative or not finite.
  void set_groups(const std::vector<ParameterGroup>& groups);
  bool has_groups() const noexcept { return !own_.empty(); }
  /// Settings of parameters in groups for a checkpoint: "NAME.rate_factor", "NAME.weight_decay".
  std::vector<Setting> group_settings() const;
  /// Updates done so far. Throws ValueError when negative.
  std::int64_t step_count() const noexcept { return step_count_; }
  void set_step_count(std::int64_t count);

  const std::vector<Named>& parameters() const noexcept { return parameters_; }
  /// The parameters as a set for Tape::train.
  const LeafSet& leaves() const noexcept { return leaves_; }
  /// State tensors, named PARAMETER.KIND, for checkpoints, which also need parameters and step_count(). Offloaded
  /// tensors are undefined until fetch_state().
  std::vector<Named> state() const;
  /// state() in which offloaded tensors have shape, dtype and device, but no bytes.
  std::vector<Named> state_outline() const;
  /// Calls `visit` with the state of each parameter in the order of state(). Offloaded state is fetched before and sent
  /// back afterwards, with `visit`'s changes, so memory never holds all of it. Throws as `visit` does, after the state
  /// was sent; FileError, OutOfMemory.
  void each_state(FunctionRef<void(std::span<const Named>)> visit) const;
  /// Bytes of all state tensors, wherever they are.
  std::size_t state_bytes() const;
  bool offloads_state() const noexcept { return tier_ != nullptr; }
  /// The stores that have its parameters, each once.
  std::vector<ParameterStore*> parameter_stores() const;
  /// Whether parameters are updated one by one because state or parameters are offloaded; step() may fail half-way
  /// then.
  bool updates_one_by_one() const;
  /// Holds the state between updates; null for resident state.
  const std::shared_ptr<memory::Tier>& tier() const noexcept { return tier_; }
  /// Fetches all offloaded state until put_state_away(). Throws FileError, OutOfMemory.
  void fetch_state();
  /// Sends all state to the tier, if there is one. Throws FileError.
  void put_state_away();
  /// Names of the parameters whose moments are in full despite a narrower format.
  std::vector<std::string> kept_full() const;
  virtual const char* name() const noexcept = 0;
  /// The options that change updates, without the rate and anything in name(). A checkpoint of nn::Trainer stores them
  /// and refuses to resume with others. Empty if a user's optimizer does not define them.
  virtual std::vector<Setting> settings() const { return {}; }

 protected:
  /// Updates these parameters, which are on one device with their gradients and state, in as few launches as the
  /// device's kernels allow. The bits equal updates one by one.
  virtual void update(std::span<const std::size_t> indices) = 0;
  /// For constructors: throws ValueError unless `is_in_range` and finite. `option` has the name and the range:
  /// "beta1 in [0, 1)".
  void require(bool is_in_range, const char* option, double value) const;
  /// For constructors: throws ValueError for a name that no parameter has (is_named), unless they were replaced.
  void require_named(const std::vector<std::string>& names) const;
  /// For constructors of rules that compute in f32: throws DTypeError for a parameter in f64.
  void refuse_f64() const;
  /// For constructors: checks the moments' format, then calls add(index) for each parameter, which adds its state; then
  /// adds the extra of its NarrowUpdate, and sends its state to the tier. Throws as check_format and make_extra do.
  void make_state(FunctionRef<void(std::size_t)> add);
  /// Adds `<parameter>.<kind>` with one element for each `elements_each` of the parameter.
  void add_state(std::size_t index, std::string_view kind, Tensor tensor, std::int64_t elements_each = 1);
  /// Adds a state tensor of zeros in f32.
  void add_zeros(std::size_t index, std::string_view kind, const Shape& shape);
  /// Adds a moment, as `<parameter>.<kind>`, and its scales, if any, as `<parameter>.<kind>_scale`.
  void add_moment(std::size_t index, std::string_view kind, bool is_signed);

  /// The added state; undefined if it is offloaded or missing.
  Tensor state_of(std::size_t index, std::string_view kind) const;
  /// Decays a parameter's elements from `first` on, and moves them by -rate times `along`, which is dense and f32.
  void move_along(std::size_t index, double weight_decay, const Tensor& along, std::int64_t first = 0);
  /// Writes a kernel's arguments for a parameter, except the numbers of its rule.
  void set_arguments(kernels::UpdateArgs& args, std::size_t index, double weight_decay, const Addresses& at) const;
  /// Also writes the moments of kinds `first` and `second`; an empty kind is one that the rule lacks.
  void set_arguments(kernels::ElementArgs& args, std::size_t index, double weight_decay, const Addresses& at,
                     std::string_view first, std::string_view second) const;

 private:
  /// One of a parameter's state tensors; undefined while offloaded.
  struct State {
    std::string kind;
    Tensor here;
    std::unique_ptr<memory::Offloaded> away;  // null while resident
    std::int64_t elements_each;               // parameter's elements per element of state
    bool is_away() const noexcept { return away != nullptr && away->defined(); }
  };
  /// Numbers of a parameter in a group.
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

  bool is_replaced_;
  std::vector<Named> parameters_;
  LeafSet leaves_;
  NarrowUpdate narrow_;
  MomentFormat moments_;
  std::vector<std::vector<State>> states_;  // per parameter
  std::vector<Own> own_;                    // per parameter; empty without groups
  std::shared_ptr<memory::Tier> tier_;
  std::vector<std::size_t> writing_;        // parameters whose state is being written
  std::vector<std::size_t> with_gradient_;  // the current update's; reserved for all parameters
  double rate_;
  double gradient_factor_ = 1;
  std::int64_t step_count_ = 0;
};

// Names of parameters in options: "wte", or "gpt.h0" for all that begin with "gpt.h0.".

inline bool is_named(const std::string& parameter, const std::string& name) {
  return parameter == name || parameter.starts_with(name + ".");
}

}  // namespace thimble::optim
