#include <thimble/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include <thimble/core/error.h>
#include <thimble/core/files/bytes.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/parameter_store.h>

namespace thimble::optim {
namespace {

thread_local const ParameterReplacement* replacement = nullptr;  // the innermost
thread_local const StateTierScope* state_tier = nullptr;         // the innermost

}  // namespace

ParameterReplacement::ParameterReplacement(FunctionRef<std::vector<Named>(std::vector<Named>)> replace) noexcept
    : replace_(replace), outer_(std::exchange(replacement, this)) {}

ParameterReplacement::~ParameterReplacement() { replacement = outer_; }

StateTierScope::StateTierScope(FunctionRef<std::shared_ptr<memory::Tier>()> make) noexcept
    : make_(make), outer_(std::exchange(state_tier, this)) {}

StateTierScope::~StateTierScope() { state_tier = outer_; }

Optimizer::Optimizer(std::vector<Named> parameters, double rate, std::shared_ptr<memory::Tier> tier,
                     NarrowUpdate narrow, MomentFormat moments)
    : is_replaced_(replacement != nullptr),
      parameters_(is_replaced_ ? replacement->replace_(std::move(parameters)) : std::move(parameters)),
      narrow_(narrow),
      moments_(std::move(moments)),
      states_(parameters_.size()),
      tier_(std::move(tier)) {
  set_rate(rate);
  with_gradient_.reserve(parameters_.size());
  std::vector<const tape::Leaf*> leaves;
  for (const Named& p : parameters_) {
    if (!p.tensor.leaf()) throw AutogradError("optimizer: " + p.name + " is not a leaf");
    leaves.push_back(p.tensor.leaf().get());
  }
  leaves_ = LeafSet(std::move(leaves));
  check_distinct("optimizer", parameters_);
}

void check_distinct(const char* operation, const std::vector<Named>& parameters) {
  thread_local std::vector<std::pair<const tape::Leaf*, const Named*>> room;  // a steady step does not allocate
  room.clear();
  for (const Named& p : parameters) room.emplace_back(p.tensor.leaf().get(), &p);
  std::sort(room.begin(), room.end());
  const auto twice = std::adjacent_find(
      room.begin(), room.end(), [](const auto& a, const auto& b) { return a.first != nullptr && a.first == b.first; });
  if (twice == room.end()) return;
  const auto &first = *twice->second, &second = *std::next(twice)->second;
  throw ValueError(std::string(operation) + ": " + quote(first.name) + " and " + quote(second.name) +
                   " are one parameter; expected each once, as nn::Module::parameters() lists tied ones");
}

void check_gradient(const char* operation, const Named& parameter) {
  const Tensor &of = parameter.tensor, &gradient = of.grad();
  if (!gradient.defined()) return;
  const auto is = [&] {
    return std::string(operation) + ": the gradient of " + parameter.name + " is " + describe(gradient);
  };
  if (gradient.device() != of.device()) throw DeviceError(is() + "; expected one on " + to_string(of.device()));
  if (gradient.shape() != of.shape()) throw ShapeError(is() + "; expected " + to_string(of.shape()));
  if (gradient.is_contiguous()) return;
  throw ShapeError(is() + " with strides " + to_string(gradient.strides()) +
                   "; expected a dense one, as contiguous() makes");
}

void check_members(const std::vector<Named>& parameters) {
  for (const Named& p : parameters) {
    const tape::Leaf* const leaf = p.tensor.leaf().get();
    for (const std::shared_ptr<Tensor* const>& member : leaf->members) {
      const Tensor* const now = *member;
      if (now == nullptr || now->leaf().get() == leaf) continue;  // its module is gone or still holds it
      throw AutogradError("optimizer: the module's " + p.name + " is " +
                          (now->defined() ? describe(*now) : "undefined") +
                          " and no longer the tensor that is trained, " + describe(p.tensor) +
                          "; make the optimizer after parameters are assigned, or write into them (copy_into)");
    }
  }
}

void Optimizer::step() {
  check_members();
  for (const Named& p : parameters_) check_gradient("optimizer", p);
  begin_step();
  if (!updates_one_by_one()) return step_all();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const bool reads_ahead = i + 1 < parameters_.size() && parameters_[i + 1].tensor.grad().defined();
    if (parameters_[i].tensor.grad().defined()) prefetch(i);
    if (reads_ahead) prefetch(i + 1);
    step_one(i);
  }
  end_step();
}

/// With resident parameters and state: a launch may update many.
void Optimizer::step_all() {
  with_gradient_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& gradient = parameters_[i].tensor.grad();
    if (gradient.defined() && gradient.elements() > 0) with_gradient_.push_back(i);
  }
  const std::span<const std::size_t> all(with_gradient_);
  for (std::size_t first = 0; first < all.size();) {
    const memory::Device device = parameters_[all[first]].tensor.device();
    std::size_t last = first + 1;
    while (last < all.size() && parameters_[all[last]].tensor.device() == device) ++last;
    update(all.subspan(first, last - first));
    first = last;
  }
  for (const std::size_t i : all) bump_versions(i);
}

void Optimizer::set_groups(const std::vector<ParameterGroup>& groups) {
  const auto refuse = [](std::size_t group, const std::string& why) {
    throw ValueError("optimizer: group " + std::to_string(group) + ": " + why);
  };
  std::vector<Own> own(groups.empty() ? 0 : parameters_.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const ParameterGroup& group = groups[g];
    const auto check = [&](const char* name, double value) {
      if (!(value >= 0) || !std::isfinite(value)) {
        refuse(g, std::string(name) + ": expected a finite number >= 0, got " + std::to_string(value));
      }
    };
    check("rate_factor", group.rate_factor);
    check("weight_decay", group.weight_decay.value_or(0));
    if (group.rate_factor != 1 && makes_rate()) {
      refuse(g, std::string("rate_factor: ") + name() + " makes its rate by itself; expected 1");
    }
    bool is_empty = true;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!group.has || !group.has(parameters_[i])) continue;
      if (own[i].is_grouped) refuse(g, parameters_[i].name + " is in an earlier group; expected each in one");
      own[i] = {group.rate_factor, group.weight_decay, true};
      is_empty = false;
    }
    if (is_empty && !is_replaced_)
      refuse(g, "expected a group with parameters, got one that has none of " + std::to_string(own.size()));
  }
  own_ = std::move(own);
}

std::vector<Setting> Optimizer::group_settings() const {
  std::vector<Setting> settings;
  for (std::size_t i = 0; i < own_.size(); ++i) {
    if (!own_[i].is_grouped) continue;
    settings.push_back({parameters_[i].name + ".rate_factor", own_[i].rate_factor});
    if (own_[i].weight_decay) settings.push_back({parameters_[i].name + ".weight_decay", *own_[i].weight_decay});
  }
  return settings;
}

void Optimizer::bump_versions(std::size_t index) const {
  parameters_[index].tensor.storage()->bump_version();
  for (const State& s : states_[index]) {
    if (s.here.storage()) s.here.storage()->bump_version();
  }
}

void Optimizer::end_step() {
  complete_writes();
  for (ParameterStore* const store : parameter_stores()) store->let_go();
}

std::vector<ParameterStore*> Optimizer::parameter_stores() const {
  std::vector<ParameterStore*> stores;
  for (const Named& p : parameters_) {
    ParameterStore* const store = p.tensor.storage() ? p.tensor.storage()->store().get() : nullptr;
    if (store != nullptr && std::find(stores.begin(), stores.end(), store) == stores.end()) stores.push_back(store);
  }
  return stores;
}

bool Optimizer::updates_one_by_one() const { return tier_ != nullptr || !parameter_stores().empty(); }

void Optimizer::step_one(std::size_t index) {
  if (index >= parameters_.size()) {
    throw ValueError("optimizer: step_one of parameter " + std::to_string(index) + "; there are " +
                     std::to_string(parameters_.size()) + ", counted from 0");
  }
  const Tensor& gradient = parameters_[index].tensor.grad();
  check_gradient("optimizer", parameters_[index]);
  if (!gradient.defined() || gradient.elements() == 0) return;
  fetch_parameters(parameters_[index].tensor);
  fetch(index);
  update({&index, 1});
  bump_versions(index);
  put_away(index);
}

void Optimizer::zero_grad() {
  for (const Named& p : parameters_) p.tensor.grad() = Tensor();
}

void Optimizer::set_rate(double rate) {
  if (!(rate >= 0) || !std::isfinite(rate)) {
    throw ValueError("optimizer: learning rate " + std::to_string(rate) + " is not a finite number >= 0");
  }
  rate_ = rate;
}

void Optimizer::set_step_count(std::int64_t count) {
  if (count < 0) throw ValueError("optimizer: step count " + std::to_string(count) + "; expected at least 0");
  step_count_ = count;
}

void Optimizer::set_gradient_factor(double factor) {
  if (!(factor >= 0) || !std::isfinite(factor)) {
    throw ValueError("optimizer: gradient factor " + std::to_string(factor) + " is not a finite number >= 0");
  }
  if (factor != 1 && !takes_gradient_factor()) {
    throw ValueError(std::string("optimizer: ") + name() + " does not multiply gradients; expected a factor of 1");
  }
  gradient_factor_ = factor;
}

void Optimizer::require(bool is_in_range, const char* option, double value) const {
  if (is_in_range && std::isfinite(value)) return;
  throw ValueError(std::string(name()) + ": expected " + option + (std::isinf(value) ? " and finite" : "") + ", got " +
                   std::to_string(value));
}

void Optimizer::require_named(const std::vector<std::string>& names) const {
  for (const std::string& name : names) {
    const auto has = [&](const Named& p) { return is_named(p.name, name); };
    if (is_replaced_ || std::any_of(parameters_.begin(), parameters_.end(), has)) continue;
    throw ValueError(std::string(this->name()) + ": no parameter is named " + quote(name) + " or begins with " +
                     quote(name + "."));
  }
}

void Optimizer::refuse_f64() const {
  for (const Named& p : parameters_) {
    if (p.tensor.dtype() != DType::f64) continue;
    throw DTypeError(std::string(name()) + ": " + p.name + " is " + describe(p.tensor) +
                     "; expected a dtype up to f32");
  }
}

void Optimizer::make_state(FunctionRef<void(std::size_t)> add) {
  check_format(name(), moments_);
  require_named(moments_.full);
  const ParameterUse use;  // a master copy reads its parameter
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    add(i);
    Named extra = make_extra(narrow_, parameters_[i]);
    if (extra.tensor.defined()) add_state(i, extra.name, std::move(extra.tensor));
    put_away(i);
  }
  complete_writes();
}

void Optimizer::add_state(std::size_t index, std::string_view kind, Tensor tensor, std::int64_t elements_each) {
  if (tier_ == nullptr && state_tier != nullptr) tier_ = state_tier->make_();
  states_[index].push_back(
      {std::string(kind), std::move(tensor), tier_ ? std::make_unique<memory::Offloaded>() : nullptr, elements_each});
}

Named Optimizer::named(std::size_t index, const State& state) const {
  const Named& p = parameters_[index];
  const auto count = [&](std::int64_t elements) { return (elements + state.elements_each - 1) / state.elements_each; };
  return {p.name + "." + state.kind, state.here, count(p.first_element), count(p.elements_of_whole)};
}

void Optimizer::add_zeros(std::size_t index, std::string_view kind, const Shape& shape) {
  const Tensor& p = parameters_[index].tensor;
  const PathScope path(p.storage() ? p.storage()->path() : PathId{0});
  add_state(index, kind, zeros(shape, DType::f32, p.device(), memory::Category::optimizer));
}

void Optimizer::add_moment(std::size_t index, std::string_view kind, bool is_signed) {
  Moment moment = make_moment(parameters_[index], moments_, is_signed);
  add_state(index, kind, std::move(moment.values));
  if (moment.scales.defined())
    add_state(index, std::string(kind) + "_scale", std::move(moment.scales), kernels::state_block);
}

const Optimizer::State* Optimizer::find(std::size_t index, std::string_view kind) const {
  for (const State& s : states_[index]) {
    if (s.kind == kind) return &s;
  }
  return nullptr;
}

Tensor Optimizer::state_of(std::size_t index, std::string_view kind) const {
  const State* const found = find(index, kind);
  return found != nullptr ? found->here : Tensor();
}

void Optimizer::set_arguments(kernels::UpdateArgs& args, std::size_t index, double weight_decay,
                              const Addresses& at) const {
  const Tensor& parameter = parameters_[index].tensor;
  const Tensor& gradient = parameter.grad();
  args.parameter = at(parameter);
  args.dtype = parameter.dtype();
  args.gradient = at(gradient);
  args.gradient_dtype = gradient.dtype();
  args.rate = own_.empty() ? rate_ : rate_ * own_[index].rate_factor;
  args.weight_decay = own_.empty() ? weight_decay : own_[index].weight_decay.value_or(weight_decay);
  args.gradient_factor = gradient_factor_;
  args.step = step_count_;
  const Tensor extra = state_of(index, narrow_ == NarrowUpdate::master ? "master" : "compensation");
  args.narrow = narrow_arguments(narrow_, parameters_[index], extra, step_count_, at);
}

void Optimizer::set_arguments(kernels::ElementArgs& args, std::size_t index, double weight_decay, const Addresses& at,
                              std::string_view first, std::string_view second) const {
  set_arguments(args, index, weight_decay, at);
  args.n = parameters_[index].tensor.elements();
  const auto set = [&](kernels::MomentArgs& moment, std::string_view kind) {
    const State* const values = find(index, kind);
    if (values == nullptr) return;  // the rule lacks this moment
    args.state_dtype = values->here.dtype();
    moment.values = at(values->here);
    if (args.state_dtype == DType::u8) moment.scales = at.as<float>(values[1].here);  // add_moment puts them there
  };
  set(args.first, first);
  set(args.second, second);
}

void Optimizer::move_along(std::size_t index, double weight_decay, const Tensor& along, std::int64_t first) {
  const Tensor& p = parameters_[index].tensor;
  const auto move_on = [&](void*& address) {
    if (address != nullptr)
      address = static_cast<std::byte*>(address) + static_cast<std::size_t>(first) * size_of(p.dtype());
  };
  launch(p.device(), [&](const Addresses& at) {
    kernels::SgdArgs args;
    set_arguments(args, index, weight_decay, at, "", "");
    move_on(args.parameter);
    move_on(args.narrow.compensation);
    if (args.narrow.master != nullptr) args.narrow.master += first;
    args.narrow.first_element += first;
    args.n = along.elements();
    args.gradient = at(along);
    args.gradient_dtype = DType::f32;
    args.gradient_factor = 1;
    kernels::optimizer_kernels(p.device()).update_elements({.sgd = {&args, 1}});
  });
}

std::size_t Optimizer::state_bytes() const {
  std::size_t bytes = 0;
  for (const std::vector<State>& states : states_) {
    for (const State& s : states) bytes += s.here.bytes() + (s.is_away() ? s.away->bytes() : 0);
  }
  return bytes;
}

std::vector<std::string> Optimizer::kept_full() const {
  std::vector<std::string> names;
  for (const Named& p : parameters_) {
    if (moments_.dtype != DType::f32 && is_kept_full(p, moments_)) names.push_back(p.name);
  }
  return names;
}

std::vector<Named> Optimizer::state() const {
  std::vector<Named> list;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (const State& s : states_[i]) list.push_back(named(i, s));
  }
  return list;
}

std::vector<Named> Optimizer::state_outline() const {
  std::vector<Named> list = state();
  std::size_t k = 0;
  for (const std::vector<State>& states : states_) {
    for (const State& s : states) {
      if (s.is_away()) list[k].tensor = s.away->like();
      ++k;
    }
  }
  return list;
}

void Optimizer::each_state(FunctionRef<void(std::span<const Named>)> visit) const {
  auto& self = const_cast<Optimizer&>(*this);  // the tier changes state and restores it
  std::vector<Named> list;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    self.complete_writes();
    const bool was_away = std::any_of(states_[i].begin(), states_[i].end(), [](const State& s) { return s.is_away(); });
    self.fetch(i);
    for (const State& s : states_[i]) list.push_back(named(i, s));
    const auto put_back = [&] {
      list.clear();  // drops the last handles
      if (was_away) self.put_away(i);
    };
    try {
      visit(list);
    } catch (...) {
      put_back();
      self.complete_writes();
      throw;
    }
    put_back();
  }
  self.complete_writes();
}

// A tensor that the tier refuses stays resident.
void Optimizer::put_away(std::size_t index) {
  if (!tier_) return;
  complete_writes();
  for (State& s : states_[index]) {
    if (!s.here.defined()) continue;
    *s.away = memory::offload(s.here, tier_);
    s.here = Tensor();
  }
  writing_.push_back(index);
}

void Optimizer::complete_writes() {
  for (const std::size_t index : writing_) {
    for (State& s : states_[index]) s.away->complete();
  }
  writing_.clear();
}

void Optimizer::prefetch(std::size_t index) {
  for (State& s : states_[index]) {
    if (s.is_away()) s.away->prefetch();
  }
}

void Optimizer::fetch(std::size_t index) {
  for (State& s : states_[index]) {
    if (s.is_away()) s.here = s.away->fetch();
  }
}

void Optimizer::fetch_state() {
  for (std::size_t i = 0; i < states_.size(); ++i) fetch(i);
  writing_.clear();
}

void Optimizer::put_state_away() {
  for (std::size_t i = 0; i < states_.size(); ++i) put_away(i);
  complete_writes();
}

}  // namespace thimble::optim
