// Convolutions by cuDNN: (N, H, W, C) images and (O, KH, KW, C / groups) weights, one deterministic algorithm per
// direction. Without cuDNN the project's kernels compute all convolutions. Descriptors and the sizes of workspaces are
// kept per shape. If all images at once need more workspace than declared (few channels, which the library pads), the
// call runs on some images at a time.

#include <thimble/cuda/runtime/library.h>

#if defined(THIMBLE_HAS_CUDNN)

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <cudnn.h>

#include <thimble/core/launch/compute_capability.h>
#include <thimble/core/launch/launch.h>
#include <thimble/cuda/libraries/loaded.h>
#include <thimble/cuda/runtime/runtime.h>

namespace thimble::gpu {
namespace dnn_detail {

using kernels::Activation;
using kernels::ConvShape;

struct Dnn : LoadedLibrary {
  Dnn() : LoadedLibrary("libcudnn.so." + std::to_string(CUDNN_MAJOR), THIMBLE_CUDNN_FOLDER) {}
  THIMBLE_LOADED_FUNCTION(cudnnConvolutionBackwardData);
  THIMBLE_LOADED_FUNCTION(cudnnConvolutionBackwardFilter);
  THIMBLE_LOADED_FUNCTION(cudnnConvolutionForward);
  THIMBLE_LOADED_FUNCTION(cudnnCreate);
  THIMBLE_LOADED_FUNCTION(cudnnCreateConvolutionDescriptor);
  THIMBLE_LOADED_FUNCTION(cudnnCreateFilterDescriptor);
  THIMBLE_LOADED_FUNCTION(cudnnCreateTensorDescriptor);
  THIMBLE_LOADED_FUNCTION(cudnnDestroyConvolutionDescriptor);
  THIMBLE_LOADED_FUNCTION(cudnnDestroyFilterDescriptor);
  THIMBLE_LOADED_FUNCTION(cudnnDestroyTensorDescriptor);
  THIMBLE_LOADED_FUNCTION(cudnnGetConvolutionBackwardDataWorkspaceSize);
  THIMBLE_LOADED_FUNCTION(cudnnGetConvolutionBackwardFilterWorkspaceSize);
  THIMBLE_LOADED_FUNCTION(cudnnGetConvolutionForwardWorkspaceSize);
  THIMBLE_LOADED_FUNCTION(cudnnGetErrorString);
  THIMBLE_LOADED_FUNCTION(cudnnSetConvolution2dDescriptor);
  THIMBLE_LOADED_FUNCTION(cudnnSetConvolutionGroupCount);
  THIMBLE_LOADED_FUNCTION(cudnnSetConvolutionMathType);
  THIMBLE_LOADED_FUNCTION(cudnnSetFilter4dDescriptor);
  THIMBLE_LOADED_FUNCTION(cudnnSetStream);
  THIMBLE_LOADED_FUNCTION(cudnnSetTensor4dDescriptor);
};

/// Loads cuDNN at the first call. Throws DeviceError.
const Dnn& dnn() {
  static const Dnn& library = *new Dnn;  // destructors at exit may still call it
  return library;
}

void check_dnn(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw DeviceError(failure_text(call, dnn().cudnnGetErrorString(status), ""));
}

/// True for the library's refusals, which are not failures.
bool is_refusal(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_SUPPORTED || CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED ||
         CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_BAD_PARAM;
}

cudnnDataType_t type_of(DType dtype) {
  return dtype == DType::f32 ? CUDNN_DATA_FLOAT : dtype == DType::f16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

cudnnHandle_t handle_of(memory::Device device, cudaStream_t stream) {
  static std::map<int, cudnnHandle_t> handles;
  static std::mutex mutex;
  const std::lock_guard guard(mutex);
  cudnnHandle_t& handle = handles[device.index];
  if (!handle) make_handle(device, [&] { check_dnn(dnn().cudnnCreate(&handle), "cudnnCreate"); });
  check_dnn(dnn().cudnnSetStream(handle, stream), "cudnnSetStream");
  return handle;
}

/// The descriptors of a shape, and its algorithms' workspaces.
struct Descriptors {
  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t weight = nullptr;
  cudnnConvolutionDescriptor_t conv = nullptr;
  /// Bytes per direction, once queried; nullopt if the library cannot compute it.
  std::map<const char*, std::optional<std::size_t>> workspaces;

  Descriptors(const ConvShape& s, DType dtype, bool is_exact) {
    const cudnnDataType_t type = type_of(dtype);
    const auto narrow = [](std::int64_t value) { return static_cast<int>(value); };
    check_dnn(dnn().cudnnCreateTensorDescriptor(&x), "cudnnCreateTensorDescriptor");
    check_dnn(dnn().cudnnCreateTensorDescriptor(&y), "cudnnCreateTensorDescriptor");
    check_dnn(dnn().cudnnCreateFilterDescriptor(&weight), "cudnnCreateFilterDescriptor");
    check_dnn(dnn().cudnnCreateConvolutionDescriptor(&conv), "cudnnCreateConvolutionDescriptor");
    check_dnn(dnn().cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NHWC, type, narrow(s.images), narrow(s.channels),
                                               narrow(s.height), narrow(s.width)),
              "cudnnSetTensor4dDescriptor(x)");
    check_dnn(dnn().cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NHWC, type, narrow(s.images), narrow(s.filters),
                                               narrow(s.out_height()), narrow(s.out_width())),
              "cudnnSetTensor4dDescriptor(y)");
    check_dnn(dnn().cudnnSetFilter4dDescriptor(weight, type, CUDNN_TENSOR_NHWC, narrow(s.filters),
                                               narrow(s.channels / s.groups), narrow(s.kernel_h), narrow(s.kernel_w)),
              "cudnnSetFilter4dDescriptor");
    check_dnn(dnn().cudnnSetConvolution2dDescriptor(conv, narrow(s.pad_top), narrow(s.pad_left), narrow(s.stride_h),
                                                    narrow(s.stride_w), narrow(s.dilation_h), narrow(s.dilation_w),
                                                    CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
              "cudnnSetConvolution2dDescriptor");
    check_dnn(dnn().cudnnSetConvolutionGroupCount(conv, narrow(s.groups)), "cudnnSetConvolutionGroupCount");
    check_dnn(dnn().cudnnSetConvolutionMathType(conv, is_exact ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH),
              "cudnnSetConvolutionMathType");
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  ~Descriptors() {
    if (conv) dnn().cudnnDestroyConvolutionDescriptor(conv);
    if (weight) dnn().cudnnDestroyFilterDescriptor(weight);
    if (y) dnn().cudnnDestroyTensorDescriptor(y);
    if (x) dnn().cudnnDestroyTensorDescriptor(x);
  }
};

/// True if all sizes fit in int, which the library uses.
bool is_countable(const ConvShape& s) {
  constexpr std::int64_t most = 0x7fffffff;
  return s.images * s.height * s.width * s.channels <= most &&
         s.images * s.out_height() * s.out_width() * s.filters <= most;
}

constexpr float one = 1, zero = 0;

/// The descriptors of a shape on a device. One caller at a time.
Descriptors& descriptors_of(memory::Device device, const ConvShape& s, DType dtype) {
  using Key = std::array<std::int64_t, 19>;
  static std::map<Key, std::unique_ptr<Descriptors>> known;
  const bool is_exact = dtype == DType::f32 && !allows_tf32();  // tensor cores round f32 operands to TF32
  const Key key{device.index, static_cast<std::int64_t>(dtype),
                is_exact,     s.images,
                s.height,     s.width,
                s.channels,   s.filters,
                s.kernel_h,   s.kernel_w,
                s.stride_h,   s.stride_w,
                s.pad_top,    s.pad_bottom,
                s.pad_left,   s.pad_right,
                s.dilation_h, s.dilation_w,
                s.groups};
  std::unique_ptr<Descriptors>& made = known[key];
  if (!made) made = std::make_unique<Descriptors>(s, dtype, is_exact);
  return *made;
}

/// Runs one direction: ask(handle, descriptors, &bytes) for its workspace, then run(handle, descriptors, first image,
/// bytes), once, or for groups of images if they are separable. False if the library cannot, or needs more workspace.
template <class Ask, class Run>
bool run_within(std::size_t workspace_bytes, const char* direction, const ConvShape& shape, DType dtype,
                bool are_separable, const Ask& ask, const Run& run) {
  static std::mutex mutex;  // ranks that share a device share its descriptors
  const std::lock_guard guard(mutex);
  const memory::Device device = launching_device();
  const cudnnHandle_t handle = handle_of(device, compute_stream(device));
  const auto with_images = [&](std::int64_t images) -> Descriptors& {
    ConvShape some = shape;
    some.images = images;
    return descriptors_of(device, some, dtype);
  };
  const auto bytes_of = [&](Descriptors& d) {
    const auto [at, is_new] = d.workspaces.try_emplace(direction);
    if (!is_new) return at->second;
    std::size_t bytes = 0;
    const cudnnStatus_t asked = ask(handle, d, &bytes);
    if (is_refusal(asked)) return at->second;
    if (asked != CUDNN_STATUS_SUCCESS) d.workspaces.erase(at);
    check_dnn(asked, direction);
    return at->second = bytes;
  };
  const auto fits = [&](std::int64_t images) {
    const std::optional<std::size_t> bytes = bytes_of(with_images(images));
    return bytes && *bytes <= workspace_bytes;
  };
  std::int64_t together = shape.images;
  while (!fits(together) || (shape.images % together != 0 && !fits(shape.images % together))) {
    if (!are_separable || together == 1) return false;
    together = (together + 1) / 2;
  }
  for (std::int64_t first = 0; first < shape.images; first += together) {
    Descriptors& d = with_images(std::min(together, shape.images - first));
    const cudnnStatus_t ran = run(handle, d, first, *bytes_of(d));
    if (first == 0 && is_refusal(ran)) return false;
    check_dnn(ran, direction);
  }
  return true;
}

/// Address of image `first`; an image has `elements`.
const void* image_at(const void* images, std::int64_t first, std::int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(images) + first * elements * static_cast<std::int64_t>(size_of(dtype));
}
void* image_at(void* images, std::int64_t first, std::int64_t elements, DType dtype) {
  return static_cast<std::byte*>(images) + first * elements * static_cast<std::int64_t>(size_of(dtype));
}
std::int64_t input_elements(const ConvShape& s) { return s.height * s.width * s.channels; }
std::int64_t output_elements(const ConvShape& s) { return s.out_height() * s.out_width() * s.filters; }

}  // namespace dnn_detail

bool library_conv_forward(const kernels::ConvForwardArgs& args, void* workspace, std::size_t workspace_bytes) {
  using namespace dnn_detail;
  const Doing doing(args, workspace_bytes);
  const ConvShape& s = args.shape;
  if (!is_countable(s) || args.activation != Activation::none || args.pre_activation) return false;
  constexpr auto algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
  return run_within(
      workspace_bytes, "cudnnConvolutionForward", s, args.dtype, true,
      [&](cudnnHandle_t handle, const Descriptors& d, std::size_t* bytes) {
        return dnn().cudnnGetConvolutionForwardWorkspaceSize(handle, d.x, d.weight, d.conv, d.y, algorithm, bytes);
      },
      [&](cudnnHandle_t handle, const Descriptors& d, std::int64_t first, std::size_t bytes) {
        return dnn().cudnnConvolutionForward(handle, &one, d.x, image_at(args.x, first, input_elements(s), args.dtype),
                                             d.weight, args.weight, d.conv, algorithm, workspace, bytes, &zero, d.y,
                                             image_at(args.y, first, output_elements(s), args.dtype));
      });
}

bool library_conv_input_grad(const kernels::ConvInputGradArgs& args, void* workspace, std::size_t workspace_bytes) {
  using namespace dnn_detail;
  const Doing doing(args, workspace_bytes);
  const ConvShape& s = args.shape;
  if (!is_countable(s)) return false;
  constexpr auto algorithm = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
  return run_within(
      workspace_bytes, "cudnnConvolutionBackwardData", s, args.dtype, true,
      [&](cudnnHandle_t handle, const Descriptors& d, std::size_t* bytes) {
        return dnn().cudnnGetConvolutionBackwardDataWorkspaceSize(handle, d.weight, d.y, d.conv, d.x, algorithm, bytes);
      },
      [&](cudnnHandle_t handle, const Descriptors& d, std::int64_t first, std::size_t bytes) {
        return dnn().cudnnConvolutionBackwardData(handle, &one, d.weight, args.weight, d.y,
                                                  image_at(args.dy, first, output_elements(s), args.dtype), d.conv,
                                                  algorithm, workspace, bytes, args.accumulate ? &one : &zero, d.x,
                                                  image_at(args.dx, first, input_elements(s), args.dtype));
      });
}

// Sums over images: f32 allows to add them group by group, 16 bits would round each group's sum.
bool library_conv_weight_grad(const kernels::ConvWeightGradArgs& args, void* workspace, std::size_t workspace_bytes) {
  using namespace dnn_detail;
  const Doing doing(args, workspace_bytes);
  const ConvShape& s = args.shape;
  if (!is_countable(s)) return false;
  constexpr auto algorithm = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
  return run_within(
      workspace_bytes, "cudnnConvolutionBackwardFilter", s, args.dtype, args.dtype == DType::f32,
      [&](cudnnHandle_t handle, const Descriptors& d, std::size_t* bytes) {
        return dnn().cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, d.x, d.y, d.conv, d.weight, algorithm,
                                                                    bytes);
      },
      [&](cudnnHandle_t handle, const Descriptors& d, std::int64_t first, std::size_t bytes) {
        return dnn().cudnnConvolutionBackwardFilter(
            handle, &one, d.x, image_at(args.x, first, input_elements(s), args.dtype), d.y,
            image_at(args.dy, first, output_elements(s), args.dtype), d.conv, algorithm, workspace, bytes,
            args.accumulate || first > 0 ? &one : &zero, d.weight, args.dweight);
      });
}

}  // namespace thimble::gpu

#else

namespace thimble::gpu {

bool library_conv_forward(const kernels::ConvForwardArgs&, void*, std::size_t) { return false; }
bool library_conv_input_grad(const kernels::ConvInputGradArgs&, void*, std::size_t) { return false; }
bool library_conv_weight_grad(const kernels::ConvWeightGradArgs&, void*, std::size_t) { return false; }

}  // namespace thimble::gpu

#endif
