# What every target of this project is built with; none of it reaches a consumer.
function(thimble_own_target target)
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic>")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC 12 warns of `"text" + std::string` inside the standard library (GCC bug 105329).
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
  endif()
  if(THIMBLE_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
  if(THIMBLE_SANITIZE)
    target_compile_options(${target} PRIVATE
      "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${THIMBLE_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer>")
    target_link_options(${target} PUBLIC $<BUILD_INTERFACE:-fsanitize=${THIMBLE_SANITIZE}>)
  endif()
endfunction()

# A program under <build>/bin that uses the library.
function(thimble_add_program target)
  add_executable(${target} ${ARGN})
  thimble_own_target(${target})
  target_link_libraries(${target} PRIVATE thimble::thimble)
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()
