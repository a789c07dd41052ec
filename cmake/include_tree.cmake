# Makes <build>/include/thimble, so that `#include <thimble/core/tensor/tensor.h>` works in the tree as when installed:
# a link per source folder, the version header, and the public header thimble.h.
set(thimble_include_dir ${PROJECT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${thimble_include_dir}/thimble)
foreach(folder IN LISTS thimble_layers ITEMS bench)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${folder})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${thimble_include_dir}/thimble/${folder} SYMBOLIC)
  endif()
endforeach()

configure_file(cmake/version.h.in ${thimble_include_dir}/thimble/version.h @ONLY)
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/thimble.h ${thimble_include_dir}/thimble/thimble.h SYMBOLIC)
