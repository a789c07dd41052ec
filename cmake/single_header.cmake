# The target single_header writes <build>/single_header/thimble.hpp from the headers and sources of the library.
set(single_header ${PROJECT_BINARY_DIR}/single_header/thimble.hpp)
set(single_header_inputs "")
foreach(layer IN LISTS thimble_layers)
  if(layer STREQUAL "cuda")
    file(GLOB files RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS cuda/none.cpp)
  else()
    file(GLOB_RECURSE files RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${layer}/*.h ${layer}/*.cpp)
    list(FILTER files EXCLUDE REGEX "dist/(module/[^/]*|nccl)\\.cpp$") # modules; needs CUDA
  endif()
  list(SORT files)
  list(APPEND single_header_inputs ${files})
endforeach()
list(JOIN single_header_inputs "\n" single_header_list)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/single_header/files.txt CONTENT "version.h\n${single_header_list}\n" @ONLY)

add_executable(amalgamate EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tools/amalgamate.cpp)
target_compile_features(amalgamate PRIVATE cxx_std_20)
thimble_own_target(amalgamate)
list(TRANSFORM single_header_inputs PREPEND ${PROJECT_SOURCE_DIR}/)
add_custom_command(
  OUTPUT ${single_header}
  COMMAND amalgamate ${PROJECT_VERSION} ${thimble_include_dir} ${PROJECT_BINARY_DIR}/single_header/files.txt ${single_header}
  DEPENDS amalgamate ${PROJECT_BINARY_DIR}/single_header/files.txt ${thimble_include_dir}/thimble/version.h
          ${single_header_inputs}
  COMMENT "Writing single_header/thimble.hpp"
  VERBATIM)
if(THIMBLE_TESTS)
  add_custom_target(single_header ALL DEPENDS ${single_header})
else()
  add_custom_target(single_header DEPENDS ${single_header})
endif()
