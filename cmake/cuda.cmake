# CUDA is optional: compiled if a toolkit >= 12 with a working nvcc is found.
#   THIMBLE_CUDA=AUTO  use it if found         ON  fail without it      OFF  do not look
# Sets thimble_cuda to TRUE and enables the CUDA language if cuda/*.cu is to be compiled.
set(thimble_cuda FALSE)
file(GLOB_RECURSE thimble_cuda_sources CONFIGURE_DEPENDS cuda/*.cu)

if(NOT THIMBLE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "THIMBLE_CUDA is ${THIMBLE_CUDA}; allowed are AUTO, ON and OFF")
endif()
if(THIMBLE_CUDA STREQUAL "OFF" OR NOT thimble_cuda_sources)
  return()
endif()

if(THIMBLE_CUDA STREQUAL "ON")
  find_package(CUDAToolkit 12 REQUIRED)
else()
  find_package(CUDAToolkit 12 QUIET)
  if(NOT CUDAToolkit_FOUND)
    return()
  endif()
endif()

# Uses the toolkit's nvcc, so that headers, libraries and compiler have one version. check_language tries a compiler
# that the environment names, but trusts CMAKE_CUDA_COMPILER.
if(NOT DEFINED ENV{CUDACXX} AND CUDAToolkit_NVCC_EXECUTABLE)
  set(ENV{CUDACXX} ${CUDAToolkit_NVCC_EXECUTABLE})
endif()
# Machine code for Ampere and Hopper, and PTX for later GPUs.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90")
endif()
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
  find_package(CUDNN 9 QUIET)
  set(thimble_cuda TRUE)
elseif(THIMBLE_CUDA STREQUAL "ON")
  message(FATAL_ERROR "THIMBLE_CUDA is ON, and nvcc of the CUDA toolkit ${CUDAToolkit_VERSION} does not compile here")
endif()

if(NOT thimble_cuda)
  return()
endif()

# The layer is a separate target, so that CUDA does not change how other code is compiled.
file(GLOB_RECURSE thimble_cuda_host_sources CONFIGURE_DEPENDS cuda/*.cpp)
list(FILTER thimble_cuda_host_sources EXCLUDE REGEX "/cuda/none\\.cpp$")
# NCCL is loaded on first use, so a build needs only its header.
find_path(THIMBLE_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} DOC "Where NCCL's header is")
if(THIMBLE_NCCL_INCLUDE)
  list(APPEND thimble_cuda_host_sources dist/nccl.cpp)
endif()
add_library(thimble_cuda OBJECT ${thimble_cuda_sources} ${thimble_cuda_host_sources})
thimble_own_target(thimble_cuda)
target_compile_features(thimble_cuda PRIVATE cxx_std_20)
target_include_directories(thimble_cuda PRIVATE ${thimble_include_dir})
if(THIMBLE_NCCL_INCLUDE)
  target_include_directories(thimble_cuda SYSTEM PRIVATE ${THIMBLE_NCCL_INCLUDE})
endif()
target_compile_options(thimble_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
  "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--fmad=false;--expt-relaxed-constexpr;-Xcompiler=-ffp-contract=off>")
# cuBLASLt and cuDNN are loaded on first use, from these folders if the system does not find them.
set(thimble_cuda_libraries CUDA::cudart_static)
get_target_property(cublaslt_library CUDA::cublasLt IMPORTED_LOCATION)
cmake_path(GET cublaslt_library PARENT_PATH cublaslt_folder)
target_compile_definitions(thimble_cuda PRIVATE THIMBLE_CUBLASLT_FOLDER="${cublaslt_folder}")
if(CUDNN_FOUND)
  cmake_path(GET CUDNN_LIBRARY PARENT_PATH cudnn_folder)
  target_compile_definitions(thimble_cuda PRIVATE THIMBLE_HAS_CUDNN THIMBLE_CUDNN_FOLDER="${cudnn_folder}")
  target_include_directories(thimble_cuda SYSTEM PRIVATE ${CUDNN_INCLUDE_DIR})
endif()
target_link_libraries(thimble_cuda PRIVATE ${thimble_cuda_libraries})
if(BUILD_SHARED_LIBS)
  set_target_properties(thimble_cuda PROPERTIES POSITION_INDEPENDENT_CODE ON)
endif()

# Links the CUDA libraries. A static library leaves this to its users, and its sources are compiled without CUDA's
# headers.
function(thimble_link_cuda)
  get_target_property(type thimble TYPE)
  foreach(library IN LISTS thimble_cuda_libraries)
    if(type STREQUAL "STATIC_LIBRARY")
      target_link_libraries(thimble INTERFACE $<LINK_ONLY:${library}>)
    else()
      target_link_libraries(thimble PRIVATE ${library})
    endif()
  endforeach()
endfunction()
