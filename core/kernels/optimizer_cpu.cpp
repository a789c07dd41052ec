// Optimizer updates on the CPU: every element is independent, so threads do not change bits.

#include <algorithm>
#include <cmath>
#include <type_traits>

#include <thimble/core/convert.h>
#include <thimble/core/error.h>
#include <thimble/core/kernels/optimizer.h>
#include <thimble/core/kernels/optimizer_narrow.h>
#include <thimble/core/parallel.h>

namespace thimble::kernels {
namespace optimizer_detail {

constexpr std::int64_t chunk = 512;
constexpr std::int64_t grain = 16 * chunk;

// A run of elements in the compute type: where they lie, or a buffer filled from there. A narrow parameter is read and
// stored by NarrowRun.
template <class T>
class Run {
 public:
  Run(void* data, DType dtype, std::int64_t at, std::int64_t n) : dtype_(dtype), n_(n) {
    place_ = data ? static_cast<std::byte*>(data) + at * static_cast<std::int64_t>(size_of(dtype)) : nullptr;
    values_ = reinterpret_cast<T*>(place_);
    if (!place_ || dtype == dtype_of<T>) return;
    values_ = buffer_;
    if constexpr (std::is_same_v<T, float>) {
      load_f32(place_, dtype, 1, buffer_, n);
    } else {
      load_f64(place_, dtype, 1, buffer_, n);
    }
  }
  T* values() { return values_; }
  // The values times a factor; not to be stored after.
  const T* scaled(double factor) {
    if (factor == 1) return values_;
    const T f = static_cast<T>(factor);
    for (std::int64_t i = 0; i < n_; ++i) buffer_[i] = values_[i] * f;
    return buffer_;
  }
  void store() {
    if (values_ != buffer_) return;
    if constexpr (std::is_same_v<T, float>) {
      store_f32(buffer_, place_, dtype_, 1, n_);
    } else {
      store_f64(buffer_, place_, dtype_, 1, n_);
    }
  }

 private:
  std::byte* place_;
  DType dtype_;
  std::int64_t n_;
  T* values_;
  alignas(64) T buffer_[chunk];
};

template <class F>
void for_chunks(std::int64_t n, F&& f) {
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += chunk) f(at, std::min(chunk, end - at));
  });
}

template <class T>
void sgd_chunk(const SgdArgs& a, T* p, const T* g, T* m, std::int64_t n) {
  const T rate = static_cast<T>(a.rate), momentum = static_cast<T>(a.momentum), decay = static_cast<T>(a.weight_decay);
  if (!m) {
    for (std::int64_t i = 0; i < n; ++i) p[i] -= rate * (g[i] + decay * p[i]);
  } else if (a.nesterov) {
    for (std::int64_t i = 0; i < n; ++i) {
      const T d = g[i] + decay * p[i];
      m[i] = momentum * m[i] + d;
      p[i] -= rate * (d + momentum * m[i]);
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      m[i] = momentum * m[i] + (g[i] + decay * p[i]);
      p[i] -= rate * m[i];
    }
  }
}

template <class T>
void adam_chunk(const AdamArgs& a, T* p, const T* g, T* m, T* v, std::int64_t n) {
  const double c1 = 1 - std::pow(a.beta1, static_cast<double>(a.step));
  const double c2 = 1 - std::pow(a.beta2, static_cast<double>(a.step));
  const T b1 = static_cast<T>(a.beta1), b2 = static_cast<T>(a.beta2);
  const T r1 = static_cast<T>(1 - a.beta1), r2 = static_cast<T>(1 - a.beta2);
  const T shrink = a.is_decoupled ? static_cast<T>(1 - a.rate * a.weight_decay) : T(1);
  const T decay = a.is_decoupled ? T(0) : static_cast<T>(a.weight_decay);
  const T rate = static_cast<T>(a.rate / c1), root = static_cast<T>(std::sqrt(c2)), epsilon = static_cast<T>(a.epsilon);
  for (std::int64_t i = 0; i < n; ++i) {
    const T d = g[i] + decay * p[i];
    const T first = b1 * m[i] + r1 * d;
    const T second = b2 * v[i] + r2 * (d * d);
    m[i] = first;
    v[i] = second;
    p[i] = p[i] * shrink - rate * (first / (std::sqrt(second) / root + epsilon));
  }
}

template <class T>
using ParameterRun = std::conditional_t<std::is_same_v<T, float>, NarrowRun<Run<float>>, PlainRun<Run<double>>>;

template <class T>
void sgd(const SgdArgs& a) {
  for_chunks(a.n, [&](std::int64_t at, std::int64_t n) {
    ParameterRun<T> p(a.parameter, a.dtype, a.narrow, at, n);
    Run<T> g(const_cast<void*>(a.gradient), a.gradient_dtype, at, n), m(a.momentum_buffer, a.state_dtype, at, n);
    sgd_chunk(a, p.values(), g.scaled(a.gradient_factor), m.values(), n);
    p.store();
    m.store();
  });
}

template <class T>
void adam(const AdamArgs& a) {
  for_chunks(a.n, [&](std::int64_t at, std::int64_t n) {
    ParameterRun<T> p(a.parameter, a.dtype, a.narrow, at, n);
    Run<T> g(const_cast<void*>(a.gradient), a.gradient_dtype, at, n);
    Run<T> m(a.first_moment, a.state_dtype, at, n), v(a.second_moment, a.state_dtype, at, n);
    adam_chunk(a, p.values(), g.scaled(a.gradient_factor), m.values(), v.values(), n);
    p.store();
    m.store();
    v.store();
  });
}

void sgd_any(const SgdArgs& a) { a.dtype == DType::f64 ? sgd<double>(a) : sgd<float>(a); }
void adam_any(const AdamArgs& a) { a.dtype == DType::f64 ? adam<double>(a) : adam<float>(a); }

// Chunk sums in f64, one after the other: the order depends on n alone.
void square_sum(const SquareSumArgs& a) {
  double total = 0;
  alignas(64) double values[chunk];
  for (std::int64_t at = 0; at < a.n; at += chunk) {
    const std::int64_t n = std::min(chunk, a.n - at);
    load_f64(static_cast<const std::byte*>(a.gradient) + at * static_cast<std::int64_t>(size_of(a.dtype)), a.dtype, 1,
             values, n);
    std::fill(values + n, values + chunk, 0.0);
    double lanes[8] = {};
    for (std::int64_t i = 0; i < chunk; i += 8) {
      for (int k = 0; k < 8; ++k) lanes[k] += values[i + k] * values[i + k];
    }
    for (const double lane : lanes) total += lane;
  }
  *a.sum = total;
}

void clip(const ClipArgs& a) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.count; ++i) sum += a.sums[i];
  const double factor = std::min(1.0, a.max_norm / (std::sqrt(sum) + 1e-6));
  for_chunks(a.n, [&](std::int64_t at, std::int64_t n) {
    if (a.dtype == DType::f64) {
      Run<double> g(a.gradient, a.dtype, at, n);
      for (std::int64_t i = 0; i < n; ++i) g.values()[i] *= factor;
      g.store();
    } else {
      Run<float> g(a.gradient, a.dtype, at, n);
      const auto f = static_cast<float>(factor);
      for (std::int64_t i = 0; i < n; ++i) g.values()[i] *= f;
      g.store();
    }
  });
}

}  // namespace optimizer_detail

const OptimizerKernels optimizer_cpu{optimizer_detail::sgd_any, optimizer_detail::adam_any,
                                     optimizer_detail::square_sum, optimizer_detail::clip};

const OptimizerKernels& optimizer_kernels(Device device) {
  if (device.is_cpu()) return optimizer_cpu;
  if (!optimizer_cuda) throw DeviceError("optimizer: " + to_string(device) + " is not in this build");
  return *optimizer_cuda;
}

}  // namespace thimble::kernels
