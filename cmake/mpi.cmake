# Builds a module for each MPI whose compiler wrapper is found: Open MPI, MPICH, both or none. The library loads a
# module if that MPI's launcher started it, so neither the library nor a program links MPI.
#   THIMBLE_MPI  ON: build a module for each MPI found (default)      OFF: do not look
# Sets thimble_mpi to the names of the modules and THIMBLE_<NAME>_MPIRUN to their launchers.
option(THIMBLE_MPI "Build a module for each MPI that is found" ON)
set(thimble_mpi "")
set(thimble_module_dir ${CMAKE_INSTALL_LIBDIR}/thimble)

# The words that `wrapper` adds to a compiler's line; none if it rejects an argument.
function(thimble_mpi_words result wrapper)
  execute_process(COMMAND ${wrapper} ${ARGN} OUTPUT_VARIABLE line ERROR_QUIET RESULT_VARIABLE status
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  separate_arguments(words UNIX_COMMAND "${line}")
  if(NOT status EQUAL 0)
    set(words "")
  endif()
  set(${result} ${words} PARENT_SCOPE)
endfunction()

# thimble_add_mpi(name ask_compile ask_link): asks the wrapper `mpicc.<name>` (Debian) or `mpicc` for its flags with the
# options of this MPI, which the other MPI's wrapper refuses.
function(thimble_add_mpi name ask_compile ask_link)
  string(TOUPPER ${name} upper)
  find_program(THIMBLE_${upper}_CC NAMES mpicc.${name} mpicc DOC "The compiler wrapper of ${name}")
  if(NOT THIMBLE_${upper}_CC)
    return()
  endif()
  thimble_mpi_words(compile ${THIMBLE_${upper}_CC} ${ask_compile})
  thimble_mpi_words(link ${THIMBLE_${upper}_CC} ${ask_link})
  list(FILTER compile INCLUDE REGEX "^-I")
  list(TRANSFORM compile REPLACE "^-I" "")
  list(FILTER link INCLUDE REGEX "^-(L|l|Wl,-rpath)")
  if(NOT link)
    return()
  endif()
  get_filename_component(folder ${THIMBLE_${upper}_CC} DIRECTORY)
  find_program(THIMBLE_${upper}_MPIRUN NAMES mpirun.${name} mpirun HINTS ${folder} DOC "The launcher of ${name}")
  add_library(thimble_${name} MODULE dist/module/mpi.cpp)
  thimble_own_target(thimble_${name})
  target_compile_features(thimble_${name} PRIVATE cxx_std_20)
  target_include_directories(thimble_${name} PRIVATE ${thimble_include_dir})
  target_include_directories(thimble_${name} SYSTEM PRIVATE ${compile})
  target_link_libraries(thimble_${name} PRIVATE ${link})
  set_target_properties(thimble_${name} PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  if(THIMBLE_INSTALL)
    install(TARGETS thimble_${name} LIBRARY DESTINATION ${thimble_module_dir})
  endif()
  set(thimble_mpi ${thimble_mpi} ${name} PARENT_SCOPE)
endfunction()

if(THIMBLE_MPI)
  thimble_add_mpi(openmpi --showme:compile --showme:link)
  thimble_add_mpi(mpich -compile-info -link-info)
endif()
