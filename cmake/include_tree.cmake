# Lays out <build>/include/thimble so that `#include <thimble/core/tensor/tensor.h>` means the same in the tree as installed:
# one link per source folder, the version header, and thimble.h, the public face.
set(thimble_include_dir ${PROJECT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${thimble_include_dir}/thimble)
foreach(folder IN LISTS thimble_layers ITEMS bench)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${folder})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${thimble_include_dir}/thimble/${folder} SYMBOLIC)
  endif()
endforeach()

configure_file(cmake/version.h.in ${thimble_include_dir}/thimble/version.h @ONLY)
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/thimble.h ${thimble_include_dir}/thimble/thimble.h SYMBOLIC)
