#include <thimble/nn/layers/module.h>

#include <algorithm>
#include <cstddef>

#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/core/error.h>
#include <thimble/core/tensor/parameter_store.h>

namespace thimble::nn {

bool matches(std::string_view name, std::string_view pattern) noexcept {
  constexpr std::size_t none = std::string_view::npos;
  std::size_t n = 0, p = 0, star = none, tried = 0;  // the last star matches up to `tried`
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      tried = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != none) {
      p = star + 1;
      n = ++tried;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool is_at_or_below(std::string_view name, std::string_view pattern) noexcept {
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    if (matches(name.substr(0, dot), pattern)) return true;
  }
  return matches(name, pattern);
}

bool ends_as(std::string_view name, std::string_view pattern) noexcept {
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    if (matches(name.substr(dot + 1), pattern)) return true;
  }
  return matches(name, pattern);
}

namespace {

thread_local const TensorOptions* in_force = nullptr;

}  // namespace

const TensorOptions& options_in_force() noexcept {
  static const TensorOptions plain{.device = cpu,
                                   .dtype = DType::f32,
                                   .norms = {},
                                   .compute = {},
                                   .fp8 = {},
                                   .coded_weights = nullptr,
                                   .rules = nullptr};
  return in_force != nullptr ? *in_force : plain;
}

LayerScope::LayerScope(TensorOptions options)
    : options_(std::move(options)), before_(std::exchange(in_force, &options_)) {}

LayerScope::~LayerScope() { in_force = before_; }

namespace {

// The listed leaf with the elements of `t`, if a tensor that was no leaf yet was assigned to two members.
const Tensor* find_same(const std::vector<NamedTensor>& list, const Tensor& t) {
  for (const NamedTensor& other : list) {
    const Tensor& o = other.tensor;
    if (t.storage() && o.storage() == t.storage() && o.offset() == t.offset() && o.shape() == t.shape() &&
        o.strides() == t.strides()) {
      return &o;
    }
  }
  return nullptr;
}

void make_leaf(Tensor& t) {
  if (t.leaf()) return;
  t.require_grad();
  if (t.storage()) t.storage()->set_category(memory::Category::parameter);
}

void list_member(tape::Leaf& leaf, const std::shared_ptr<Tensor* const>& member) {
  if (std::find(leaf.members.begin(), leaf.members.end(), member) == leaf.members.end()) leaf.members.push_back(member);
}

/// The prefix of a child's members.
std::string below(const std::string& prefix, const std::string& child) {
  return child.empty() ? prefix : prefix + child + ".";
}

}  // namespace

Member::Member(Tensor value) : Tensor(std::move(value)), place_(std::make_shared<Tensor*>(this)) {}

Module::Module() : path_(context().path) {}

Module::~Module() {
  if (parent_ != nullptr) {
    std::erase_if(parent_->children_, [this](const Child& c) { return c.module == this; });
  }
  for (const Child& c : children_) {
    if (!c.owned) c.module->parent_ = nullptr;
  }
}

void Module::collect(const std::string& prefix, std::vector<NamedTensor>& list) const {
  for (const Entry& own : parameters_) {
    if (*own.member == nullptr) {
      throw AutogradError("module: the handle of parameter '" + prefix + own.name +
                          "' no longer exists; keep what add_parameter returns as a member of type nn::Parameter");
    }
    Tensor& t = **own.member;
    if (!t.defined()) continue;
    const Tensor* const same = t.leaf() ? nullptr : find_same(list, t);
    if (same != nullptr) t = *same;
    make_leaf(t);
    list_member(*t.leaf(), own.member);
    const auto is_it = [&](const NamedTensor& other) { return other.tensor.leaf() == t.leaf(); };
    if (std::none_of(list.begin(), list.end(), is_it)) list.push_back({prefix + own.name, t, own.layout});
  }
  for (const Child& c : children_) c.module->collect(below(prefix, c.name), list);
}

void Module::collect_buffers(const std::string& prefix, std::vector<NamedTensor>& list) const {
  for (const Entry& own : buffers_) {
    const Tensor& t = *own.member != nullptr ? **own.member : own.kept;
    if (t.defined()) list.push_back({prefix + own.name, t, own.layout});
  }
  for (const Child& c : children_) c.module->collect_buffers(below(prefix, c.name), list);
}

std::vector<NamedTensor> Module::parameters() const {
  std::vector<NamedTensor> list;
  collect("", list);
  return list;
}

std::vector<NamedTensor> Module::buffers() const {
  std::vector<NamedTensor> list;
  collect_buffers("", list);
  return list;
}

std::vector<Named> Module::trainable() const {
  std::vector<Named> list;
  for (const NamedTensor& p : parameters()) {
    if (p.tensor.requires_grad()) list.push_back({p.name, p.tensor});
  }
  if (list.empty()) {
    throw ValueError(
        "module: there is nothing to train: no parameter is registered, or all are frozen; members are made by "
        "add_parameter() and child<Module>(), or registered by child(name, module)");
  }
  return list;
}

void Module::set_requires_grad(std::string_view name, bool requires_grad) {
  bool is_found = name.empty();
  for (const NamedTensor& p : parameters()) {
    if (!name.empty() && !is_at_or_below(p.name, name)) continue;
    p.tensor.set_requires_grad(requires_grad);
    is_found = true;
  }
  if (!is_found) throw ValueError("module: no parameter is named '" + std::string(name) + "' or is below it");
}

std::int64_t Module::parameter_count() const {
  std::int64_t count = 0;
  for (const NamedTensor& p : parameters()) count += p.tensor.elements();
  return count;
}

void Module::train(bool is_training) {
  is_training_ = is_training;
  for (const Child& c : children_) c.module->train(is_training);
}

void Module::for_each_module(const std::function<void(Module&)>& f) {
  f(*this);
  for (const Child& c : children_) c.module->for_each_module(f);
}

void Module::for_each_module(const std::function<void(const Module&)>& f) const {
  f(*this);
  for (const Child& c : children_) std::as_const(*c.module).for_each_module(f);
}

Member Module::register_member(std::vector<Entry>& entries, std::string name, Tensor value, FileLayout layout) {
  for (const Entry& entry : entries) {
    if (entry.name == name) throw ValueError("module: two members are named '" + name + "'");
  }
  Member member(std::move(value));
  entries.push_back({std::move(name), member.place_, Tensor(), layout});
  return member;
}

Parameter Module::add_parameter(std::string name, Tensor value, FileLayout layout) {
  make_leaf(value);
  if (context().parameter_store) context().parameter_store->put_away(value);
  return register_member(parameters_, std::move(name), std::move(value), layout);
}

Buffer Module::add_buffer(std::string name, Tensor value) {
  if (value.storage()) value.storage()->set_category(memory::Category::parameter);
  Buffer buffer = register_member(buffers_, std::move(name), value, FileLayout::same);
  buffers_.back().kept = std::move(value);
  return buffer;
}

void Module::adopt(const std::string& name, Module& module, std::unique_ptr<Module> owned) {
  const auto is_named = [&](const Child& c) { return c.name == name; };
  if (std::any_of(children_.begin(), children_.end(), is_named)) {
    throw ValueError("module: two children are named '" + name + "'");
  }
  children_.push_back({name, &module, std::move(owned)});
}

void Module::child(const std::string& name, Module& module) {
  const auto is_it = [&](const Child& c) { return c.module == &module; };
  if (&module == this || module.parent_ != nullptr || std::any_of(children_.begin(), children_.end(), is_it)) {
    throw ValueError("module: '" + name + "' is " + (&module == this ? "this module" : "a child") + " already");
  }
  adopt(name, module, nullptr);
  module.parent_ = this;
  const PathScope own(path_);
  const PathScope below(name);
  module.move_to(context().path);
}

void Module::child(std::unique_ptr<Module> module) {
  Module& made = *module;
  children_.push_back({"", &made, std::move(module)});
}

void Module::move_to(PathId path) {
  path_ = path;
  for (const Child& c : children_) c.module->move_to(c.name.empty() ? path : join_path(path, c.name));
}

void Layer::put_in_place(std::unique_ptr<Layer> other) {
  if (replacement_ != nullptr && !replacement_->difference().empty()) {
    throw ValueError(std::string(path_name(path())) + " " + std::string(replacement_->difference()) +
                     "; only a plain layer can be replaced");
  }
  other->train(is_training());
  replacement_ = other.get();
  child(std::move(other));
}

Tensor Sequential::operator()(Tensor&& x) {
  const PathScope scope(path());
  const EvaluationScope mode(!is_training());
  Tensor y = std::move(x);
  for (Layer* layer : layers_) y = (*layer)(y);
  return y;
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (Layer* layer : layers_) y = (*layer)(y);
  return y;
}

Tensor residual_sum(const Tensor& x, const Tensor& y) {
  const bool is_left_wider = size_of(x.dtype()) >= size_of(y.dtype());
  return is_left_wider ? add(x, cast(y, x.dtype())) : add(cast(x, y.dtype()), y);
}

bool has_adapters(const Module& module) {
  bool has = false;
  module.for_each_module([&](const Module& m) {
    const auto* const layer = dynamic_cast<const Layer*>(&m);
    has = has || (layer != nullptr && layer->is_adapter());
  });
  return has;
}

}  // namespace thimble::nn
