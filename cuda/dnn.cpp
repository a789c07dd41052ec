// cuDNN's part in convolutions: (N, H, W, C) images and (O, KH, KW, C / groups) weights, one deterministic algorithm
// for each direction. Without cuDNN the own kernels compute all of them.

#include <thimble/cuda/library.h>

#if defined(THIMBLE_HAS_CUDNN)

#include <map>
#include <mutex>
#include <string>

#include <cudnn.h>

#include <thimble/core/launch.h>
#include <thimble/cuda/runtime.h>

namespace thimble::gpu {
namespace dnn_detail {

using kernels::Activation;
using kernels::ConvShape;

void check_dnn(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw DeviceError(std::string(call) + ": " + cudnnGetErrorString(status));
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
  if (!handle) check_dnn(cudnnCreate(&handle), "cudnnCreate");
  check_dnn(cudnnSetStream(handle, stream), "cudnnSetStream");
  return handle;
}

/// The descriptors of one call; destroyed with it.
struct Call {
  cudnnHandle_t handle = nullptr;
  cudnnTensorDescriptor_t x = nullptr, y = nullptr, bias = nullptr;
  cudnnFilterDescriptor_t weight = nullptr;
  cudnnConvolutionDescriptor_t conv = nullptr;

  Call(const ConvShape& s, DType dtype) {
    const Device device = launching_device();
    handle = handle_of(device, compute_stream(device));
    const cudnnDataType_t type = type_of(dtype);
    const auto narrow = [](std::int64_t value) { return static_cast<int>(value); };
    check_dnn(cudnnCreateTensorDescriptor(&x), "cudnnCreateTensorDescriptor");
    check_dnn(cudnnCreateTensorDescriptor(&y), "cudnnCreateTensorDescriptor");
    check_dnn(cudnnCreateTensorDescriptor(&bias), "cudnnCreateTensorDescriptor");
    check_dnn(cudnnCreateFilterDescriptor(&weight), "cudnnCreateFilterDescriptor");
    check_dnn(cudnnCreateConvolutionDescriptor(&conv), "cudnnCreateConvolutionDescriptor");
    check_dnn(cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NHWC, type, narrow(s.images), narrow(s.channels),
                                         narrow(s.height), narrow(s.width)),
              "cudnnSetTensor4dDescriptor(x)");
    check_dnn(cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NHWC, type, narrow(s.images), narrow(s.filters),
                                         narrow(s.out_height()), narrow(s.out_width())),
              "cudnnSetTensor4dDescriptor(y)");
    check_dnn(cudnnSetTensor4dDescriptor(bias, CUDNN_TENSOR_NHWC, type, 1, narrow(s.filters), 1, 1),
              "cudnnSetTensor4dDescriptor(bias)");
    check_dnn(cudnnSetFilter4dDescriptor(weight, type, CUDNN_TENSOR_NHWC, narrow(s.filters),
                                         narrow(s.channels / s.groups), narrow(s.kernel_h), narrow(s.kernel_w)),
              "cudnnSetFilter4dDescriptor");
    check_dnn(cudnnSetConvolution2dDescriptor(conv, narrow(s.pad_top), narrow(s.pad_left), narrow(s.stride_h),
                                              narrow(s.stride_w), narrow(s.dilation_h), narrow(s.dilation_w),
                                              CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT),
              "cudnnSetConvolution2dDescriptor");
    check_dnn(cudnnSetConvolutionGroupCount(conv, narrow(s.groups)), "cudnnSetConvolutionGroupCount");
    check_dnn(cudnnSetConvolutionMathType(conv, dtype == DType::f32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH),
              "cudnnSetConvolutionMathType");
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    if (conv) cudnnDestroyConvolutionDescriptor(conv);
    if (weight) cudnnDestroyFilterDescriptor(weight);
    if (bias) cudnnDestroyTensorDescriptor(bias);
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

}  // namespace dnn_detail

bool library_conv_forward(const kernels::ConvForwardArgs& args, void* workspace, std::size_t workspace_bytes) {
  using namespace dnn_detail;
  if (!is_countable(args.shape) || args.activation != Activation::none || args.pre_activation) return false;
  const Call call(args.shape, args.dtype);
  constexpr auto algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
  std::size_t bytes = 0;
  const cudnnStatus_t status =
      cudnnGetConvolutionForwardWorkspaceSize(call.handle, call.x, call.weight, call.conv, call.y, algorithm, &bytes);
  if (is_refusal(status) || bytes > workspace_bytes) return false;
  check_dnn(status, "cudnnGetConvolutionForwardWorkspaceSize");
  const cudnnStatus_t run = cudnnConvolutionForward(call.handle, &one, call.x, args.x, call.weight, args.weight,
                                                    call.conv, algorithm, workspace, bytes, &zero, call.y, args.y);
  if (is_refusal(run)) return false;
  check_dnn(run, "cudnnConvolutionForward");
  if (args.bias)
    check_dnn(cudnnAddTensor(call.handle, &one, call.bias, args.bias, &one, call.y, args.y), "cudnnAddTensor");
  return true;
}

bool library_conv_input_grad(const kernels::ConvInputGradArgs& args, void* workspace, std::size_t workspace_bytes) {
  using namespace dnn_detail;
  if (!is_countable(args.shape)) return false;
  const Call call(args.shape, args.dtype);
  constexpr auto algorithm = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
  std::size_t bytes = 0;
  const cudnnStatus_t status = cudnnGetConvolutionBackwardDataWorkspaceSize(call.handle, call.weight, call.y, call.conv,
                                                                            call.x, algorithm, &bytes);
  if (is_refusal(status) || bytes > workspace_bytes) return false;
  check_dnn(status, "cudnnGetConvolutionBackwardDataWorkspaceSize");
  const cudnnStatus_t run =
      cudnnConvolutionBackwardData(call.handle, &one, call.weight, args.weight, call.y, args.dy, call.conv, algorithm,
                                   workspace, bytes, args.accumulate ? &one : &zero, call.x, args.dx);
  if (is_refusal(run)) return false;
  check_dnn(run, "cudnnConvolutionBackwardData");
  return true;
}

bool library_conv_weight_grad(const kernels::ConvWeightGradArgs& args, void* workspace, std::size_t workspace_bytes) {
  using namespace dnn_detail;
  if (!is_countable(args.shape)) return false;
  const Call call(args.shape, args.dtype);
  constexpr auto algorithm = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
  std::size_t bytes = 0;
  const cudnnStatus_t status = cudnnGetConvolutionBackwardFilterWorkspaceSize(call.handle, call.x, call.y, call.conv,
                                                                              call.weight, algorithm, &bytes);
  if (is_refusal(status) || bytes > workspace_bytes) return false;
  check_dnn(status, "cudnnGetConvolutionBackwardFilterWorkspaceSize");
  const cudnnStatus_t run =
      cudnnConvolutionBackwardFilter(call.handle, &one, call.x, args.x, call.y, args.dy, call.conv, algorithm,
                                     workspace, bytes, args.accumulate ? &one : &zero, call.weight, args.dweight);
  if (is_refusal(run)) return false;
  check_dnn(run, "cudnnConvolutionBackwardFilter");
  return true;
}

}  // namespace thimble::gpu

#else

namespace thimble::gpu {

bool library_conv_forward(const kernels::ConvForwardArgs&, void*, std::size_t) { return false; }
bool library_conv_input_grad(const kernels::ConvInputGradArgs&, void*, std::size_t) { return false; }
bool library_conv_weight_grad(const kernels::ConvWeightGradArgs&, void*, std::size_t) { return false; }

}  // namespace thimble::gpu

#endif
