// cuDNN's part in convolutions: (N, H, W, C) images and (O, KH, KW, C / groups) weights, one deterministic algorithm
// for each direction. Without cuDNN the own kernels compute all of them.

#include <thimble/cuda/runtime/library.h>

#if defined(THIMBLE_HAS_CUDNN)

#include <map>
#include <mutex>
#include <string>

#include <cudnn.h>

#include <thimble/core/launch/launch.h>
#include <thimble/core/launch/tf32.h>
#include <thimble/cuda/runtime/runtime.h>

namespace thimble::gpu {
namespace dnn_detail {

using kernels::Activation;
using kernels::ConvShape;

void check_dnn(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw DeviceError(failure_text(call, cudnnGetErrorString(status), ""));
}

/// True where the library says that it cannot, which is no failure.
bool is_refusal(cudnnStatus_t status) {
  return status == CUDNN_STATUS_NOT_SUPPORTED || CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED ||
         CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_BAD_PARAM;
}

cudnnDataType_t type_of(DType dtype) {
  return dtype == DType::f32 ? CUDNN_DATA_FLOAT : dtype == DType::f16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

cudnnHandle_t handle_of(Device device, cudaStream_t stream) {
  static std::map<int, cudnnHandle_t> handles;
  static std::mutex mutex;
  const std::lock_guard guard(mutex);
  cudnnHandle_t& handle = handles[device.index];
  if (!handle) make_handle(device, [&] { check_dnn(cudnnCreate(&handle), "cudnnCreate"); });
  check_dnn(cudnnSetStream(handle, stream), "cudnnSetStream");
  return handle;
}

/// The descriptors of one call; destroyed with it.
struct Call {
  cudnnHandle_t handle = nullptr;
  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t weight = nullptr;
  cudnnConvolutionDescriptor_t conv = nullptr;

  Call(const ConvShape& s, DType dtype) {
    const Device device = launching_device();
    handle = handle_of(device, compute_stream(device));
    const cudnnDataType_t type = type_of(dtype);
    const auto narrow = [](std::int64_t value) { return static_cast<int>(value); };
    check_dnn(cudnnCreateTensorDescriptor(&x), "cudnnCreateTensorDescriptor");
    check_dnn(cudnnCreateTensorDescriptor(&y), "cudnnCreateTensorDescriptor");
    check_dnn(cudnnCreateFilterDescriptor(&weight), "cudnnCreateFilterDescriptor");
    check_dnn(cudnnCreateConvolutionDescriptor(&conv), "cudnnCreateConvolutionDescriptor");
    check_dnn(cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NHWC, type, narrow(s.images), narrow(s.channels),
                                         narrow(s.height), narrow(s.width)),
              "cudnnSetTensor4dDescriptor(x)");
    check_dnn(cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NHWC, type, narrow(s.images), narrow(s.filters),
                                         narrow(s.out_height()), narrow(s.out_width())),
              "cudnnSetTensor4dDescriptor(y)");
    check_dnn(cudnnSetFilter4dDescriptor(weight, type, CUDNN_TENSOR_NHWC, narrow(s.filters),
                                         narrow(s.channels / s.groups), narrow(s.kernel_h), narrow(s.kernel_w)),
              "cudnnSetFilter4dDescriptor");
    check_dnn(cudnnSetConvolution2dDescriptor(conv, narrow(s.pad_top), narrow(s.pad_left), narrow(s.stride_h),
                                              narrow(s.stride_w), narrow(s.dilation_h), narrow(s.dilation_w),
                                              CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
              "cudnnSetConvolution2dDescriptor");
    check_dnn(cudnnSetConvolutionGroupCount(conv, narrow(s.groups)), "cudnnSetConvolutionGroupCount");
    const bool is_exact = dtype == DType::f32 && !allows_tf32();  // tensor cores round f32 operands to TF32
    check_dnn(cudnnSetConvolutionMathType(conv, is_exact ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH),
              "cudnnSetConvolutionMathType");
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    if (conv) cudnnDestroyConvolutionDescriptor(conv);
    if (weight) cudnnDestroyFilterDescriptor(weight);
    if (y) cudnnDestroyTensorDescriptor(y);
    if (x) cudnnDestroyTensorDescriptor(x);
  }
};

/// Sizes that the library counts in int.
bool is_countable(const ConvShape& s) {
  constexpr std::int64_t most = 0x7fffffff;
  return s.images * s.height * s.width * s.channels <= most &&
         s.images * s.out_height() * s.out_width() * s.filters <= most;
}

constexpr float one = 1, zero = 0;

/// One direction: ask(&bytes) for its workspace, then run(bytes). False: the library cannot, or needs more than there
/// is.
template <class Ask, class Run>
bool run_within(std::size_t workspace_bytes, const char* direction, const Ask& ask, const Run& run) {
  std::size_t bytes = 0;
  const cudnnStatus_t asked = ask(&bytes);
  if (is_refusal(asked) || bytes > workspace_bytes) return false;
  check_dnn(asked, direction);
  const cudnnStatus_t ran = run(bytes);
  if (is_refusal(ran)) return false;
  check_dnn(ran, direction);
  return true;
}

}  // namespace dnn_detail

bool library_conv_forward(const kernels::ConvForwardArgs& args, void* workspace, std::size_t workspace_bytes) {
  using namespace dnn_detail;
  const Doing doing(args, workspace_bytes);
  if (!is_countable(args.shape) || args.activation != Activation::none || args.pre_activation) return false;
  const Call c(args.shape, args.dtype);
  constexpr auto algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
  return run_within(
      workspace_bytes, "cudnnConvolutionForward",
      [&](std::size_t* bytes) {
        return cudnnGetConvolutionForwardWorkspaceSize(c.handle, c.x, c.weight, c.conv, c.y, algorithm, bytes);
      },
      [&](std::size_t bytes) {
        return cudnnConvolutionForward(c.handle, &one, c.x, args.x, c.weight, args.weight, c.conv, algorithm, workspace,
                                       bytes, &zero, c.y, args.y);
      });
}

bool library_conv_input_grad(const kernels::ConvInputGradArgs& args, void* workspace, std::size_t workspace_bytes) {
  using namespace dnn_detail;
  const Doing doing(args, workspace_bytes);
  if (!is_countable(args.shape)) return false;
  const Call c(args.shape, args.dtype);
  constexpr auto algorithm = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
  return run_within(
      workspace_bytes, "cudnnConvolutionBackwardData",
      [&](std::size_t* bytes) {
        return cudnnGetConvolutionBackwardDataWorkspaceSize(c.handle, c.weight, c.y, c.conv, c.x, algorithm, bytes);
      },
      [&](std::size_t bytes) {
        return cudnnConvolutionBackwardData(c.handle, &one, c.weight, args.weight, c.y, args.dy, c.conv, algorithm,
                                            workspace, bytes, args.accumulate ? &one : &zero, c.x, args.dx);
      });
}

bool library_conv_weight_grad(const kernels::ConvWeightGradArgs& args, void* workspace, std::size_t workspace_bytes) {
  using namespace dnn_detail;
  const Doing doing(args, workspace_bytes);
  if (!is_countable(args.shape)) return false;
  const Call c(args.shape, args.dtype);
  constexpr auto algorithm = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
  return run_within(
      workspace_bytes, "cudnnConvolutionBackwardFilter",
      [&](std::size_t* bytes) {
        return cudnnGetConvolutionBackwardFilterWorkspaceSize(c.handle, c.x, c.y, c.conv, c.weight, algorithm, bytes);
      },
      [&](std::size_t bytes) {
        return cudnnConvolutionBackwardFilter(c.handle, &one, c.x, args.x, c.y, args.dy, c.conv, algorithm, workspace,
                                              bytes, args.accumulate ? &one : &zero, c.weight, args.dweight);
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
