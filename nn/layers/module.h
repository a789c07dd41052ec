#pragma once
// Modules, and patterns of dotted names, in which `*` matches any characters.

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

/// Whether `pattern` matches all of `name`: "h.*.attn" matches "h.0.attn" and "h.10.attn".
bool matches(std::string_view name, std::string_view pattern) noexcept;
/// Whether `pattern` matches `name` or a module above it: "h.*.attn" also matches "h.0.attn.c_attn.weight".
bool is_at_or_below(std::string_view name, std::string_view pattern) noexcept;
/// Whether `pattern` matches `name` or its last parts: "q_proj" matches "model.layers.0.self_attn.q_proj".
bool ends_as(std::string_view name, std::string_view pattern) noexcept;

// ---- A module owns parameters, buffers and child modules under dotted names. It runs under its path, which books
// every byte that it allocates.
//
//   struct Scaled final : nn::Layer {
//     explicit Scaled(std::int64_t n) : gain(add_parameter("gain", nn::init::constant({n}, 1, DType::f32, cpu))) {}
//     nn::Linear& inner = child<nn::Linear>("inner", 8, 8);
//     nn::Parameter gain;
//     Tensor forward(const Tensor& x) override { return inner(x) * gain; }
//   };
//
// - A parameter is the member that forward uses: the module's lists read the member. A tensor assigned to it before the
//   optimizer is made is trained and saved; two members that hold one tensor are one parameter.
// - A module joins its parent by child(): either child() makes it, or child(name, module) registers it.

using optim::Named;
class LayerRules;

struct TensorOptions;
/// The options of the current LayerScope; without a scope cpu, f32 and whole layers.
const TensorOptions& options_in_force() noexcept;

/// Device and dtypes of a module's tensors, and the dtype of its products. Named policies fill it in:
/// nn/precision/precision.h. Members default to options_in_force().
struct TensorOptions {
  memory::Device device = options_in_force().device;
  DType dtype = options_in_force().dtype;
  std::optional<DType> norms = options_in_force().norms;  ///< of norms' parameters; defaults to `dtype`
  std::optional<DType> compute =
      options_in_force().compute;  ///< linear layers and convolutions cast their operands to it, if set
  std::optional<Fp8Recipe> fp8 =
      options_in_force().fp8;  ///< puts linear layers' operands in FP8, if set (nn/layers/fp8.h)
  /// Keeps the weights of linear layers in fewer bits between uses, if set (nn/quant/weight_only.h).
  std::shared_ptr<ParameterStore> coded_weights = options_in_force().coded_weights;
  /// Replaces linear layers and tables with shards, if set (nn/parallel/shards.h).
  std::shared_ptr<const LayerRules> rules = options_in_force().rules;
  bool is_in_blocks = true;  ///< false for embeddings, heads and other layers outside the blocks

  DType norm_dtype() const noexcept { return norms.value_or(dtype); }
  /// Options for layers outside the blocks (embeddings, heads): without FP8 and codes.
  TensorOptions outside_blocks() const {
    TensorOptions other = *this;
    other.fp8.reset();
    other.coded_weights.reset();
    other.is_in_blocks = false;
    return other;
  }
};

/// Default options on this thread for layers that are made without options, such as `Linear(64, 64)`:
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

/// The layout of a parameter in public files.
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

/// The place of a parameter's shard in the whole parameter.
struct PlaceInWhole {
  init::ShardOf shard;
  char joint = '.';  ///< in the whole parameter's name, between the layer's name and "weight" or "bias"
};

/// A tensor that a module lists as a member. The list follows moves; a copy is a plain handle. Assigning gives the
/// module another tensor; an undefined tensor removes it. Keep it as a member: if it is moved into a plain Tensor and
/// destroyed, the next list of parameters throws.
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
  /// Takes the other's place in its module's list, unless this member is listed already.
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

  std::shared_ptr<Tensor*> place_;  // points to this, or null if no module lists it
};
using Parameter = Member;  ///< trained
using Buffer = Member;     ///< saved, not trained

class Module {
 public:
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Trained leaves in the order of construction, children included. Lists shared parameters once, under their first
  /// name, and skips undefined ones. A tensor that was assigned to a parameter becomes a leaf here. Throws
  /// AutogradError for a parameter whose member was destroyed.
  std::vector<NamedTensor> parameters() const;
  /// State that is saved but not trained (batch-norm statistics).
  std::vector<NamedTensor> buffers() const;
  /// The parameters that are not frozen, as optimizers take them. Throws ValueError when there are none.
  std::vector<Named> trainable() const;
  /// Makes the parameter `name`, or all below the module `name` ("" means all), constant until unfreeze(): nothing is
  /// kept, computed or accumulated for them, and their gradients are dropped (Tensor::set_requires_grad). Optimizers
  /// leave them unchanged. Backward ends at the first trained layer. `*` matches any characters: "h.*.attn" matches
  /// the attentions of all blocks. Throws ValueError when nothing matches.
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

  /// Effect of an FP8 recipe on this module's products, without its children's; empty if the module has no products.
  virtual Fp8Status fp8_status() const { return {}; }
  /// The place of this shard's parameter in the whole layer's (nn/parallel/shards.h); nullopt for a whole layer.
  virtual std::optional<PlaceInWhole> place_in_whole(const Tensor&) const { return {}; }

  /// The path that the module runs and allocates under: the path of its construction, or child(name, module)'s.
  PathId path() const noexcept { return path_; }

 protected:
  /// Runs under the current path: `child` makes it `parent.name`.
  Module();

  /// Makes `value` a leaf under `name` and books its bytes as a parameter. Assign it to a member of type Parameter.
  /// Throws ValueError when the name is taken.
  [[nodiscard]] Parameter add_parameter(std::string name, Tensor value, FileLayout layout = FileLayout::same);
  /// add_parameter for state that is not trained. The module keeps the tensor if the result is discarded.
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
  /// Makes a child whose members are listed as this module's, without a prefix. It has this module's path.
  template <class M, class... Args>
  M& own_child(Args&&... args) {
    const PathScope own(path_);
    auto made = std::make_unique<M>(std::forward<Args>(args)...);
    M& reference = *made;
    child(std::move(made));
    return reference;
  }
  /// Registers a module that is made and owned elsewhere: a plain member, or one behind a pointer. It then runs below
  /// this module's path; its bytes stay booked under its old path. It may be destroyed before this module. Throws
  /// ValueError for a module that is a child already, or for this module.
  void child(const std::string& name, Module& module);
  /// Takes ownership of a module, keeps its path, and lists its members as this module's.
  void child(std::unique_ptr<Module> module);

 private:
  struct Entry {
    std::string name;
    std::shared_ptr<Tensor* const> member;  // points to null once the member is destroyed
    Tensor kept;                            // a buffer's tensor, in case its member is destroyed
    FileLayout layout;
  };
  struct Child {
    std::string name;  // "" lists its members as this module's
    Module* module;
    std::unique_ptr<Module> owned;  // null if owned elsewhere
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

/// A module from one tensor to one tensor. Another layer can replace it: LoRA, FP8, 8-bit weights and shards are
/// replacements, so neither the layer nor the model that calls it knows of them.
class Layer : public Module {
 public:
  /// Runs forward, or its replacement's, under the module's path and in its mode (core/tensor/context.h).
  Tensor operator()(const Tensor& x) {
    const PathScope scope(path());
    const EvaluationScope mode(!is_training());
    return replacement_ != nullptr ? replacement_->forward(x) : forward(x);
  }
  Layer* replacement() const noexcept { return replacement_; }
  /// A replacement's difference from the layer it replaces: "has an adapter". Empty if there is none at present.
  virtual std::string_view difference() const { return {}; }
  /// Whether it adds trained parameters to the frozen ones of the layer it replaces.
  virtual bool is_adapter() const noexcept { return false; }
  /// Replaces this layer with `other`, whose parameters and buffers are listed after this layer's. Throws ValueError if
  /// this layer has a replacement with a difference().
  void put_in_place(std::unique_ptr<Layer> other);

 protected:
  virtual Tensor forward(const Tensor& x) = 0;
  /// The forward of a replaced layer.
  static Tensor forward_of(Layer& base, const Tensor& x) { return base.forward(x); }

 private:
  Layer* replacement_ = nullptr;
};

/// Replaces `base` with L(base, args...), made under the path of `base`. Throws as Layer::put_in_place.
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
  /// Adds a layer named by its index ("0", "1", ...), or with the given name.
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
  /// Takes ownership of x and frees it once its readers have run.
  Tensor operator()(Tensor&& x);

  std::size_t size() const noexcept { return layers_.size(); }
  Layer& operator[](std::size_t i) { return *layers_.at(i); }

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  std::vector<Layer*> layers_;
};

/// x + inner(x); the constructor's arguments make the inner layer.
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

/// x + y, recorded; casts the narrower dtype to the wider one. Residual is made of it.
Tensor residual_sum(const Tensor& x, const Tensor& y);

template <class Inner>
Tensor Residual<Inner>::forward(const Tensor& x) {
  return residual_sum(x, inner_(x));
}

/// Whether a layer of the module has an adapter.
bool has_adapters(const Module& module);

}  // namespace thimble::nn
