# CUDA: compiled where a toolkit >= 12 with a working nvcc is found, never needed.
#   THIMBLE_CUDA=AUTO  use it where found      ON  fail without it      OFF  do not look
# Sets thimble_cuda to TRUE when cuda/*.cu is to be compiled; the CUDA language is then enabled.
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

# The toolkit's own nvcc, so that headers, libraries and compiler are of one version. Named in the environment, where
# check_language still tries it, rather than in CMAKE_CUDA_COMPILER, which it would take on trust.
if(NOT DEFINED ENV{CUDACXX} AND CUDAToolkit_NVCC_EXECUTABLE)
  set(ENV{CUDACXX} ${CUDAToolkit_NVCC_EXECUTABLE})
endif()
# Machine code for Ampere and Hopper, and PTX for what comes later.
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

# The layer is compiled apart, so that nothing else is compiled differently with CUDA than without.
file(GLOB_RECURSE thimble_cuda_host_sources CONFIGURE_DEPENDS cuda/*.cpp)
list(FILTER thimble_cuda_host_sources EXCLUDE REGEX "/cuda/none\\.cpp$")
# NCCL is loaded where a program first asks for it, so its header is all that a build needs.
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
# cuBLASLt and cuDNN are loaded where they are first called, from these folders where the system does not find them.
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

# What the library needs of it when it is linked. A static library leaves that to whoever links it, and its own files are
# compiled without a look at CUDA's headers.
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
