# Finds NVIDIA cuDNN next to the CUDA toolkit or under CUDNN_ROOT, which may be its Python package (without a plain
# libcudnn.so). Sets CUDNN_INCLUDE_DIR, CUDNN_LIBRARY and CUDNN_VERSION.
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
mark_as_advanced(CUDNN_INCLUDE_DIR CUDNN_LIBRARY)

set(CUDNN_VERSION "")
if(CUDNN_INCLUDE_DIR AND EXISTS ${CUDNN_INCLUDE_DIR}/cudnn_version.h)
  file(READ ${CUDNN_INCLUDE_DIR}/cudnn_version.h cudnn_version_text)
  foreach(part MAJOR MINOR PATCHLEVEL)
    string(REGEX MATCH "#define CUDNN_${part} +([0-9]+)" cudnn_match "${cudnn_version_text}")
    list(APPEND CUDNN_VERSION "${CMAKE_MATCH_1}")
  endforeach()
  list(JOIN CUDNN_VERSION "." CUDNN_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUDNN REQUIRED_VARS CUDNN_LIBRARY CUDNN_INCLUDE_DIR VERSION_VAR CUDNN_VERSION)
