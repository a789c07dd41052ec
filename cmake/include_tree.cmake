# Lays out <build>/include/thimble so that `#include <thimble/core/tensor/tensor.h>` means the same in the tree as installed:
# one link per source folder, the version header, and thimble.h, which takes every public header.
set(thimble_include_dir ${PROJECT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${thimble_include_dir}/thimble)
foreach(folder IN LISTS thimble_layers ITEMS bench)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${folder})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${thimble_include_dir}/thimble/${folder} SYMBOLIC)
  endif()
endforeach()

configure_file(cmake/version.h.in ${thimble_include_dir}/thimble/version.h @ONLY)

# Public is every header of a layer but those of the kernel families, which the operators include for themselves.
set(thimble_public_includes "")
foreach(layer IN LISTS thimble_layers)
  file(GLOB_RECURSE headers RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS ${layer}/*.h)
  list(FILTER headers EXCLUDE REGEX "^cuda/|/kernels/")
  list(SORT headers)
  if(headers)
    string(APPEND thimble_public_includes "\n")
  endif()
  foreach(header IN LISTS headers)
    string(APPEND thimble_public_includes "#include <thimble/${header}>\n")
  endforeach()
endforeach()
configure_file(cmake/thimble.h.in ${thimble_include_dir}/thimble/thimble.h @ONLY)
