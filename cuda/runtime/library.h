#pragma once
// cuBLASLt and cuDNN for the tables of matmul, convolution, FP8 and 8-bit nets. Each call runs on the compute stream of
// the launching device within the workspace that core/kernels/cuda_workspace.h declares. It returns false, without
// effect, if the library has no algorithm for these arguments in that workspace; the project's kernels take over then.
// The choice depends on the arguments, the library and the kind of device, never on free memory or timing.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <sstream>
#include <string>

#include <thimble/core/device.h>
#include <thimble/core/dtype.h>
#include <thimble/core/kernels/conv.h>
#include <thimble/core/kernels/cpu/matmul/gemm.h>
#include <thimble/core/kernels/device_runtime.h>
#include <thimble/core/kernels/fp8.h>
#include <thimble/core/launch/launch.h>

namespace thimble::gpu {

/// All throw DeviceError with the failed call. Without gelu and storing its input.
bool library_gemm(const kernels::GemmArgs& args, void* workspace, std::size_t workspace_bytes);
/// Without an activation, and with a bias only for c in f16 and bf16: FP8 supports no others.
bool library_fp8_gemm(const kernels::Fp8GemmArgs& args, void* workspace, std::size_t workspace_bytes);
/// Whether both this build's cuBLAS and the loaded one, if any, support block scales (12.9 and later).
bool library_has_fp8_blocks() noexcept;
/// c (m, n) i32 = a (m, k) b (n, k)^T, all dense rows, without a workspace; k and n are multiples of 16.
struct Int8Gemm {
  std::int64_t m, n, k;
  const std::int8_t* a;
  const std::int8_t* b;
  std::int32_t* c;
};
bool library_int8_gemm(const Int8Gemm& args);
/// Without an activation; the caller adds the bias to y.
bool library_conv_forward(const kernels::ConvForwardArgs& args, void* workspace, std::size_t workspace_bytes);
bool library_conv_input_grad(const kernels::ConvInputGradArgs& args, void* workspace, std::size_t workspace_bytes);
bool library_conv_weight_grad(const kernels::ConvWeightGradArgs& args, void* workspace, std::size_t workspace_bytes);

// ---- Error texts of CUDA, cuBLASLt, cuDNN and the driver: the call with its arguments, its result and the operation.
//
//   cudaMemcpyAsync(0x7f2c00000000, 0x7f2a00000000, 4194304, host to device): cudaErrorInvalidValue: invalid argument
//   cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED: ...; in product (128, 64) x (64, 32) of bf16 on cuda:0, workspace
//   ...
//
// Includes no CUDA header, so that tests of the texts need no CUDA.

template <class Argument>
void put_argument(std::ostream& text, const Argument& argument) {
  text << argument;
}
inline void put_argument(std::ostream& text, const memory::Device& device) { text << to_string(device); }
inline void put_argument(std::ostream& text, DType dtype) { text << to_string(dtype); }

/// "CALL(ARGUMENT, ARGUMENT)".
template <class... Arguments>
std::string call_text(const char* call, const Arguments&... arguments) {
  std::ostringstream text;
  text << call << "(";
  [[maybe_unused]] const char* between = "";
  ((text << between, put_argument(text, arguments), between = ", "), ...);
  text << ")";
  return text.str();
}

inline std::string describe(const kernels::GemmArgs& a) {
  std::ostringstream text;
  text << "product (" << a.m << ", " << a.k << ") x (" << a.k << ", " << a.n << ") of " << to_string(a.dtype);
  if (a.c_dtype != a.dtype) text << " to " << to_string(a.c_dtype);
  for (int i = 0; i < a.batch_rank; ++i) {
    text << (i == 0 ? ", matrices " : " x ") << a.batch[static_cast<std::size_t>(i)].size;
  }
  if (a.bias != nullptr) text << ", with bias";
  if (a.accumulate) text << ", added to what is there";
  return text.str();
}

inline std::string describe(const kernels::Fp8GemmArgs& a) {
  std::ostringstream text;
  text << "product (" << a.m << ", " << a.k << ") of " << to_string(a.a_dtype) << " x (" << a.k << ", " << a.n
       << ") of " << to_string(a.b_dtype) << " to " << to_string(a.c_dtype);
  if (a.in_blocks) text << ", scales of blocks";
  if (a.bias != nullptr) text << ", with bias";
  return text.str();
}

inline std::string describe(const Int8Gemm& a) {
  std::ostringstream text;
  text << "product (" << a.m << ", " << a.k << ") x (" << a.k << ", " << a.n << ") of i8 to i32";
  return text.str();
}

inline std::string describe(const kernels::ConvShape& s, DType dtype) {
  std::ostringstream text;
  text << "images (" << s.images << ", " << s.height << ", " << s.width << ", " << s.channels << "), weight ("
       << s.filters << ", " << s.kernel_h << ", " << s.kernel_w << ", " << s.channels / (s.groups > 0 ? s.groups : 1)
       << ") of " << to_string(dtype) << ", stride " << s.stride_h << " x " << s.stride_w << ", padding " << s.pad_top
       << " " << s.pad_bottom << " " << s.pad_left << " " << s.pad_right << ", dilation " << s.dilation_h << " x "
       << s.dilation_w << ", groups " << s.groups;
  return text.str();
}
inline std::string describe(const kernels::ConvForwardArgs& a) {
  return "convolution of " + describe(a.shape, a.dtype);
}
inline std::string describe(const kernels::ConvInputGradArgs& a) {
  return "input's gradient of the convolution of " + describe(a.shape, a.dtype);
}
inline std::string describe(const kernels::ConvWeightGradArgs& a) {
  return "weight's gradient of the convolution of " + describe(a.shape, a.dtype);
}

/// While it lives, errors of this thread name this operation. Builds no text unless a call fails.
class Doing {
 public:
  template <class Args>
  Doing(const Args& args, std::size_t workspace_bytes) noexcept
      : args_(&args),
        text_of_([](const void* what) { return describe(*static_cast<const Args*>(what)); }),
        workspace_bytes_(workspace_bytes),
        before_(current) {
    current = this;
  }
  ~Doing() { current = before_; }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

  /// "; in OPERATION on DEVICE, workspace BYTES", or nothing.
  static std::string text() {
    if (current == nullptr) return {};
    return "; in " + current->text_of_(current->args_) + " on " + to_string(launching_device()) + ", workspace " +
           std::to_string(current->workspace_bytes_) + " bytes";
  }

 private:
  inline static thread_local const Doing* current = nullptr;
  const void* args_;
  std::string (*text_of_)(const void*);
  std::size_t workspace_bytes_;
  const Doing* before_;
};

/// CALL, its result, and the operation.
inline std::string failure_text(const std::string& call, const std::string& name, const std::string& meaning) {
  return call + ": " + name + (meaning.empty() ? "" : ": ") + meaning + Doing::text();
}

// ---- Counts of library calls and refusals, for operations that core/kernels/cuda_workspace.h leaves to a library.
// After a refusal the project's slower kernel computes the result, so refusals are counted.

struct LibraryBooks {
  std::mutex mutex;
  kernels::LibraryUse use;
};
inline LibraryBooks library_books;

inline kernels::LibraryUse library_use() {
  const std::lock_guard guard(library_books.mutex);
  return library_books.use;
}

/// Books a call of `library` (a member of LibraryUse) for `args`; returns `is_done`.
template <class Args>
bool booked(kernels::LibraryCounts kernels::LibraryUse::*library, const Args& args, bool is_done) {
  const std::lock_guard guard(library_books.mutex);
  kernels::LibraryCounts& counts = library_books.use.*library;
  if (is_done) {
    ++counts.calls;
  } else if (counts.refusals++ == 0) {
    counts.first_refused = describe(args);
  }
  return is_done;
}

}  // namespace thimble::gpu
