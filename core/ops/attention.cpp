#include <thimble/core/ops/attention.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <thimble/core/error.h>
#include <thimble/core/kernels/attention.h>
#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/launch/launch.h>
#include <thimble/core/ops/copy.h>
#include <thimble/core/ops/random.h>
#include <thimble/core/ops/reuse.h>
#include <thimble/core/tensor/view.h>
#include <thimble/core/threads/parallel.h>

namespace thimble::ops {
namespace {

using kernels::AttentionKernels;
using kernels::AttentionProblem;

struct AttentionForm {
  const char* name;
  bool is_causal;
  std::optional<double> scale;
  double p;
  RandomSite site;
  std::int64_t window = 0;
  std::int64_t first_key = 0;  // earlier keys are hidden
};

// q (B, T, H, D), k and v (B, S, H / group, D); factors of k's and v's rows (B, S, H / group), or undefined.
struct Operands {
  Tensor q, k, v;
  Tensor mask = {};
  Tensor k_scale = {}, v_scale = {};
};

bool has_documents(const Tensor& mask) { return mask.defined() && mask.dtype() == DType::i32; }

void check_attributes(const AttentionForm& form, const AttentionProblem& p) {
  if (!(form.p >= 0 && form.p < 1)) {
    throw ValueError(std::string(form.name) + ": probability " + std::to_string(form.p) + " is not in [0, 1)");
  }
  if (form.scale && !std::isfinite(*form.scale)) {
    throw ValueError(std::string(form.name) + ": scale " + std::to_string(*form.scale) + " is not finite");
  }
  if (form.p == 0) return;
  check_random_site(form.name, form.site);
  constexpr std::int64_t words = std::int64_t{1} << 32;
  const std::int64_t probabilities = Shape{p.heads, p.queries, p.keys}.elements();
  if (form.site.first_sample < 0 || form.site.first_sample > words - p.batch || probabilities > 4 * words) {
    throw ValueError(std::string(form.name) + ": " + std::to_string(probabilities) + " probabilities in each of " +
                     std::to_string(p.batch) + " samples from " + std::to_string(form.site.first_sample) +
                     " on; with dropout, samples must count below 2^32 and have at most 2^34");
  }
}

AttentionProblem problem(const AttentionForm& form, const Operands& in) {
  AttentionProblem p;
  p.dtype = in.q.dtype();
  p.batch = in.q.size(0), p.queries = in.q.size(1), p.heads = in.q.size(2), p.width = in.q.size(3);
  p.keys = in.k.size(1);
  p.group = p.heads / in.k.size(2);
  if (in.k.dtype() != in.q.dtype()) p.kept = in.k.dtype();
  check_attributes(form, p);
  p.is_causal = form.is_causal;
  p.window = form.window;
  p.first_key = form.first_key;
  p.has_documents = has_documents(in.mask);
  p.has_mask = in.mask.defined() && !p.has_documents;
  p.scale = form.scale ? *form.scale : 1 / std::sqrt(static_cast<double>(p.width));
  p.has_dropout = form.p > 0;
  p.threshold = static_cast<std::uint32_t>(std::floor(form.p * 0x1p32));
  p.keep_scale = 1 / (1 - form.p);
  p.site = form.site;
  p.allows_tf32 = allows_tf32();
  return p;
}

// The kernels read the last axis contiguously.
Tensor with_dense_rows(const Tensor& x) { return x.size(3) <= 1 || x.strides()[3] == 1 ? x : contiguous(x); }

Tensor with_dense_documents(const Tensor& mask) { return has_documents(mask) ? contiguous(mask) : mask; }

template <class To>
To operand(const Addresses& at, const Tensor& x) {
  if (!x.defined()) return {};
  return {at(x), x.strides()[0], x.strides()[1], x.strides()[2]};
}

kernels::AttentionScales scales(const Addresses& at, const Tensor& x) {
  if (!x.defined()) return {};
  return {static_cast<const float*>(at(x)), x.strides()[0], x.strides()[1], x.strides()[2]};
}

void set_operands(const Addresses& at, const Operands& in, AttentionProblem& p) {
  p.q = operand<kernels::AttentionOperand>(at, in.q);
  p.k = operand<kernels::AttentionOperand>(at, in.k);
  p.v = operand<kernels::AttentionOperand>(at, in.v);
  if (has_documents(in.mask)) {
    p.documents = static_cast<const std::int32_t*>(at(in.mask));
    p.documents_batch = in.mask.size(1);
  } else if (in.mask.defined()) {
    p.mask = {at(in.mask), in.mask.dtype()};
    std::int64_t* const strides[] = {&p.mask.batch, &p.mask.head, &p.mask.query, &p.mask.key};
    const int first = 4 - in.mask.rank();  // missing axes broadcast
    for (int axis = 0; axis < in.mask.rank(); ++axis) {
      *strides[first + axis] = in.mask.size(axis) == 1 ? 0 : in.mask.strides()[axis];
    }
  }
  p.k_scale = scales(at, in.k_scale);
  p.v_scale = scales(at, in.v_scale);
}

Tensor workspace(std::size_t bytes, memory::Device device) {
  return Tensor::empty({static_cast<std::int64_t>(bytes)}, DType::u8, device, memory::Category::workspace);
}

// Writes out (B, T, H, D) and, if defined, lse.
void attend(const AttentionForm& form, const Operands& operands, const Tensor& out, bool keeps_lse, Tensor& lse) {
  const Operands in{with_dense_rows(operands.q),
                    with_dense_rows(operands.k),
                    with_dense_rows(operands.v),
                    with_dense_documents(operands.mask),
                    operands.k_scale,
                    operands.v_scale};
  const AttentionProblem p = problem(form, in);
  if (keeps_lse) {
    lse = Tensor::empty({p.batch, p.heads, p.queries}, p.dtype == DType::f64 ? DType::f64 : DType::f32, out.device());
  }
  if (out.elements() == 0) return;
  const int threads = thread_count();
  const AttentionKernels& kernels = kernels::attention_kernels(out.device());
  const Tensor space = workspace(kernels.forward_bytes(p, threads), out.device());
  launch(out.device(), [&](const Addresses& at) {
    kernels::AttentionArgs args;
    static_cast<AttentionProblem&>(args) = p;
    set_operands(at, in, args);
    args.out = operand<kernels::AttentionResult>(at, out);
    args.lse = at(lse);
    kernels.forward(args, at(space), threads);
  });
}

// Writes the defined gradients, all (B, T or S, H, D).
void attend_backward(const AttentionForm& form, const Operands& operands, const Tensor& out, const Tensor& lse,
                     const Tensor& dy, const Operands& gradients) {
  const Operands in{with_dense_rows(operands.q), with_dense_rows(operands.k), with_dense_rows(operands.v),
                    with_dense_documents(operands.mask)};
  const Tensor dout = with_dense_rows(dy);
  const AttentionProblem p = problem(form, in);
  const int threads = thread_count();
  const AttentionKernels& kernels = kernels::attention_kernels(out.device());
  const Tensor space = workspace(kernels.backward_bytes(p, threads), out.device());
  launch(out.device(), [&](const Addresses& at) {
    kernels::AttentionGradArgs args;
    static_cast<AttentionProblem&>(args) = p;
    set_operands(at, in, args);
    args.out = operand<kernels::AttentionOperand>(at, out);
    args.dout = operand<kernels::AttentionOperand>(at, dout);
    args.lse = at(lse);
    args.dq = operand<kernels::AttentionResult>(at, gradients.q);
    args.dk = operand<kernels::AttentionResult>(at, gradients.k);
    args.dv = operand<kernels::AttentionResult>(at, gradients.v);
    kernels.backward(args, at(space), threads);
  });
}

// (B, T, C) as (B, T, H, D); copies only if the layout forces it.
Tensor as_heads(const Tensor& x, std::int64_t heads) {
  const Shape shape{x.size(0), x.size(1), heads, x.size(2) / heads};
  return view::reshape(view::can_reshape(x, shape) ? x : contiguous(x), shape);
}

// The three thirds of a dense (B, T, 3 C), each (B, T, H, D).
Operands thirds(const Tensor& qkv, std::int64_t heads) {
  const std::int64_t width = qkv.size(2) / 3;
  const auto third = [&](std::int64_t i) { return as_heads(view::slice(qkv, 2, i * width, (i + 1) * width), heads); };
  return {third(0), third(1), third(2)};
}

void check_dtype(const char* name, const Tensor& x) {
  if (!is_floating(x.dtype())) throw DTypeError(std::string(name) + ": " + describe(x) + " is not floating");
}

void check_packed(const Attention& op, const Tensor& qkv) {
  check_dtype(Attention::name, qkv);
  if (op.heads < 1) {
    throw ValueError(std::string(Attention::name) + ": " + std::to_string(op.heads) + " heads, expected at least 1");
  }
  if (qkv.rank() != 3 || qkv.shape()[2] == 0 || qkv.shape()[2] % (3 * op.heads) != 0) {
    throw ShapeError(std::string(Attention::name) + ": " + describe(qkv) + " is not (B, T, 3 C) with C divisible by " +
                     std::to_string(op.heads) + " heads");
  }
}

void check_shapes(const std::string& name, bool is_causal, const Tensor& q, const Tensor& k, const Tensor& v) {
  check_dtype(name.c_str(), q);
  const std::string all = "q " + describe(q) + ", k " + describe(k) + ", v " + describe(v);
  check_one_device(name, q, k);
  check_one_device(name, q, v);
  if (q.rank() != 4 || k.rank() != 4 || k.shape() != v.shape() || q.shape()[0] != k.shape()[0] ||
      q.shape()[3] != k.shape()[3] || q.shape()[3] == 0 || k.shape()[1] == 0) {
    throw ShapeError(name + ": operands must be (B, T, H, D), (B, S, G, D), (B, S, G, D) with S, D >= 1, got " + all);
  }
  if (k.shape()[2] < 1 || q.shape()[2] % k.shape()[2] != 0) {
    throw ShapeError(name + ": the heads of k and v must divide those of q, got " + all);
  }
  if (is_causal && k.shape()[1] < q.shape()[1]) {
    throw ShapeError(name + ": a causal mask needs at least as many keys as queries, got " + all);
  }
}

void check_separate(const ScaledDotProductAttention& op, const Tensor& q, const Tensor& k, const Tensor& v) {
  for (const Tensor* x : {&q, &k, &v}) check_dtype(op.name, *x);
  if (q.dtype() != k.dtype() || q.dtype() != v.dtype()) {
    throw DTypeError(std::string(op.name) + ": dtypes differ, q " + describe(q) + ", k " + describe(k) + ", v " +
                     describe(v));
  }
  check_shapes(op.name, op.is_causal, q, k, v);
}

// Throws if documents descend; checks only on the cpu, where reading the numbers does not stall.
void check_documents(const std::string& name, const Tensor& documents) {
  if (documents.device() != cpu) return;
  const Tensor dense = contiguous(documents);
  const memory::Pin pin(dense);
  const auto* const numbers = static_cast<const std::int32_t*>(pin.data());
  const std::int64_t keys = dense.size(1);
  for (std::int64_t i = 1; i < dense.elements(); ++i) {
    if (i % keys == 0 || numbers[i] >= numbers[i - 1]) continue;
    throw ValueError(name + ": documents descend from " + std::to_string(numbers[i - 1]) + " to " +
                     std::to_string(numbers[i]) + " at key " + std::to_string(i % keys) + " of sample " +
                     std::to_string(i / keys) + "; expected ascending numbers");
  }
}

// Checks a mask for scores (B, H, T, S).
void check_mask(const std::string& name, const Shape& all, std::int64_t window, const Tensor& mask, const Tensor& q,
                bool needs_gradient) {
  if (window < 0) {
    throw ValueError(name + ": a window of " + std::to_string(window) + " keys; expected at least 1, or 0 for none");
  }
  if ((window > 0 || has_documents(mask)) && all[3] < all[2]) {
    throw ShapeError(name + ": windows and documents need at least as many keys as queries, got scores " +
                     to_string(all));
  }
  if (!mask.defined()) return;
  const std::string words = name + ": mask " + describe(mask);
  check_one_device(name, q, mask);
  if (needs_gradient) throw ValueError(words + " requires a gradient; a mask has none");
  if (has_documents(mask)) {
    if (mask.shape() != Shape{all[0], all[3]}) {
      throw ShapeError(words + ": documents of the keys of scores " + to_string(all) + " are (" +
                       std::to_string(all[0]) + ", " + std::to_string(all[3]) + ")");
    }
    return check_documents(name, mask);
  }
  const bool is_narrow = is_floating(mask.dtype()) && size_of(mask.dtype()) == 1;
  if (mask.dtype() != DType::boolean && (!is_floating(mask.dtype()) || is_narrow)) {
    throw DTypeError(words + "; expected boolean, f64, f32, f16, bf16 or, for documents, i32");
  }
  const int first = 4 - mask.rank();
  bool fits = first >= 0;
  for (int axis = 0; fits && axis < mask.rank(); ++axis) {
    fits = mask.size(axis) == 1 || mask.size(axis) == all[first + axis];
  }
  if (!fits) throw ShapeError(words + " does not broadcast to scores " + to_string(all));
}

// Checks a cache's device, dtypes and scales; check_shapes checks its shapes.
void check_cached(const char* name, const Tensor& q, const CachedRows& rows) {
  const DType dtype = rows.values.dtype();
  const auto begin = [&] { return std::string(name) + ": rows " + describe(rows.values) + ", q " + describe(q); };
  if (dtype != q.dtype() && q.device().is_cuda()) {
    throw DeviceError(begin() + "; expected q's dtype on a GPU");
  }
  if (!is_floating(dtype) && dtype != DType::i8) throw DTypeError(begin() + "; expected a floating dtype or i8");
  if (!rows.scales.defined()) return;
  const Shape& shape = rows.values.shape();
  if (rows.scales.dtype() != DType::f32 || rows.scales.shape() != Shape{shape[0], shape[1], shape[2]}) {
    throw ShapeError(begin() + ": scales " + describe(rows.scales) + " are not f32 (B, S, G)");
  }
  if (dtype == q.dtype()) throw DTypeError(begin() + ": rows of q's dtype have no scales");
}

// (B, 1, G group, D) as (B, group, G, D): treats queries that share keys as `group` positions.
Tensor as_group(const Tensor& x, std::int64_t heads) {
  return view::transpose(view::reshape(x, {x.size(0), heads, x.size(2) / heads, x.size(3)}), 1, 2);
}

}  // namespace

Tensor Attention::forward(const Tensor& qkv, const Tensor& mask, Needs needs, Saved& saved) const {
  check_packed(*this, qkv);
  check_mask(name, {qkv.size(0), heads, qkv.size(1), qkv.size(1)}, window, mask, qkv, needs[1]);
  const Tensor packed = contiguous(qkv);
  const Tensor out = Tensor::empty({qkv.size(0), qkv.size(1), qkv.size(2) / 3}, qkv.dtype(), qkv.device());
  Operands operands = thirds(packed, heads);
  operands.mask = mask;
  attend({name, is_causal, scale, p, site, window}, operands, as_heads(out, heads), needs.any(), saved.lse);
  if (needs.any()) saved.qkv = qkv, saved.mask = mask, saved.out = out;
  return out;
}

Gradients Attention::backward(Saved saved, Tensor dy, Needs) const {
  const bool is_free = is_reusable(saved.qkv);
  const Tensor packed = contiguous(saved.qkv);
  saved.qkv = Tensor();
  const Tensor dqkv = is_free ? packed : Tensor::empty_like(packed);  // (B, T, 3 C)
  if (dqkv.elements() == 0) return {dqkv, Tensor()};
  Operands operands = thirds(packed, heads);
  operands.mask = saved.mask;
  attend_backward({name, is_causal, scale, p, site, window}, operands, as_heads(saved.out, heads), saved.lse,
                  as_heads(dy, heads), thirds(dqkv, heads));
  return {dqkv, Tensor()};
}

Tensor ScaledDotProductAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                                          Needs needs, Saved& saved) const {
  check_separate(*this, q, k, v);
  check_mask(name, {q.size(0), q.size(2), q.size(1), k.size(1)}, window, mask, q, needs[3]);
  const Tensor out = Tensor::empty(q.shape(), q.dtype(), q.device());
  attend({name, is_causal, scale, p, site, window}, {q, k, v, mask}, out, needs.any(), saved.lse);
  if (needs.any()) saved.q = q, saved.k = k, saved.v = v, saved.mask = mask, saved.out = out;
  return out;
}

Gradients ScaledDotProductAttention::backward(Saved saved, Tensor dy, Needs needs) const {
  Operands gradients;
  if (needs[0]) gradients.q = Tensor::empty(saved.q.shape(), dy.dtype(), dy.device());
  if (needs[1]) gradients.k = Tensor::empty(saved.k.shape(), dy.dtype(), dy.device());
  if (needs[2]) gradients.v = Tensor::empty(saved.v.shape(), dy.dtype(), dy.device());
  if (dy.elements() == 0) {
    for (const Tensor* g : {&gradients.k, &gradients.v}) {
      if (g->defined()) fill(*g, 0);
    }
    return {gradients.q, gradients.k, gradients.v, Tensor()};
  }
  attend_backward({name, is_causal, scale, p, site, window}, {saved.q, saved.k, saved.v, saved.mask}, saved.out,
                  saved.lse, dy, gradients);
  return {gradients.q, gradients.k, gradients.v, Tensor()};
}

namespace {

// Two products of (T, D) by (D, S). A causal mask halves the keys, a window skips the keys outside it. A mask's values
// are unknown here.
double attention_work(const Tensor& output, std::int64_t keys, bool is_causal, std::int64_t window) {
  const double all = static_cast<double>(output.elements()) * static_cast<double>(keys) * (is_causal ? 1 : 2);
  if (window == 0 || window >= keys) return all;
  const double share = static_cast<double>(window) / static_cast<double>(keys);
  return all * share * (2 - share);
}

}  // namespace

double Attention::multiply_adds(std::span<const Tensor>, const Tensor& output) const {
  return attention_work(output, output.size(1), is_causal, window);
}

double ScaledDotProductAttention::multiply_adds(std::span<const Tensor> inputs, const Tensor& output) const {
  return attention_work(output, inputs[1].size(1), is_causal, window);
}

namespace {

// A single position sees all keys, so the queries of a group can read them together.
bool is_grouped(const Tensor& q, const CachedRows& keys) {
  return q.size(1) == 1 && q.size(2) > keys.values.size(2) && q.elements() > 0;
}

constexpr const char* cached_name = "cached_attention";

// For a single position a window becomes a first key.
AttentionForm cached_form(const Tensor& q, const CachedRows& keys, std::int64_t window) {
  AttentionForm form{cached_name, q.size(1) > 1, {}, 0, {}};
  if (q.size(1) > 1) {
    form.window = window;
  } else if (window > 0) {
    form.first_key = std::max<std::int64_t>(0, keys.values.size(1) - window);
  }
  return form;
}

Operands cached_operands(const Tensor& q, const CachedRows& keys, const CachedRows& values) {
  const Tensor queries = is_grouped(q, keys) ? as_group(q, keys.values.size(2)) : q;
  return {queries, keys.values, values.values, {}, keys.scales, values.scales};
}

}  // namespace

Tensor cached_attention(const Tensor& q, const CachedRows& keys, const CachedRows& values, std::int64_t window) {
  check_shapes(cached_name, true, q, keys.values, values.values);
  check_mask(cached_name, {q.size(0), q.size(2), q.size(1), keys.values.size(1)}, window, {}, q, false);
  for (const CachedRows* rows : {&keys, &values}) check_cached(cached_name, q, *rows);
  if (keys.values.dtype() != values.values.dtype()) {
    throw DTypeError(std::string(cached_name) + ": keys " + describe(keys.values) + ", values " +
                     describe(values.values));
  }
  const Tensor out = Tensor::empty(q.shape(), q.dtype(), q.device());
  Tensor lse;
  attend(cached_form(q, keys, window), cached_operands(q, keys, values),
         is_grouped(q, keys) ? as_group(out, keys.values.size(2)) : out, false, lse);
  return out;
}

std::size_t cached_attention_workspace(const Tensor& q, const CachedRows& keys) {
  const kernels::AttentionProblem p = problem(cached_form(q, keys, 0), cached_operands(q, keys, keys));
  return kernels::attention_kernels(q.device()).forward_bytes(p, thread_count());
}

}  // namespace thimble::ops
