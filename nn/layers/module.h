#pragma once
// Dotted names that are meant by a pattern, in which `*` stands for any number of any characters.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <thimble/core/tensor/context.h>
#include <thimble/core/tensor/tensor.h>
#include <thimble/nn/layers/fp8_recipe.h>
#include <thimble/nn/layers/init.h>
#include <thimble/optim/optimizer.h>

namespace thimble::nn {

/// Whether all of `name` is as `pattern` says: "h.*.attn" means "h.0.attn" and "h.10.attn".
bool matches(std::string_view name, std::string_view pattern) noexcept;
/// Whether `pattern` means `name` or a module that it is below: "h.*.attn" means "h.0.attn.c_attn.weight" as well.
bool is_at_or_below(std::string_view name, std::string_view pattern) noexcept;
/// Whether `pattern` means `name` or its last parts: "q_proj" means "model.layers.0.self_attn.q_proj".
bool ends_as(std::string_view name, std::string_view pattern) noexcept;

// ---- A module owns parameters, buffers and child modules under dotted names, and runs under its path, so that every
// byte it allocates is booked there.
//
//   struct Scaled final : nn::Layer {
//     explicit Scaled(std::int64_t n) : gain(add_parameter("gain", nn::init::constant({n}, 1, DType::f32, cpu))) {}
//     nn::Linear& inner = child<nn::Linear>("inner", 8, 8);
//     nn::Parameter gain;
//     Tensor forward(const Tensor& x) override { return inner(x) * gain; }
//   };
//
// - A parameter is the member that forward uses: the lists of the module look there. What is assigned to it before
//   the optimizer is made is what is trained and saved; two members that hold one tensor are one parameter.
// - A module that is not made by child() is not part of its parent until child(name, module) says so.

using optim::Named;
class LayerRules;

struct TensorOptions;
/// Those of the LayerScope in force; without one cpu, f32 and whole layers.
const TensorOptions& options_in_force() noexcept;

/// Device and dtypes of a module's tensors, and the dtype that its products compute in. Named policies fill it in:
/// nn/precision/precision.h. A member that is not given is that of options_in_force().
struct TensorOptions {
  memory::Device device = options_in_force().device;
  DType dtype = options_in_force().dtype;
  std::optional<DType> norms = options_in_force().norms;  ///< of the parameters of norms; none: `dtype`
  std::optional<DType> compute =
      options_in_force().compute;  ///< linear layers and convolutions cast their operands to it; none: they do not
  std::optional<Fp8Recipe> fp8 =
      options_in_force().fp8;  ///< of linear layers' operands (nn/layers/fp8.h); none: they are not FP8
  /// Has the weights of linear layers, in fewer bits, between uses (nn/quant/weight_only.h); null: they are not coded.
  std::shared_ptr<ParameterStore> coded_weights = options_in_force().coded_weights;
  /// Shards in place of linear layers and tables (nn/parallel/shards.h); null for whole layers.
  std::shared_ptr<const LayerRules> rules = options_in_force().rules;
  bool is_in_blocks = true;  ///< false: of layers whose role is not that of linear layers inside of blocks

  DType norm_dtype() const noexcept { return norms.value_or(dtype); }
  /// For layers other than the linear ones inside of blocks (embeddings, heads): without FP8 and codes.
  TensorOptions outside_blocks() const {
    TensorOptions other = *this;
    other.fp8.reset();
    other.coded_weights.reset();
    other.is_in_blocks = false;
    return other;
  }
};

/// For a scope of this thread the options of layers that are made without any, as `Linear(64, 64)`:
///
///   const nn::LayerScope scope({.device = cuda(), .dtype = DType::bf16});
///   Net net;
class LayerScope {
 public:
  explicit LayerScope(TensorOptions options);
  ~LayerScope();
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;

 private:
  TensorOptions options_;
  const TensorOptions* before_;
};

/// How public files lay a parameter out.
enum class FileLayout : std::uint8_t {
  same,  ///< as in memory
  oihw   ///< memory (O, KH, KW, I), file (O, I, KH, KW); memory (O, K, I), file (O, I, K)
};

/// A parameter or buffer with its dotted name.
struct NamedTensor {
  std::string name;
  Tensor tensor;
  FileLayout layout = FileLayout::same;
};

/// Where a shard of a parameter lies in the whole one.
struct PlaceInWhole {
  init::PartOf part;
  char joint = '.';  ///< in the whole parameter's name, between the layer's own name and "weight" or "bias"
};

/// A tensor as the member of a module that lists it. It can be moved, and the module's list follows; a copy is a handle
/// like any other. Assigning gives the module another tensor; an undefined one removes it. Keep it as a member: one
/// that was moved into a plain Tensor and destroyed is missing, and the next list of parameters throws.
class Member : public Tensor {
 public:
  Member() = default;
  Member(const Member& other) : Tensor(other) {}
  Member(Member&& other) noexcept : Tensor(std::move(other)) { take_place(other); }
  Member& operator=(Tensor value) noexcept {
    Tensor::operator=(std::move(value));
    return *this;
  }
  // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): it copies first
  Member& operator=(const Member& other) { return *this = static_cast<const Tensor&>(other); }
  /// Takes the other's place in its module's list, where this one has none.
  Member& operator=(Member&& other) noexcept {
    if (this == &other) return *this;
    if (place_) return *this = static_cast<const Tensor&>(other);
    Tensor::operator=(std::move(other));
    take_place(other);
    return *this;
  }
  ~Member() {
    if (place_) *place_ = nullptr;
  }

 private:
  friend class Module;
  explicit Member(Tensor value);
  void take_place(Member& other) noexcept {
    place_ = std::move(other.place_);
    if (place_) *place_ = this;
  }

  std::shared_ptr<Tensor*> place_;  // points to this; null: no module lists it
};
using Parameter = Member;  ///< trained
using Buffer = Member;     ///< saved, not trained

class Module {
 public:
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Leaves that are trained, in the order of construction, children included. Shared ones are listed once, under their
  /// first name; those that are undefined are not. A tensor that was assigned to a parameter becomes a leaf here.
  /// Throws AutogradError for a parameter whose member has gone.
  std::vector<NamedTensor> parameters() const;
  /// State that is saved but not trained (batch-norm statistics).
  std::vector<NamedTensor> buffers() const;
  /// The parameters that are not frozen, as optimizers take them. Throws ValueError when there are none.
  std::vector<Named> trainable() const;
  /// Makes constants of the parameter `name`, or of all below the module of that name ("": of all), until unfreeze():
  /// nothing is kept, computed or accumulated for them, and their gradients are dropped (Tensor::set_requires_grad). An
  /// optimizer that has them leaves them as they are. Backward ends at the first layer that is trained. In a name `*`
  /// stands for any characters: "h.*.attn" are the attentions of all blocks. Throws ValueError when no parameter has
  /// that name.
  void freeze(std::string_view name = "") { set_requires_grad(name, false); }
  void unfreeze(std::string_view name = "") { set_requires_grad(name, true); }
  /// Elements of all parameters.
  std::int64_t parameter_count() const;

  /// Training or evaluation, for this module and all below it.
  void train(bool is_training = true);
  void eval() { train(false); }
  bool is_training() const noexcept { return is_training_; }

  /// Calls f for this module, then for all below it, in the order of construction.
  void for_each_module(const std::function<void(Module&)>& f);
  void for_each_module(const std::function<void(const Module&)>& f) const;

  /// What a recipe for FP8 made of this module's own products; nothing for those that have none.
  virtual Fp8Status fp8_status() const { return {}; }
  /// The place of a parameter of this shard in the parameter of the whole layer (nn/parallel/shards.h); empty for a
  /// whole layer.
  virtual std::optional<PlaceInWhole> place_in_whole(const Tensor&) const { return {}; }

  /// The path the module runs and allocates under: where it was made, or what child(name, module) has made of it.
  PathId path() const noexcept { return path_; }

 protected:
  /// Takes the current path as its own: `child` makes it `parent.name`.
  Module();

  /// Makes a leaf of `value` under `name` and books its bytes as a parameter: for a member of type Parameter. Throws
  /// ValueError when there is one of that name.
  [[nodiscard]] Parameter add_parameter(std::string name, Tensor value, FileLayout layout = FileLayout::same);
  /// The same for state that is not trained; without its member it is the module's alone.
  Buffer add_buffer(std::string name, Tensor value);

  /// Makes a child module under `name` (which may have dots: "h.0"); this module owns it.
  template <class M, class... Args>
  M& child(const std::string& name, Args&&... args) {
    const PathScope own(path_);
    const PathScope below(name);
    auto made = std::make_unique<M>(std::forward<Args>(args)...);
    M& reference = *made;
    adopt(name, reference, std::move(made));
    return reference;
  }
  /// The same for a module whose members are listed under their own names, as if they were this one's. It has this
  /// module's path.
  template <class M, class... Args>
  M& own_child(Args&&... args) {
    const PathScope own(path_);
    auto made = std::make_unique<M>(std::forward<Args>(args)...);
    M& reference = *made;
    child(std::move(made));
    return reference;
  }
  /// Makes a child of a module that is made and owned elsewhere: a plain member, one behind a pointer. From now on it
  /// runs under this module's path; its bytes stay booked where it was made. It may go before this module does. Throws
  /// ValueError for one that is a child already, or for this module.
  void child(const std::string& name, Module& module);
  /// Takes over a module whose members are listed as this one's. It keeps its path.
  void child(std::unique_ptr<Module> module);

 private:
  struct Entry {
    std::string name;
    std::shared_ptr<Tensor* const> member;  // null inside: it has gone
    Tensor kept;                            // of a buffer, for that case
    FileLayout layout;
  };
  struct Child {
    std::string name;  // empty: its members are listed as this module's
    Module* module;
    std::unique_ptr<Module> owned;  // null: owned elsewhere
  };
  Member register_member(std::vector<Entry>& entries, std::string name, Tensor value, FileLayout layout);
  void adopt(const std::string& name, Module& module, std::unique_ptr<Module> owned);
  void move_to(PathId path);
  void set_requires_grad(std::string_view name, bool requires_grad);
  void collect(const std::string& prefix, std::vector<NamedTensor>& list) const;
  void collect_buffers(const std::string& prefix, std::vector<NamedTensor>& list) const;

  PathId path_;
  bool is_training_ = true;
  Module* parent_ = nullptr;  // of a child that is owned elsewhere
  std::vector<Entry> parameters_, buffers_;
  std::vector<Child> children_;
};

/// A module from one tensor to one tensor. Another layer can take its place (replace): LoRA, FP8, 8-bit weights and
/// shards are such replacements, so that neither the layer nor the model that calls it knows of them.
class Layer : public Module {
 public:
  /// Runs forward, or its replacement's, under the module's path and in its mode (core/tensor/context.h).
  Tensor operator()(const Tensor& x) {
    const PathScope scope(path());
    const EvaluationScope mode(!is_training());
    return replacement_ != nullptr ? replacement_->forward(x) : forward(x);
  }
  /// Null: it has none.
  Layer* replacement() const noexcept { return replacement_; }
  /// Of a replacement, how it differs from the layer whose place it took: "has an adapter". Empty: not at present.
  virtual std::string_view difference() const { return {}; }
  /// Whether it adds trained parameters to the frozen ones of the layer whose place it took.
  virtual bool is_adapter() const noexcept { return false; }
  /// Has callers get `other`. Its parameters and buffers are listed as this layer's, behind them. Throws ValueError
  /// where another replacement makes a difference.
  void put_in_place(std::unique_ptr<Layer> other);

 protected:
  virtual Tensor forward(const Tensor& x) = 0;
  /// The forward of the layer whose place this one took.
  static Tensor forward_of(Layer& base, const Tensor& x) { return base.forward(x); }

 private:
  Layer* replacement_ = nullptr;
};

/// Puts an L, made as L(base, args...) under its path, in the place of `base`. Throws as Layer::put_in_place.
template <class L, class Base, class... Args>
L& replace(Base& base, Args&&... args) {
  const PathScope scope(base.path());
  auto made = std::make_unique<L>(base, std::forward<Args>(args)...);
  L& reference = *made;
  base.put_in_place(std::move(made));
  return reference;
}

/// Layers one after the other.
class Sequential final : public Layer {
 public:
  /// Makes a layer named by its place ("0", "1", ...), or as given.
  template <class L, class... Args>
  L& add(Args&&... args) {
    return add_named<L>(std::to_string(layers_.size()), std::forward<Args>(args)...);
  }
  template <class L, class... Args>
  L& add_named(const std::string& name, Args&&... args) {
    L& layer = child<L>(name, std::forward<Args>(args)...);
    layers_.push_back(&layer);
    return layer;
  }
  using Layer::operator();
  /// Takes x over, and holds it only as long as its readers need it.
  Tensor operator()(Tensor&& x);

  std::size_t size() const noexcept { return layers_.size(); }
  Layer& operator[](std::size_t i) { return *layers_.at(i); }

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  std::vector<Layer*> layers_;
};

/// x + inner(x); the inner layer is made by the constructor's arguments.
template <class Inner>
class Residual final : public Layer {
 public:
  template <class... Args>
  explicit Residual(Args&&... args) : inner_(child<Inner>("inner", std::forward<Args>(args)...)) {}
  Inner& inner() noexcept { return inner_; }

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  Inner& inner_;
};

/// x + y, recorded; where their dtypes differ, the narrower one is cast to the wider one. What Residual is made of.
Tensor residual_sum(const Tensor& x, const Tensor& y);

template <class Inner>
Tensor Residual<Inner>::forward(const Tensor& x) {
  return residual_sum(x, inner_(x));
}

/// Whether layers of a module have adapters.
bool has_adapters(const Module& module);

}  // namespace thimble::nn
