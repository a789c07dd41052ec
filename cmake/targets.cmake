set(thimble_optimizes $<CONFIG:Release>)
if(THIMBLE_SANITIZE) # which does not see the copies that _FORTIFY_SOURCE checks
  set(thimble_optimizes 0)
  set(thimble_sanitizes -O1 -g1 -UNDEBUG -U_FORTIFY_SOURCE -fsanitize=${THIMBLE_SANITIZE} -fno-sanitize-recover=all
                        -fno-omit-frame-pointer)
  if(THIMBLE_SANITIZE MATCHES "address" AND THIMBLE_SANITIZE MATCHES "undefined")
    # AddressSanitizer also finds uses of null pointers and beyond objects, and x86 allows unaligned loads. Without
    # these checks and the checks of dynamic types, the library compiles in 5/8 of the time.
    list(APPEND thimble_sanitizes
         -fno-sanitize=null,object-size,vptr,alignment,nonnull-attribute,returns-nonnull-attribute,pointer-overflow)
  endif()
endif()

# Limits the damage of a hostile file: checked copies, stack canaries, unpredictable addresses, read-only function
# tables.
function(thimble_harden_target target)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
    return()
  endif()
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release,RelWithDebInfo,MinSizeRel>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIE>)
    target_link_options(${target} PRIVATE -pie)
  elseif((type STREQUAL "STATIC_LIBRARY" OR (type STREQUAL "OBJECT_LIBRARY" AND NOT BUILD_SHARED_LIBS))
         AND NOT CMAKE_POSITION_INDEPENDENT_CODE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIE>) # for programs, unless already -fPIC
  endif()
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT type STREQUAL "STATIC_LIBRARY")
    target_link_options(${target} PRIVATE LINKER:-z,relro LINKER:-z,now)
  endif()
endfunction()

# Options of every target of this project; no consumer inherits them.
function(thimble_own_target target)
  thimble_harden_target(${target})
  # A program keeps only the functions that it calls.
  if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang" AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffunction-sections>)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")
      target_link_options(${target} PRIVATE LINKER:--gc-sections)
    endif()
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion>")
  # In C++, -Wconversion covers signs in clang but not in GCC.
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-sign-conversion>")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC 12 warns about `"text" + std::string` inside the standard library (GCC bug 105329).
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
  endif()
  if(THIMBLE_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
  if(THIMBLE_SANITIZE)
    if(NOT target MATCHES "^thimble_test") # see cmake/tests.cmake
      target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${thimble_sanitizes}>")
    endif()
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
