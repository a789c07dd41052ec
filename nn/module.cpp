#include <thimble/nn/module.h>

#include <utility>

#include <thimble/autograd/functions/elementwise.h>
#include <thimble/autograd/functions/view.h>
#include <thimble/core/error.h>

namespace thimble::nn {

void Module::collect(const std::string& prefix, bool wants_parameters, std::vector<NamedTensor>& list) const {
  for (const NamedTensor& own : wants_parameters ? parameters_ : buffers_) {
    bool is_listed = false;  // shared between modules
    for (const NamedTensor& other : list)
      is_listed = is_listed || (own.tensor.leaf() && other.tensor.leaf() == own.tensor.leaf());
    if (!is_listed) list.push_back({prefix + own.name, own.tensor, own.layout});
  }
  for (const Child& c : children_) c.module->collect(prefix + c.name + ".", wants_parameters, list);
}

std::vector<NamedTensor> Module::parameters() const {
  std::vector<NamedTensor> list;
  collect("", true, list);
  return list;
}

std::vector<NamedTensor> Module::buffers() const {
  std::vector<NamedTensor> list;
  collect("", false, list);
  return list;
}

std::vector<Named> Module::trainable() const {
  std::vector<Named> list;
  for (const NamedTensor& p : parameters()) {
    if (p.tensor.requires_grad()) list.push_back({p.name, p.tensor});
  }
  return list;
}

void Module::set_requires_grad(std::string_view name, bool requires_grad) {
  bool is_found = name.empty();
  for (const NamedTensor& p : parameters()) {
    const bool is_below = p.name.starts_with(name) && p.name.size() > name.size() && p.name[name.size()] == '.';
    if (!name.empty() && p.name != name && !is_below) continue;
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

void Module::remove_parameter(std::string_view name) {
  for (auto p = parameters_.begin(); p != parameters_.end(); ++p) {
    if (p->name != name) continue;
    parameters_.erase(p);
    return;
  }
  throw ValueError("module: no parameter is named '" + std::string(name) + "'");
}

Tensor Module::add_parameter(std::string name, Tensor value, FileLayout layout) {
  for (const NamedTensor& p : parameters_) {
    if (p.name == name) throw ValueError("module: two parameters are named '" + name + "'");
  }
  if (!value.leaf()) {
    value.require_grad();
    if (value.storage()) value.storage()->set_category(Category::parameter);
  }
  parameters_.push_back({std::move(name), value, layout});
  return value;
}

Tensor Module::add_buffer(std::string name, Tensor value) {
  if (value.storage()) value.storage()->set_category(Category::parameter);
  buffers_.push_back({std::move(name), value});
  return value;
}

Tensor Sequential::operator()(Tensor&& x) {
  const PathScope scope(path());
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

}  // namespace thimble::nn
